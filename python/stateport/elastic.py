# SPDX-License-Identifier: Apache-2.0
"""Memory that moves between the store of KV and the store of states while an engine serves."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import MEMORY_MOVE, address, records, slot_copies
from stateport._library import calls
from stateport._tensors import stream_handle
from stateport.cache_arena import MemoryPlan
from stateport.cache_options import plain
from stateport.passes import PassCommit, PassPlan
from stateport.request_cache import RequestCache
from stateport.runtime import ensure_started
from stateport.spec import StateSpec
from stateport.store import StateStore


@dataclasses.dataclass(frozen=True)
class ElasticUsage:
    """Physical memory, in bytes. granularity_bytes: memory comes in multiples of it. mapped_bytes: never above
    limit_bytes. held_bytes: mapped_bytes, and the memory that is kept to be mapped next; never above limit_bytes."""

    granularity_bytes: int
    limit_bytes: int
    mapped_bytes: int
    held_bytes: int


@dataclasses.dataclass(frozen=True)
class ElasticStoreInfo:
    """The extents of a store: extent e has the slots [e * extent_count, (e + 1) * extent_count). extent_bytes: of
    physical memory that one extent takes in all tensors. fixed_bytes: of physical memory of small tensors, which stay
    mapped (layout "layer_major" alone). mapped_extents: now."""

    extent_count: int
    extents: int
    extent_bytes: int
    fixed_bytes: int
    mapped_extents: int


class ElasticMemory(_library.Object):
    """Physical memory of the device under one limit, which several stores may share.

    limit_bytes: of physical memory at a time. granularity_bytes: memory comes in multiples of this: a power of two, and
    a multiple of the smallest granule that the device has (2 MiB on a GPU, a page on a host); 0: that granule. From 2
    MiB on, a build for CPUs asks the system for huge pages. Raises BackendError where the device cannot map memory."""

    def __init__(self, limit_bytes: int, *, granularity_bytes: int = 0) -> None:
        ensure_started()
        options = _c.ElasticOptions(limit_bytes=limit_bytes, granularity_bytes=granularity_bytes)
        super().__init__(calls.elastic_memory_create, calls.elastic_memory_destroy, ctypes.byref(options))

    def usage(self) -> ElasticUsage:
        out = _c.ElasticUsage()
        calls.elastic_memory_usage(self.handle, ctypes.byref(out))
        usage: ElasticUsage = plain(ElasticUsage, out)
        return usage

    def __repr__(self) -> str:
        if self.closed:
            return "<ElasticMemory, closed>"
        usage = self.usage()
        return f"<ElasticMemory: {usage.mapped_bytes:,} of {usage.limit_bytes:,} bytes are mapped>"


class ElasticStore(StateStore):
    """A StateStore with addresses for all of its slots, of which no extent has memory yet. Addresses never change:
    arrays of `tensor` stay valid. Use of a slot whose extent is not mapped ends the process (SIGSEGV), or is a fault of
    the device. A store of KV has a slot for each block, and the keys and the values of each layer are its tensors.

    Raises OutOfMemory when the system has no such addresses, or when there is no memory for the tensors that stay
    mapped."""

    def __init__(self, memory: ElasticMemory, spec: StateSpec, slots: int, *, layout: str = "layer_major",
                 stream: Any = None) -> None:
        self.memory = memory
        self._make(calls.elastic_store_create, (_library.handle_of("memory", memory, ElasticMemory),), spec, slots,
                   layout, stream)

    def info(self) -> ElasticStoreInfo:
        out = _c.ElasticStoreInfo()
        calls.elastic_store_describe(self.handle, ctypes.byref(out))
        info: ElasticStoreInfo = plain(ElasticStoreInfo, out)
        return info

    def is_mapped(self, extent: int) -> bool:
        """Whether an extent has memory. Raises InvalidArgument for one that does not exist; so do the others."""
        mapped = ctypes.c_uint8()
        calls.elastic_store_is_mapped(self.handle, integer("extent", extent, 0, 2**31 - 1), ctypes.byref(mapped))
        return bool(mapped.value)

    def map(self, extent: int) -> None:
        """Gives an extent memory, with undefined contents. Raises OutOfMemory when the limit or the system refuses,
        InvalidArgument if it is mapped, InvalidState while a MemoryMover has the store."""
        calls.elastic_store_map(self.handle, integer("extent", extent, 0, 2**31 - 1))

    def unmap(self, extent: int) -> None:
        """Takes the memory of an extent away. The caller sees to it that no work uses the extent any more. Raises
        InvalidArgument if it is not mapped, InvalidState while a MemoryMover has the store."""
        calls.elastic_store_unmap(self.handle, integer("extent", extent, 0, 2**31 - 1))


class MemoryMover(_library.Object):
    """Carries out the memory work of a cache with an arena between the stores of its KV and of its states, and settles
    its moves. Make it before the first plan: it maps the extents that the cache counts as mapped. It keeps the cache
    and the stores. For a cache alone: ranks of a group map and unmap by themselves, and settle each move when it ended
    on all of them.

    Raises InvalidArgument for stores with other extents or slots than the cache, InvalidState for a cache without an
    arena or with moves, for a store that another mover has, and for one of which an extent is mapped."""

    def __init__(self, cache: RequestCache, kv: ElasticStore, states: ElasticStore) -> None:
        super().__init__(calls.memory_mover_create, calls.memory_mover_destroy,
                         _library.handle_of("cache", cache, RequestCache),
                         _library.handle_of("kv", kv, ElasticStore), _library.handle_of("states", states, ElasticStore))

    def carry_out(self, answer: PassPlan | PassCommit | MemoryPlan | None = None, *, stream: Any = None,
                  wait: bool = False) -> int:
        """Carries out `kv_copies` and `moves` of an answer, after its other work was enqueued on `stream`, and settles
        the moves that have ended; answers how many. Maps that these make possible are carried out besides, once all
        answers are. wait: waits for the stream, so that all of them end; else unmaps whose time has not come are left
        to a later call. Every answer with moves is carried out once, in the order of
        the answers. None: there is no new one. Raises InvalidArgument for moves that are not the next ones of the
        cache."""
        ended = ctypes.c_size_t()
        plan = _c.MemoryPlan()
        if answer is not None:
            copies = slot_copies("kv_copies", answer.kv_copies)
            moves = records("moves", answer.moves, MEMORY_MOVE)
            plan = _c.MemoryPlan(kv_copies=address(copies), kv_copy_count=len(copies), moves=address(moves),
                                 move_count=len(moves))
        calls.memory_mover_carry_out(self.handle, stream_handle(stream), ctypes.byref(plan), 1 if wait else 0,
                                     ctypes.byref(ended))
        return ended.value
