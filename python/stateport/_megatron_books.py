# SPDX-License-Identifier: Apache-2.0
"""The attributes of Megatron-LM's MambaSlotAllocator that other code reads: they repeat the decisions of a
SlotAllocator."""

from __future__ import annotations

import torch

from stateport._arrays import Int32s
from stateport.errors import InternalError
from stateport.slot_allocator import SlotAllocator


class MegatronBooks:
    """block_to_slot, slot_to_block: int32, -1: none. free_slots: int32, a stack of free_count. hash_to_block_id: of
    states that can be found. `_unwritten`: layers, by block with a slot."""

    def _begin_books(self, blocks: int, slots: int, layers: int) -> None:
        self._layers = layers
        self.block_to_slot = torch.full((blocks,), -1, dtype=torch.int32)
        self.slot_to_block = torch.full((slots,), -1, dtype=torch.int32)
        self.free_slots = torch.arange(slots, dtype=torch.int32)
        self.free_count = slots
        self.hash_to_block_id: dict[int, int] = {}
        self._hashes: dict[int, int] = {}  # registered, by block
        self._unwritten: dict[int, set[int]] = {}

    def _note_slots(self, blocks: Int32s, slots: Int32s) -> None:
        for block, slot in zip(blocks.tolist(), slots.tolist(), strict=True):
            if slot < 0 or int(self.block_to_slot[block]) == slot:
                continue
            victim = int(self.slot_to_block[slot])
            if victim < 0:
                self.free_count -= 1  # new slots are the top of the stack, in stored order
            else:
                self._forget(victim)
            self.block_to_slot[block], self.slot_to_block[slot] = slot, block
            self._unwritten[block] = set(range(self._layers))

    def _note_freed(self, blocks: Int32s) -> None:
        for block in dict.fromkeys(blocks.tolist()):
            slot = int(self.block_to_slot[block])
            if slot < 0:
                continue
            self._forget(block)
            self.slot_to_block[slot] = -1
            self.free_slots[self.free_count] = slot
            self.free_count += 1

    def _note_hash(self, block: int, hash_: int) -> None:
        self._unname(block)
        self._hashes[block] = hash_
        self.hash_to_block_id[hash_] = block

    def _forget(self, block: int) -> None:
        self.block_to_slot[block] = -1
        self._unwritten.pop(block)
        self._unname(block)

    def _unname(self, block: int) -> None:
        hash_ = self._hashes.pop(block, None)
        if hash_ is not None and self.hash_to_block_id.get(hash_) == block:
            del self.hash_to_block_id[hash_]

    def _check_books(self, states: SlotAllocator) -> None:
        def require(fits: bool, what: str) -> None:
            if not fits:
                raise InternalError(f"MambaSlotAllocator: {what} differs from the allocator's")

        slots = [states.slot_of(block) for block in range(states.blocks)]
        require(self.block_to_slot.tolist() == slots, "block_to_slot")
        owners = [slots.index(slot) if slot in slots else -1 for slot in range(states.slots)]
        require(self.slot_to_block.tolist() == owners, "slot_to_block")
        free = sorted(slot for slot, owner in enumerate(owners) if owner < 0)
        require(sorted(self.free_slots[:self.free_count].tolist()) == free, "free_slots")
        info = states.info()
        require(info.free_slots == self.free_count, "free_count")
        found = {hash_: states.find_state([hash_]) for hash_ in self.hash_to_block_id}
        named = {hash_: state.block for hash_, state in found.items() if state is not None}
        require(named == self.hash_to_block_id and info.registered_states == len(named), "hash_to_block_id")
