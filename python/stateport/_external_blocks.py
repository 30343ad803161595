# SPDX-License-Identifier: Apache-2.0
"""KV blocks of an engine that reports no changes: its tables are read when a slot allocator must know the state of a
block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stateport._arrays import Int32s, Int64s
from stateport.slot_allocator import SlotAllocator

Bools = npt.NDArray[np.bool_]
_NEVER = np.iinfo(np.int64).min


class ExternalBlocks:
    """Tells a SlotAllocator with external blocks which are referenced, and in which order the others were used.

    Every block is registered from the start, with a hash of its own: a block without references then keeps its state
    until the engine says that its content is gone. hide() makes some of them nameless for a while."""

    def __init__(self, states: SlotAllocator) -> None:
        self._states = states
        self._held: Bools = np.zeros(states.blocks, np.bool_)
        self._used: Int64s = np.full(states.blocks, _NEVER, np.int64)  # as reported
        self._newest = _NEVER
        self._register(np.arange(states.blocks, dtype=np.int32))

    def _register(self, blocks: Int32s) -> None:
        self._states.retain_blocks(blocks)
        self._states.register_blocks(blocks, blocks.astype(np.int64) + 1)
        self._states.release_blocks(blocks)

    def hide(self, blocks: Int32s) -> None:
        """Takes their hashes from blocks without a state."""
        held = blocks[self._held[blocks]]
        self._states.release_blocks(held)
        self._held[held] = False
        self._states.deregister_blocks(blocks)

    def show(self, blocks: Int32s) -> None:
        self._register(blocks)
        self._used[blocks] = _NEVER

    def tell(self, blocks: Int32s, referenced: Bools, used: Int64s) -> None:
        """Reports blocks with a state: whether a request uses them, and when each was used last. O(blocks). Reports
        only blocks that were used since the last call, unless the clock went back."""
        held = self._held[blocks]
        taken, left = blocks[referenced & ~held], blocks[~referenced & held]
        self._states.retain_blocks(taken)
        self._states.release_blocks(left)
        self._held[taken], self._held[left] = True, False
        self._used[left] = _NEVER
        idle, stamps = blocks[~referenced], used[~referenced]
        changed = stamps != self._used[idle]
        if not changed.any():
            return
        if stamps[changed].min() < self._newest:  # all again, in order
            self._used[:], self._newest = _NEVER, _NEVER
            changed[:] = True
        for stamp in np.unique(stamps[changed]):
            if stamp > self._newest:
                self._states.advance_tick()
                self._newest = stamp
            now = idle[changed & (stamps == stamp)]
            self._states.retain_blocks(now)
            self._states.release_blocks(now)
        self._used[idle] = stamps
