# SPDX-License-Identifier: Apache-2.0
"""KV in vLLM's own blocks, behind the hit that vLLM's states allow."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stateport._arrays import Int32s

logger = logging.getLogger(__name__)

_FREE_PART = 2  # references are taken on a half of the free blocks at most


@dataclasses.dataclass(frozen=True)
class Span:
    """Columns of a request's block table from `first` on, in groups of which vLLM's cache must have all blocks of a
    column. places: int32 [columns], where the host has their contents."""

    groups: tuple[int, ...]
    first: int
    places: Int32s


@dataclasses.dataclass(frozen=True)
class DeviceCopies:
    """Copies of KV between vLLM's blocks, for columns of one request's block table. sources, targets: int32 [n,
    groups], vLLM's blocks. places: int32 [n], where the host has the same KV."""

    groups: tuple[int, ...]
    sources: Int32s
    targets: Int32s
    places: Int32s


class DeviceKv:
    """Finds KV of a prompt in vLLM's blocks. vLLM reuses a prefix up to the deepest state that it still has. Its cache
    often has KV behind that state: a restore copies that KV on the device, and the host sends less.

        bind, once → keep, when a prompt is looked up → take, when it has blocks → release, when workers have answered

    A source of a copy has a reference of this object from `take` to `release`: vLLM does not give it away. `take` comes
    after vLLM has allocated the prompt's blocks, so that no prompt waits for these references. It takes them on at most
    half of the free blocks, so that running requests find room. An object that is not bound finds nothing."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block = block_size_tokens
        self._pool: Any = None
        self._taken: dict[str, list[Any]] = {}  # by request: blocks with a reference

    def bind(self, manager: Any) -> None:
        """manager: vLLM's KVCacheManager."""
        pool: Any = getattr(manager, "block_pool", None)
        names = ("get_cached_block", "touch", "free_blocks", "get_num_free_blocks", "hash_block_size")
        missing = [name for name in names if not hasattr(pool, name)]
        if missing:
            logger.warning("stateport: vLLM's pool of blocks has no %s: all KV is restored from the host",
                           ", ".join(missing))
        elif self._block % pool.hash_block_size == 0:
            self._pool = pool

    def keep(self, request: Any, spans: Iterable[Span]) -> None:
        """Marks the blocks of these columns as used now: vLLM evicts them last when it allocates blocks for the
        prompt."""
        found = [block for span in spans for _, blocks in self._find(request, span) for block in blocks]
        if found:
            self._pool.touch(found)
            self._pool.free_blocks(found[::-1])

    def take(self, request: Any, spans: Iterable[Span]) -> list[tuple[Int32s, Int32s]]:
        """Finds columns of spans of the request's block table. Answers for each span the columns [n], counted from its
        first one, and vLLM's blocks [n, groups], and keeps a reference to each block for the request."""
        out, blocks, room = [], [], self._pool.get_num_free_blocks() // _FREE_PART if self._pool is not None else 0
        for span in spans:
            columns, rows = [], []
            for column, found in self._find(request, span):
                cost = sum(block.ref_cnt == 0 for block in found)
                if cost > room:
                    break
                room -= cost
                columns.append(column - span.first)
                rows.append([block.block_id for block in found])
                blocks += found
            out.append((np.array(columns, np.int32), np.array(rows, np.int32).reshape(-1, len(span.groups))))
        if blocks:
            self._pool.touch(blocks)
            self._taken.setdefault(request.request_id, []).extend(blocks)
        return out

    def release(self, request_ids: Iterable[str]) -> None:
        """The workers have copied, or have failed to. Ids of other requests change nothing."""
        for name in request_ids:
            blocks = self._taken.pop(name, None)
            if blocks:
                self._pool.free_blocks(reversed(blocks))  # the last ones are evicted first, as vLLM does

    def _find(self, request: Any, span: Span) -> list[tuple[int, list[Any]]]:
        """Columns that all groups of the span have in vLLM's cache, with their blocks."""
        if self._pool is None:
            return []
        hashes, parts = request.block_hashes, self._block // self._pool.hash_block_size
        found = []
        for column in range(span.first, min(span.first + len(span.places), len(hashes) // parts)):
            # vLLM's hash of a part of a block covers all tokens before its end.
            blocks = self._pool.get_cached_block(hashes[(column + 1) * parts - 1], list(span.groups))
            if blocks:
                found.append((column, list(blocks)))
        return found


def written_blocks(groups: Sequence[int], block_size_tokens: int, requests: Mapping[str, Any],
                   scheduled: Mapping[str, int], tables: Mapping[str, Sequence[Sequence[int]]]) -> Int32s:
    """vLLM's blocks of KV that a step computes. vLLM names their content before the step runs."""
    out: list[int] = []
    for name, tokens in scheduled.items():
        begin = requests[name].num_computed_tokens
        for group in groups:
            out += tables[name][group][begin // block_size_tokens:-(-(begin + tokens) // block_size_tokens)]
    return np.array(out, np.int32)
