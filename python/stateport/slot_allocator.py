# SPDX-License-Identifier: Apache-2.0
"""Checkpoints found by block hash: which KV block has a state, and in which slot."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import struct_of
from stateport._arrays import SLOT_COPY, Int32s, Records, address, int32s, int64s
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.eviction import Eviction, ReuseHint

POLICIES: tuple[str, ...] = _c.BLOCK_POLICY
TAG_CHECKS: tuple[str, ...] = _c.TAG_CHECK


@dataclasses.dataclass(frozen=True)
class StateTag:
    """The content of a slot: the state after exactly `token_count` tokens of a prefix (see hash_blocks), in one layout
    (StateSpec.fingerprint). token_count -1: nothing."""

    token_count: int = -1
    prefix: tuple[int, int] = (0, 0)
    layout_fingerprint: int = 0

    def struct(self) -> Any:
        return _c.Tag(token_count=self.token_count, prefix=(ctypes.c_uint64 * 2)(*self.prefix),
                      layout_fingerprint=self.layout_fingerprint)


@dataclasses.dataclass(frozen=True)
class SlotVictim:
    """A state that is evicted; its block keeps its KV and its hash. hash: under which the state was registered; not
    positive if it was not."""

    block: int
    slot: int
    tag: StateTag
    hash: int


@dataclasses.dataclass(frozen=True)
class FoundState:
    """index: of the hash that has a state."""

    index: int
    block: int
    slot: int


@dataclasses.dataclass(frozen=True)
class AllocatorInfo:
    """free_blocks, cached_blocks: of the allocator's own pool; cached ones can be evicted. registered_states: found by
    hash. evictions: of states, since the start. external_blocks: those of the engine's that are registered."""

    free_blocks: int
    cached_blocks: int
    free_slots: int
    registered_states: int
    evictions: int
    external_blocks: int


class SlotAllocator(_library.Object):
    """Gives KV blocks slots for the state at their end, and finds states by hash. It moves no byte.

    blocks: ids 0 … blocks - 1; of an own pool the last one is never handed out.
    policy: whether a registered block stays cached without references ("lru") or is dropped ("ref_zero").
    eviction: which states are evicted; None: the least recently used.
    external_blocks: the blocks are of the engine's own KV pool, which reports their changes (retain_blocks,
    release_blocks, register_blocks, deregister_blocks).
    on_victim is called for each state that is evicted, before its slot is used again; it must not raise or call the
    allocator.

    Raises InvalidArgument for a block or a slot out of range; nothing has changed then."""

    def __init__(self, blocks: int, slots: int, *, policy: str = "lru", eviction: Eviction | None = None,
                 external_blocks: bool = False, on_victim: Callable[[SlotVictim], None] | None = None) -> None:
        if policy not in POLICIES:
            raise InvalidArgument(f"policy is {policy!r}, and must be one of {', '.join(POLICIES)}")
        options = _c.SlotAllocatorOptions(blocks=_int32("blocks", blocks), slots=_int32("slots", slots),
                                          policy=POLICIES.index(policy), external_blocks=external_blocks,
                                          eviction=struct_of("eviction", eviction, Eviction))
        if on_victim is not None:
            options.on_victim = lambda row, _: on_victim(_victim(row.contents))
        self._options = options  # holds on to the callback
        self.blocks, self.slots = blocks, slots
        super().__init__(calls.slot_allocator_create, calls.slot_allocator_destroy, ctypes.byref(options))

    def info(self) -> AllocatorInfo:
        out = _c.SlotAllocatorInfo()
        calls.slot_allocator_describe(self.handle, ctypes.byref(out))
        return AllocatorInfo(*(int(getattr(out, field.name)) for field in dataclasses.fields(AllocatorInfo)))

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def allocate_blocks(self, count: int) -> Int32s:
        """[count] blocks with one reference each, evicting cached ones if needed. Raises NoCapacity."""
        if count < 0:
            raise InvalidArgument(f"count is {count}, and must not be negative")
        out = np.empty(count, np.int32)
        calls.slot_allocator_allocate_blocks(self.handle, address(out), count)
        return out

    def retain_blocks(self, blocks: Any) -> None:
        """One reference more for each occurrence. External blocks begin with it."""
        self._each(calls.slot_allocator_retain_blocks, blocks)

    def release_blocks(self, blocks: Any) -> None:
        """One less. Of an external block that then has none the state stays if it is registered, else it is gone."""
        self._each(calls.slot_allocator_release_blocks, blocks)

    def register_blocks(self, blocks: Any, hashes: Any, parents: Any = None) -> None:
        """Makes the KV of full blocks findable. parents[i]: the hash of the block before it, 0 for none."""
        ids, keys = int32s("blocks", blocks), int64s("hashes", hashes)
        above = None if parents is None else int64s("parents", parents)
        for name, array in (("hashes", keys), ("parents", above)):
            if array is not None and len(array) != len(ids):
                raise InvalidArgument(f"{name} has {len(array)} elements, and must have {len(ids)}, as blocks has")
        calls.slot_allocator_register_blocks(self.handle, address(ids), address(keys),
                                             None if above is None else address(above), len(ids))

    def deregister_blocks(self, blocks: Any) -> None:
        """External blocks, without references, that the engine evicted: their states are gone."""
        self._each(calls.slot_allocator_deregister_blocks, blocks)

    def clear_blocks(self) -> None:
        """The engine dropped all of its blocks."""
        calls.slot_allocator_clear_blocks(self.handle)

    def find_blocks(self, hashes: Any) -> Int32s:
        """The blocks of the leading hashes, up to the first that no block has."""
        keys = int64s("hashes", hashes)
        out, found = np.empty(len(keys), np.int32), ctypes.c_size_t()
        calls.slot_allocator_find_blocks(self.handle, address(keys), len(keys), address(out), ctypes.byref(found))
        return out[:found.value]

    def advance_tick(self) -> None:
        """Advances the clock of last use, once per step of the engine."""
        calls.slot_allocator_advance_tick(self.handle)

    # --- States ------------------------------------------------------------------------------------------------------

    def allocate_slots(self, blocks: Any) -> Int32s:
        """[n] the slots of blocks[n]: those that have one keep it, others take free ones, then those of victims, never
        of a block of this call. Raises NoCapacity, nothing changed."""
        ids = int32s("blocks", blocks)
        out = np.empty(len(ids), np.int32)
        calls.slot_allocator_allocate_slots(self.handle, address(ids), len(ids), address(out))
        return out

    def evict(self, states: int) -> int:
        """Evicts states, whose slots are free then. How many: fewer if the rest is referenced or pinned."""
        out = ctypes.c_int64()
        calls.slot_allocator_evict(self.handle, states, ctypes.byref(out))
        return out.value

    def peek_victims(self, count: int) -> list[SlotVictim]:
        """The states that would be evicted next, in order. Nothing changes."""
        if count < 0:
            raise InvalidArgument(f"count is {count}, and must not be negative")
        rows, found = _c.room(_c.SlotVictim, count), ctypes.c_size_t()
        calls.slot_allocator_peek_victims(self.handle, rows, count, ctypes.byref(found))
        return [_victim(rows[i]) for i in range(found.value)]

    def slot_of(self, block: int) -> int:
        """-1: the block has none."""
        out = ctypes.c_int32()
        calls.slot_allocator_slot_of(self.handle, _int32("block", block), ctypes.byref(out))
        return out.value

    def set_tag(self, block: int, tag: StateTag) -> None:
        """Sets the content of a block's slot, once the copy into it was enqueued."""
        calls.slot_allocator_set_tag(self.handle, _int32("block", block), ctypes.byref(tag.struct()))

    def register_states(self, blocks: Any, hashes: Any) -> None:
        """Makes states findable; hashes <= 0 are skipped. A block without a slot is refused. Tag them first."""
        ids, keys = int32s("blocks", blocks), int64s("hashes", hashes)
        if len(keys) != len(ids):
            raise InvalidArgument(f"hashes has {len(keys)} elements, and must have {len(ids)}, as blocks has")
        calls.slot_allocator_register_states(self.handle, address(ids), address(keys), len(ids))

    def note_served(self, hashes: Any, *, usable_blocks: int, matched_blocks: int = 0, hit_blocks: int = 0,
                    now_s: float = 0.0, hint: ReuseHint | None = None) -> None:
        """Reports a request to the eviction policy, once its states are tagged and registered. hashes: of its full
        blocks. usable_blocks: (tokens - 1) // block size. matched_blocks: whose KV was cached before. hit_blocks: the
        state that it continued from. now_s: the caller's clock, which never goes back."""
        keys = int64s("hashes", hashes)
        prompt = _c.ServedPrompt(now_s=now_s, hashes=address(keys), count=len(keys), usable_blocks=usable_blocks,
                                 matched_blocks=matched_blocks, hit_blocks=hit_blocks,
                                 hint=struct_of("hint", hint, ReuseHint))
        calls.slot_allocator_note_served(self.handle, ctypes.byref(prompt))

    def find_state(self, hashes: Any) -> FoundState | None:
        """The last of the hashes that has a state."""
        keys, out = int64s("hashes", hashes), _c.FoundState()
        calls.slot_allocator_find_state(self.handle, address(keys), len(keys), ctypes.byref(out))
        return None if out.index < 0 else FoundState(out.index, out.block, out.slot)

    def restore(self, block: int, live_slot: int, wanted: StateTag) -> tuple[str, Records]:
        """Compares the state of a block with the wanted one: one of TAG_CHECKS, and for "match" the copy (SLOT_COPY
        [1]) that brings it into a slot of the store of live states, else no copy."""
        out = _c.Restore()
        calls.slot_allocator_restore(self.handle, _int32("block", block), _int32("live_slot", live_slot),
                                     ctypes.byref(wanted.struct()), ctypes.byref(out))
        copies = np.frombuffer(bytes(out.copy), SLOT_COPY)
        return TAG_CHECKS[out.check], copies if out.check == 0 else copies[:0]

    def withdraw(self, block: int) -> None:
        """Hides a state before its slot is written again; the slot stays."""
        calls.slot_allocator_withdraw(self.handle, _int32("block", block))

    def invalidate(self, blocks: Any) -> None:
        """Gives the slots of blocks back, in this order; those without one are passed over."""
        self._each(calls.slot_allocator_invalidate, blocks)

    def pin(self, block: int) -> int:
        """Forbids the eviction of a state while a copy is in flight. Its slot, for unpin."""
        out = ctypes.c_int32()
        calls.slot_allocator_pin(self.handle, _int32("block", block), ctypes.byref(out))
        return out.value

    def unpin(self, slot: int) -> None:
        calls.slot_allocator_unpin(self.handle, _int32("slot", slot))

    @contextlib.contextmanager
    def pinned(self, block: int) -> Iterator[int]:
        """with allocator.pinned(block) as slot: the state is not evicted."""
        slot = self.pin(block)
        try:
            yield slot
        finally:
            self.unpin(slot)

    def check_invariants(self) -> None:
        """Recounts everything. Raises InternalError naming the first fault."""
        calls.slot_allocator_check(self.handle)

    def _each(self, call: Callable[..., None], blocks: Any) -> None:
        ids = int32s("blocks", blocks)
        call(self.handle, address(ids), len(ids))

    def __repr__(self) -> str:
        return f"<SlotAllocator of {self.blocks} blocks, {self.info()}>" if self._usable else "<SlotAllocator, closed>"


def _int32(name: str, value: int) -> int:
    return int(int32s(name, [value])[0])


def _victim(row: Any) -> SlotVictim:
    tag = StateTag(int(row.token_count), (int(row.prefix[0]), int(row.prefix[1])), int(row.layout_fingerprint))
    return SlotVictim(int(row.block), int(row.slot), tag, int(row.hash))
