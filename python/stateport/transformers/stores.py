# SPDX-License-Identifier: Apache-2.0
"""The memory of cached states and KV, and copies between it and a DynamicCache."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from stateport.cache_arena import MEMORY_PARTS, MOVE_KINDS, MemoryPlan
from stateport.cache_options import Arena
from stateport.elastic import ElasticMemory, ElasticStore, MemoryMover
from stateport.passes import PassCommit, PassPlan
from stateport.request_cache import RequestCache
from stateport.spec import StateSpec
from stateport.transformers.budget import Cut, Extent
from stateport.transformers.layout import CacheLayout, fill
from stateport.transformers.tensors import bytes_of

_UNMAP, _OF_KV = MOVE_KINDS.index("unmap"), MEMORY_PARTS.index("kv")
_HUGE_PAGE_BYTES = 2 << 20
_SLOT_MAJOR = "slot_major"  # extents of few slots: they are emptied sooner


def granularity_bytes(layout: CacheLayout) -> int:
    """Memory comes in multiples of it; 0: the smallest that the device has. On a host a 16th of a state, as far as that
    is from a page to a huge page: a state is an extent by itself, and moves are few."""
    if layout.device.type != "cpu":
        return 0
    part = max(state_bytes(layout) // 16, 1)
    return min(max(1 << (part.bit_length() - 1), mmap.PAGESIZE), _HUGE_PAGE_BYTES)


def extent_of(spec: StateSpec, granularity: int) -> Extent:
    """That of a store of these states, or pages."""
    with ElasticMemory(_HUGE_PAGE_BYTES, granularity_bytes=granularity) as memory, \
            ElasticStore(memory, spec, 1, layout=_SLOT_MAJOR) as store:
        info = store.info()
    return Extent(info.extent_count, info.extent_bytes)


class Stores:
    """Two stores that share `memory` bytes: of states (a slot is one state) and of KV (a slot is one page). Both have
    addresses for the most that sizes says, and memory moves between them as the cache decides.

    Raises BackendError on a device that cannot map memory."""

    def __init__(self, config: Any, layout: CacheLayout, page_tokens: int, memory: int, sizes: Cut, *, requests: int,
                 scrub: bool) -> None:
        self._config, self._layout, self._page_tokens, self._scrub = config, layout, page_tokens, scrub
        granularity = granularity_bytes(layout)
        self.memory = ElasticMemory(memory, granularity_bytes=granularity)
        self.states = ElasticStore(self.memory, layout.state_spec(), sizes.checkpoints + requests, layout=_SLOT_MAJOR)
        self.pages = ElasticStore(self.memory, layout.page_spec(page_tokens), sizes.pages + 1, layout=_SLOT_MAJOR)
        states, pages = self.states.info(), self.pages.info()
        self.arena = Arena(memory, pages.extent_count, pages.extent_bytes, states.extent_count, states.extent_bytes)
        self._states: list[torch.Tensor] = []
        self._kv: list[torch.Tensor] = []
        self._under_way = 0  # moves

    def begin(self, book: RequestCache) -> None:
        """Gives both stores the memory that a cache begins with. Raises OutOfMemory if there is none."""
        self._mover = MemoryMover(book, self.pages, self.states)
        # [slots, …] of each tensor. torch asks a GPU where the first slot lies, so that must have memory.
        self._states = [self._view(self.states, i, tensor.dtype) for i, tensor in enumerate(self._layout.states)]
        self._kv = [self._view(self.pages, i, tensor.dtype) for i, tensor in enumerate(self._layout.kv)]

    def _view(self, store: ElasticStore, index: int, dtype: torch.dtype) -> torch.Tensor:
        array = store.tensor(index)
        on_host = self._layout.device.type == "cpu"
        held = torch.from_numpy(array) if on_host else torch.as_tensor(array, device=self._layout.device)
        return held.view(dtype)  # numpy has no bfloat16

    def close(self) -> None:
        """Gives the memory back once nothing else uses it. With scrub it is set to zero before."""
        for store in (self.states, self.pages) if self._scrub else ():
            count = store.info().extent_count
            for extent in filter(store.is_mapped, range(store.info().extents)):
                self._clear(store, extent, count)
        self._states, self._kv = [], []
        for part in (self._mover, self.states, self.pages, self.memory):
            part.close()

    def _clear(self, store: ElasticStore, extent: int, count: int, stream: Any = None) -> None:
        store.clear(np.arange(extent * count, min((extent + 1) * count, store.slots), dtype=np.int32), stream)

    def carry_out(self, answer: PassPlan | PassCommit, stream: Any, *, wait: bool) -> int:
        """Carries out the memory work of an answer, after its other work. Answers how many moves have ended, with
        earlier ones. wait: for all of them."""
        self._under_way += len(answer.moves)
        if not self._under_way and not len(answer.kv_copies):
            return 0
        moves = answer.moves
        if self._scrub and len(moves):
            ended = self._mover.carry_out(MemoryPlan(answer.kv_copies, moves[:0]), stream=stream)
            for move in moves[moves["kind"] == _UNMAP]:
                store = self.pages if move["part"] == _OF_KV else self.states
                self._clear(store, int(move["extent"]), store.info().extent_count, stream)
            ended += self._mover.carry_out(MemoryPlan(answer.kv_copies[:0], moves), stream=stream, wait=wait)
        else:
            ended = self._mover.carry_out(answer, stream=stream, wait=wait)
        self._under_way -= ended
        return ended

    def read(self, tokens: int) -> DynamicCache:
        """As restore, of any contents."""
        pages, states = self.pages.info(), self.states.info()
        extent = next(filter(self.states.is_mapped, range(states.extents)))
        mapped = next(filter(self.pages.is_mapped, range(pages.extents)))
        first = mapped * pages.extent_count * self._page_tokens
        end = min((mapped + 1) * pages.extent_count, self.pages.slots) * self._page_tokens
        held = np.arange(first, end)
        return self.restore(extent * states.extent_count, np.resize(held, tokens))

    def restore(self, slot: int, kv: np.ndarray[Any, Any]) -> DynamicCache:
        """A DynamicCache with the state of `slot` and the KV of a prefix, whose tokens lie at kv [tokens]."""
        pages = self._on_device(kv[::self._page_tokens] // self._page_tokens)
        states = [memory[slot].reshape(1, *tensor.shape)
                  for memory, tensor in zip(self._states, self._layout.states, strict=True)]
        # [pages, page_tokens, …] → [1, tokens, …]
        rows = [memory.index_select(0, pages).flatten(0, 1)[:len(kv)].reshape(1, len(kv), *tensor.shape)
                for memory, tensor in zip(self._kv, self._layout.kv, strict=True)]
        return fill(self._config, self._layout, states, rows)

    def save_state(self, cache: DynamicCache, row: int, slot: int) -> None:
        """Copies the recurrent tensors of one row of a cache to `slot`."""
        for memory, tensor in zip(self._states, self._layout.states, strict=True):
            tensor.save(cache, row, memory[slot])

    def save_kv(self, cache: DynamicCache, row: int, first: int, kv: np.ndarray[Any, Any]) -> None:
        """Copies the KV of tokens [first, first + n) of one row of a cache to the places kv [n]."""
        pages, offsets = self._on_device(kv // self._page_tokens), self._on_device(kv % self._page_tokens)
        for memory, tensor in zip(self._kv, self._layout.kv, strict=True):
            held = tensor.read(cache)[row, first:first + len(kv)]
            memory.index_put_((pages, offsets), held.reshape(len(kv), *memory.shape[2:]))

    def _on_device(self, numbers: np.ndarray[Any, Any]) -> torch.Tensor:
        held = torch.from_numpy(numbers.astype(np.int64))
        if self._layout.device.type == "cpu":
            return held
        # From pinned memory the copy is only enqueued: a pass does not wait for the one before.
        return held.pin_memory().to(self._layout.device, non_blocking=True)


def kv_bytes_per_token(layout: CacheLayout) -> int:
    """Of all attention layers."""
    return bytes_of(layout.kv)


def state_bytes(layout: CacheLayout) -> int:
    """Of one state."""
    return bytes_of(layout.states)
