# SPDX-License-Identifier: Apache-2.0
"""Which states a prefill saves on its way, and the slots they get."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arrays import SLOT_COPY, Int32s, Records, copied, int32s
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.slot_allocator import SlotAllocator

MAX_CHECKPOINTS = 3  # of a row, beside the one at its end


@dataclasses.dataclass(frozen=True)
class PlannedCheckpoints:
    """The states that one row saves: the state after offsets[i] tokens of the forward belongs to blocks[i], the one at
    the end of the prompt to end_block, or -1."""

    offsets: tuple[int, ...]
    blocks: tuple[int, ...]
    end_block: int


@dataclasses.dataclass(frozen=True)
class CheckpointCommit:
    """Copies (SLOT_COPY [n]) into slots of the store of checkpoints. from_scratch: src counts the states that the scan
    saved, packed by row. from_live: src is a live slot. dropped: checkpoints that found no slot."""

    from_scratch: Records
    from_live: Records
    dropped: int


class CheckpointPlanner(_library.Object):
    """Plans the checkpoints of a prefill batch, and brings them into slots:

        plan (each row) → device_arrays → forward → commit → copies enqueued → publish
                                                      └──────── abandon ◄──┘

    Checkpoints are optional: one that finds no slot is dropped and counted. No state is found by hash before publish.
    alignment_tokens: the scan kernel can save a state at multiples of it in a chunk. max_rows: prefill rows of a step.
    layout_fingerprint: StateSpec.fingerprint."""

    def __init__(self, allocator: SlotAllocator, *, block_size_tokens: int = 256, alignment_tokens: int = 128,
                 max_rows: int = 1, layout_fingerprint: int = 0) -> None:
        self.max_rows = max_rows
        self._allocator = allocator  # its callback must outlive the planner
        values = int32s("options", [block_size_tokens, alignment_tokens, max_rows])
        options = _c.CheckpointOptions(block_size_tokens=int(values[0]), alignment_tokens=int(values[1]),
                                       max_rows=int(values[2]), layout_fingerprint=layout_fingerprint)
        super().__init__(calls.checkpoint_planner_create, calls.checkpoint_planner_destroy, allocator.handle,
                         ctypes.byref(options))

    def plan(self, row: int, *, live_slot: int, prompt_tokens: int, chunk_tokens: int, finished_tokens: int = 0,
             skip_tokens: int = 0, matched_blocks: int = 0, required_blocks: int, blocks: Any,
             prefixes: Any) -> PlannedCheckpoints:
        """Plans one row, which runs tokens [finished + skip, finished + chunk) of its prompt; chunk_tokens counts the
        skipped ones. matched_blocks: where the request leaves the shared prefix. required_blocks: that the prompt
        touches up to the end of the chunk. blocks [n]: of the request. prefixes [full blocks, 2]: see hash_blocks. A
        second plan of a row replaces the first. Raises InvalidArgument for a chunk outside its prompt."""
        ids = int32s("blocks", blocks)
        above = np.ascontiguousarray(prefixes, np.uint64)
        if above.ndim != 2 or above.shape[1] != 2:
            raise InvalidArgument(f"prefixes has the shape {above.shape}, and must be [full blocks, 2]")
        chunk = _c.PrefillChunk(
            row=row, live_slot=live_slot, prompt_tokens=prompt_tokens, finished_tokens=finished_tokens,
            skip_tokens=skip_tokens, chunk_tokens=chunk_tokens, matched_blocks=matched_blocks,
            required_blocks=required_blocks, block_count=len(ids), prefix_count=len(above))
        if len(ids):
            chunk.blocks = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        if len(above):
            chunk.prefixes = above.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
        out, done = _c.PlannedCheckpoints(), ctypes.c_size_t()
        calls.checkpoint_planner_plan(self.handle, ctypes.byref(chunk), 1, ctypes.byref(out), ctypes.byref(done))
        return PlannedCheckpoints(tuple(out.offsets[:out.count]), tuple(out.blocks[:out.count]), out.end_block)

    def device_arrays(self, rows: int) -> tuple[Int32s, Int32s] | None:
        """For the scan kernels: offsets [rows, 3], 0 behind a row's count, and counts [rows]. None: nothing is due."""
        out = _c.CheckpointArrays()
        calls.checkpoint_planner_device_arrays(self.handle, rows, ctypes.byref(out))
        if not out.counts:
            return None
        offsets = copied(out.offsets, rows * MAX_CHECKPOINTS, np.int32).reshape(rows, MAX_CHECKPOINTS)
        return offsets, copied(out.counts, rows, np.int32)

    def commit(self) -> CheckpointCommit:
        """Gives slots to the planned checkpoints and lists the copies. A block that several rows name is copied once,
        from the last. Blocks without a hash get no slot. Raises InvalidState while a commit is pending."""
        out = _c.CheckpointCommit()
        calls.checkpoint_planner_commit(self.handle, ctypes.byref(out))
        return CheckpointCommit(copied(out.from_scratch, out.scratch_count, SLOT_COPY),
                                copied(out.from_live, out.live_count, SLOT_COPY), int(out.dropped))

    def publish(self) -> None:
        """The copies were enqueued: tags and hashes are set, the states can be found."""
        calls.checkpoint_planner_publish(self.handle)

    def abandon(self) -> None:
        """They were not: slots that hold nothing go back."""
        calls.checkpoint_planner_abandon(self.handle)

    def clear(self) -> None:
        """Forgets the plan."""
        calls.checkpoint_planner_clear(self.handle)

    def check_invariants(self) -> None:
        """Recounts everything. Raises InternalError naming the first fault."""
        calls.checkpoint_planner_check(self.handle)


def scratch_slots_bound(max_tokens: int, block_size_tokens: int, max_requests: int) -> int:
    """Scratch slots that one step can need."""
    out = ctypes.c_int32()
    calls.scratch_slots_bound(max_tokens, block_size_tokens, max_requests, ctypes.byref(out))
    return out.value
