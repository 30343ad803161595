# SPDX-License-Identifier: Apache-2.0
"""Options of the tiers of a request cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arrays import TRANSFER_RESULT, Records, UInt64s, copied
from stateport.errors import InvalidArgument

MEDIA: tuple[str, ...] = _c.MEDIUM
CONTENTS: tuple[str, ...] = _c.CONTENT
TRANSFER_KINDS: tuple[str, ...] = _c.TRANSFER_KIND
TRANSFER_STATUSES: tuple[str, ...] = _c.TRANSFER_STATUS

LeadingBlocks = Callable[[UInt64s], int]


def medium_number(medium: str) -> int:
    if medium not in MEDIA:
        raise InvalidArgument(f"medium is {medium!r}, and must be one of {', '.join(MEDIA)}")
    return MEDIA.index(medium)


def transfer_results(numbers: Sequence[int] | UInt64s, status: str) -> Records:
    """TRANSFER_RESULT [n]: all of these transfers ended so."""
    results = np.zeros(len(numbers), TRANSFER_RESULT)
    results["id"], results["status"] = numbers, TRANSFER_STATUSES.index(status)
    return results


@dataclasses.dataclass(frozen=True)
class TierOptions:
    """Room below the device, in bytes; without any there are no tiers.

    state_image_bytes, kv_image_bytes: bytes of the image of one state (all groups together), and of the KV of one
    block, in a tier (StateSpec.image_bytes); 0: as in the cache's `eviction`.
    queue_bytes: of stores and copies under way; further ones are dropped and counted; 0: no limit.
    write_through: checkpoints go to the slowest tier as soon as they are made, not when the device drops them.
    host_bytes_per_s, file_bytes_per_s, tokens_per_s, remote_bytes_per_s, remote_latency_s: a hit below the device is
    taken if loading it takes less time than computing it; if a speed that this needs is 0, every hit is taken.
    leading_blocks: the engine keeps the KV that leaves the device by its own means: called with prefixes [n, 2] by
    `start`, it answers how many of these blocks, from the first one on, can be loaded from there. An exception of it is
    printed and counts as 0.
    remote_bytes: of images in a remote tier, shared with other caches, that this one remembers; `start` asks for
    others. max_finds: images of states that a request asks for, at most; -1: none. A
    request that ends does not wait for its answers; while more of these are missing than max_requests requests ask for
    at a time, nothing is asked for."""

    host_bytes: int = 0
    file_bytes: int = 0
    state_image_bytes: int = 0
    kv_image_bytes: int = 0
    queue_bytes: int = 0
    write_through: bool = False
    host_bytes_per_s: float = 0.0
    file_bytes_per_s: float = 0.0
    tokens_per_s: float = 0.0
    leading_blocks: LeadingBlocks | None = None
    remote_bytes: int = 0
    max_finds: int = 4096
    remote_bytes_per_s: float = 0.0
    remote_latency_s: float = 0.0

    def struct(self) -> Any:
        """It holds on to the callback: keep it as long as the cache."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        ask = values.pop("leading_blocks")
        if ask is not None:
            if not callable(ask):
                raise InvalidArgument(f"leading_blocks is {ask!r}, and must be a function")
            values["leading_blocks"] = _library.answering(_answer_of(ask), 0)
        return _c.TierOptions(**values)


def _answer_of(ask: LeadingBlocks) -> Callable[[Any, int, Any], int]:
    def answer(prefixes: Any, count: int, _: Any) -> int:
        found = int(ask(copied(prefixes, 2 * count, np.uint64).reshape(count, 2)))
        return min(max(found, 0), count)

    return answer
