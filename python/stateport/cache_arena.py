# SPDX-License-Identifier: Apache-2.0
"""The arena of a request cache: moves of memory between KV and states as plain data, which the engine carries out."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from stateport import _c, _library
from stateport._arrays import MEMORY_MOVE, SLOT_COPY, Records, copied
from stateport._library import calls
from stateport.cache_options import ArenaUsage, plain
from stateport.errors import InvalidArgument

MOVE_KINDS: tuple[str, ...] = _c.MOVE_KIND
MEMORY_PARTS: tuple[str, ...] = _c.MEMORY_PART

NO_KV_COPIES, NO_MOVES = np.zeros(0, SLOT_COPY), np.zeros(0, MEMORY_MOVE)
NO_KV_COPIES.flags.writeable = NO_MOVES.flags.writeable = False


def answered_memory(struct: Any) -> tuple[Records, Records]:
    """Copies of `kv_copies` and `moves` of an answer."""
    return (copied(struct.kv_copies, struct.kv_copy_count, SLOT_COPY) if struct.kv_copy_count else NO_KV_COPIES,
            copied(struct.moves, struct.move_count, MEMORY_MOVE) if struct.move_count else NO_MOVES)


class MemoryPlan(NamedTuple):
    """Memory work that no answer has named: first kv_copies (SLOT_COPY [n]), then moves (MEMORY_MOVE [n])."""

    kv_copies: Records
    moves: Records


class CacheArena(_library.Object):
    """The part of RequestCache that speaks of memory which KV and states share (SlotLayout.arena). A plan and a commit
    name work that comes after all other work of that answer and of those before it:

        plan, insert, commit → (the work of the answer) → kv_copies → unmap, map → settle_move

    kv_copies (SLOT_COPY [n]) copy whole KV blocks in every layer, src_slot to dst_slot: they empty extents that moves
    unmap, and are enqueued before any later pass. The engine carries moves (MEMORY_MOVE [n]) out when it likes and in
    any order: nothing that a plan names depends on a move that is not settled. A move of kind "unmap": no later plan
    names the extent. A move of kind "map": plans may name the extent once the move is settled. Without an arena no
    answer has any, and settle_move, is_mapped and take_memory raise InvalidState."""

    def take_memory(self) -> MemoryPlan:
        """The memory work that no other answer has: of an `insert` that found no room, and maps that settled unmaps
        made possible."""
        out = _c.MemoryPlan()
        with self._turn:
            calls.request_cache_take_memory(self.handle, ctypes.byref(out))
            return MemoryPlan(*answered_memory(out))

    def settle_move(self, move: int, done: bool = True) -> None:
        """The move ended. done: False: the system refused it. A map that is not done leaves its extent unmapped, and
        another one is tried; after two refusals the cache asks for no further memory until some is given back. An unmap
        that is not done leaves its extent mapped. All ranks of a group settle each move at the same point of their
        calls, and as done only if it is done on all of them. Raises InvalidArgument for a move that is not under
        way."""
        calls.request_cache_settle_move(self.handle, move, 1 if done else 0)

    def is_mapped(self, part: str, extent: int) -> bool:
        """Whether plans may name the numbers of an extent of one of MEMORY_PARTS. An engine maps these extents before
        it makes the first plan. Raises InvalidArgument for an extent that does not exist."""
        if part not in MEMORY_PARTS:
            raise InvalidArgument(f"part is {part!r}, and must be one of {', '.join(MEMORY_PARTS)}")
        mapped = ctypes.c_uint8()
        calls.request_cache_is_mapped(self.handle, MEMORY_PARTS.index(part), extent, ctypes.byref(mapped))
        return bool(mapped.value)

    def arena_usage(self) -> ArenaUsage:
        """All zero without an arena."""
        out = _c.ArenaUsage()
        calls.request_cache_arena_usage(self.handle, ctypes.byref(out))
        usage: ArenaUsage = plain(ArenaUsage, out)
        return usage
