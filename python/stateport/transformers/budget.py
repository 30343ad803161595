# SPDX-License-Identifier: Apache-2.0
"""How a budget of memory is cut into states and pages of KV."""

from __future__ import annotations

import dataclasses
import os
import re

from stateport.errors import InvalidArgument

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
          "TIB": 2**40}


@dataclasses.dataclass(frozen=True)
class Tiers:
    """Where cached states and KV go when `memory` is full.

    host_bytes: of the host's memory; 0: none. folder: of the files, made if it is not there; several processes of one
    machine may use one. file_bytes: of the files. Sizes are bytes, or text such as "4 GiB".
    write_through: checkpoints go to files as soon as they are made; else when memory drops them, and at close."""

    host_bytes: int | str = 0
    folder: str | os.PathLike[str] | None = None
    file_bytes: int | str = 0
    write_through: bool = False

    def __post_init__(self) -> None:
        if (self.folder is None) != (self.sizes[1] == 0):
            raise InvalidArgument(f"folder is {self.folder!r} and file_bytes is {self.file_bytes!r}: both or neither")

    @property
    def sizes(self) -> tuple[int, int]:
        """host_bytes and file_bytes, in bytes."""
        return parse_bytes("host_bytes", self.host_bytes), parse_bytes("file_bytes", self.file_bytes)


@dataclasses.dataclass(frozen=True)
class Extent:
    """The smallest run of states, or of pages, whose memory comes and goes by itself. count: of them. bytes: of
    physical memory."""

    count: int
    bytes: int

    def least(self, numbers: int) -> int:
        """Extents that hold this many numbers wherever they begin."""
        return -(-numbers // self.count) + (1 if self.count > 1 else 0)


@dataclasses.dataclass(frozen=True)
class Cut:
    """The most that one memory can hold of each. checkpoints: states beside those of running requests. pages: of KV,
    beside one that is never used. request_tokens: of one request."""

    checkpoints: int
    pages: int
    request_tokens: int


def parse_bytes(name: str, value: int | str) -> int:
    """A size in bytes, from a number or text such as "512 MiB". Raises InvalidArgument."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
        if found is None or found[2].upper() not in _UNITS:
            raise InvalidArgument(f"{name} is {value!r}, and must be bytes, or a number with KiB, MiB, GiB, TiB, KB, "
                                  "MB, GB or TB")
        value = int(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} is {value!r}, and must be a number of bytes, not negative")
    return value


def cut(memory: int, *, states: Extent, pages: Extent, page_tokens: int, requests: int, max_tokens: int | None,
        model_tokens: int) -> Cut:
    """How much of `memory` states can have at most, and how much KV. Memory that stays with states holds one of each
    request and one more; memory that stays with KV holds one request and the page that is never used. A request has
    half of all memory at most, unless max_tokens says how long it is.

    Raises InvalidArgument if there is no room for one page of a request."""
    # The cache keeps a 64th of an arena free, and two extents of each kind at least.
    of_states, free = states.least(requests + 1) * states.bytes, 2 * (states.bytes + pages.bytes)
    of_request = (memory - max(memory // 64, free) - of_states) // pages.bytes  # extents
    if of_request < pages.least(2):
        fixed = of_states + pages.least(2) * pages.bytes
        least = max(fixed + free, -(-64 * fixed // 63))
        raise InvalidArgument(f"memory is {memory:,} bytes, and must be at least {least:,}: {requests + 1} states and "
                              "2 pages that stay, and 2 of each that are kept free, in runs of "
                              f"{states.count} states ({states.bytes:,} bytes) and {pages.count} pages "
                              f"({pages.bytes:,} bytes)")
    fitting = (of_request - pages.least(0)) * pages.count - 1
    wanted = (max_tokens or model_tokens) // page_tokens
    if max_tokens is None:
        wanted = min(wanted, memory // 2 // pages.bytes * pages.count)
    request_pages = min(fitting, max(wanted, 1))
    of_kv = pages.least(request_pages + 1) * pages.bytes
    return Cut((memory - of_kv) // states.bytes * states.count - requests,
               (memory - of_states) // pages.bytes * pages.count - 1, request_pages * page_tokens)
