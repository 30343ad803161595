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
class Cut:
    """checkpoints: states beside those of running requests. pages: of KV. request_tokens: of one request, at most."""

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


def cut(memory: int, *, state_bytes: int, page_bytes: int, page_tokens: int, requests: int, state_share: float,
        tokens_max: int) -> Cut:
    """Cuts `memory` so that states get their share, each request a state of its own, and KV the rest.

    Raises InvalidArgument if there is no room for one checkpoint and one page."""
    if not 0.0 < state_share < 1.0:
        raise InvalidArgument(f"state_share is {state_share}, and must be between 0 and 1")
    least = (requests + 1) * state_bytes + page_bytes
    if memory < least:
        raise InvalidArgument(f"memory is {memory:,} bytes, and must be at least {least:,}: {requests + 1} states of "
                              f"{state_bytes:,} bytes and a page of {page_bytes:,} bytes")
    wanted = max(int(memory * state_share) // state_bytes, requests + 1)
    slots = min(wanted, (memory - page_bytes) // state_bytes)  # a page is left
    pages = (memory - slots * state_bytes) // page_bytes
    limit = max(tokens_max // page_tokens, 1)
    return Cut(slots - requests, pages, min(pages, limit) * page_tokens)
