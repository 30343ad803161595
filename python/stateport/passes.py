# SPDX-License-Identifier: Apache-2.0
"""The plan of a request cache before a pass, and its commit after the pass.

The arrays are copies that are made when they are first read; they must be read before the next call that changes the
cache (later: ClosedError), and stay valid for ever then."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stateport import _c
from stateport._arrays import (
    KV_MOVE,
    REFUSED_BREAKPOINT,
    SLOT_COPY,
    STATE_SAVE,
    STEP_COMMIT,
    Int32s,
    Int64s,
    Records,
    copied,
)
from stateport.cache_arena import NO_KV_COPIES, NO_MOVES, answered_memory
from stateport.cache_tiers import NO_TRANSFERS, answered_transfers
from stateport.errors import ClosedError, InvalidArgument

Check = Callable[[], None]


def _array(plan: PassPlan | GroupPlan, member: str, count: int, dtype: Any) -> Any:
    with plan._turn:  # of the cache: a call of another thread would change the arrays
        plan._check()
        return copied(getattr(plan._struct, member), count, dtype)


class HitPlaces(NamedTuple):
    """The places of a hit in the memory of the cache. tokens: the length of the hit; 0: there is none, and the other
    members have no meaning. kv: id k holds the tokens [k, k + 1) * kv_tokens_per_id, at least those of the hit. state:
    holds the state after these tokens: a slot for checkpoints; in columns: a block of states."""

    tokens: int
    kv: Int32s
    kv_tokens_per_id: int
    state: int


class EndedRequests(NamedTuple):
    """Work to enqueue after requests have ended, before any later call: first the transfers (TRANSFER [n]), then the
    copies (SLOT_COPY [n], from live slots to slots for checkpoints). Empty but for a tree with separate_checkpoints."""

    transfers: Records
    copies: Records


class GroupPlan:
    """The work of a pass in one group of layers. Arrays [rows] are in the order of the batch.

    Before the pass: `clear` these slots, then enqueue `copies`. A row reads the conv window
    [read_bias, read_bias + W) of read_slot and the recurrent state of read_recurrent_slot (-1: it begins with the empty
    state), and writes the state at its end to write_slot. With drafts see stateport/c/request_types.h."""

    def __init__(self, struct: Any, rows: int, check: Check, turn: Any) -> None:
        self._struct, self._rows, self._check, self._turn = struct, rows, check, turn

    def _int32s(self, member: str) -> Int32s:
        array: Int32s = _array(self, member, self._rows, np.int32)
        return array

    @functools.cached_property
    def slot_count(self) -> Int32s:
        """[rows] how many blocks `slots` has."""
        return self._int32s("slot_count")

    @functools.cached_property
    def read_column(self) -> Int32s:
        """[rows] index into the row of the block table; -1: the row begins with the empty state."""
        return self._int32s("read_column")

    @functools.cached_property
    def read_bias(self) -> Int32s:
        """[rows] tokens past the state of read_column."""
        return self._int32s("read_bias")

    @functools.cached_property
    def read_slot(self) -> Int32s:
        """[rows] where the conv window is read."""
        return self._int32s("read_slot")

    @functools.cached_property
    def read_recurrent_slot(self) -> Int32s:
        """[rows] where the recurrent state is read."""
        return self._int32s("read_recurrent_slot")

    @functools.cached_property
    def write_column(self) -> Int32s:
        """[rows] index into the row of the block table."""
        return self._int32s("write_column")

    @functools.cached_property
    def write_slot(self) -> Int32s:
        """[rows] where the state at the row's end is written."""
        return self._int32s("write_slot")

    @functools.cached_property
    def clear(self) -> Int32s:
        """[n] slots that begin with the empty state, or (scrub) were another tenant's."""
        array: Int32s = _array(self, "clear", self._struct.clear_count, np.int32)
        return array

    @functools.cached_property
    def copies(self) -> Records:
        """[n] SLOT_COPY within the store, in any order."""
        array: Records = _array(self, "copies", self._struct.copy_count, SLOT_COPY)
        return array

    @functools.cached_property
    def saves(self) -> Records:
        """[n] STATE_SAVE: states that the pass writes on its way, ascending in row and offset."""
        array: Records = _array(self, "saves", self._struct.save_count, STATE_SAVE)
        return array

    def slots(self, row: int) -> Int32s:
        """The row of the block table (layout in columns), or the live slot, and for a fork the one that it reads."""
        count = int(self.slot_count[row])
        with self._turn:
            self._check()
            return copied(self._struct.slots[row % self._rows], count, np.int32)


class PassPlan:
    """A planned pass.

    ready: False: planned ahead, and where its rows begin depends on a pass that is not committed: `room` is known, and
    the commit of that pass tells the rest. rows_without_room: how many rows do not run; preempt a request for them.
    kv_tokens_per_id: block ids: the block size; with a tree one KV index a token. transfers: TRANSFER [n], which come
    before all else of the plan (CacheTiers). kv_copies: SLOT_COPY [n], moves: MEMORY_MOVE [n]:
    memory work behind all else of the plan, only with rows without room (CacheArena). fork_copies: of whole KV blocks,
    after the scrub and before the pass."""

    def __init__(self, owner: object, groups: int, turn: Any) -> None:
        self.owner, self._turn = owner, turn
        self._groups = (_c.GroupPlan * groups)()
        for group in self._groups:
            group.__init__()
        self._struct = _c.PassPlan(groups=self._groups, group_count=groups)
        self._current = True
        self.transfers: Records = NO_TRANSFERS
        self.kv_copies: Records = NO_KV_COPIES
        self.moves: Records = NO_MOVES

    def _check(self) -> None:
        if not self._current:
            raise ClosedError("the plan is older than the newest call of its cache: read its arrays before it")

    def forget(self) -> None:
        """Called by the cache when the memory of the plan may have changed."""
        self._current = False

    @property
    def address(self) -> int:
        """Of the struct of the C interface."""
        return ctypes.addressof(self._struct)

    @property
    def struct(self) -> Any:
        """That of the C interface."""
        return self._struct

    @property
    def pass_id(self) -> int:
        return int(self._struct.pass_)

    @property
    def ready(self) -> bool:
        return bool(self._struct.ready)

    @property
    def rows(self) -> int:
        return int(self._struct.rows)

    @property
    def rows_without_room(self) -> int:
        return int(self._struct.rows_without_room)

    @property
    def kv_tokens_per_id(self) -> int:
        return int(self._struct.kv_tokens_per_id)

    @functools.cached_property
    def room(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[rows] False: the row does not run, and nothing of it is planned."""
        array: np.ndarray[Any, np.dtype[np.bool_]] = _array(self, "room", self.rows, np.bool_)
        return array

    @functools.cached_property
    def start(self) -> Int64s:
        """[rows] the pass computes the tokens [start, start + tokens)."""
        array: Int64s = _array(self, "start", self.rows, np.int64)
        return array

    @functools.cached_property
    def kv_count(self) -> Int64s:
        """[rows] how many ids `kv` has."""
        array: Int64s = _array(self, "kv_count", self.rows, np.int64)
        return array

    def _scrub(self, what: str) -> Int32s:
        array: Int32s = _array(self, f"scrub_{what}", getattr(self._struct, f"scrub_{what}_count"), np.int32)
        return array

    @functools.cached_property
    def scrub_kv(self) -> Int32s:
        """[n] with CacheOptions.scrub: KV blocks that another tenant may have written, to be set to zero in every layer
        before the copies and the pass."""
        return self._scrub("kv")

    @functools.cached_property
    def scrub_scratch(self) -> Int32s:
        """[n] the same of scratch states (`in_scratch` of saves)."""
        return self._scrub("scratch")

    @functools.cached_property
    def scrub_draft_rows(self) -> Int32s:
        """[n] rows of the pass whose scratch memory for steps is to be set to zero."""
        return self._scrub("draft_rows")

    @functools.cached_property
    def fork_copies(self) -> Records:
        """[n] SLOT_COPY of whole KV blocks, src_slot to dst_slot, in every layer and in any order: a fork that begins
        inside a block writes to a copy of it."""
        array: Records = _array(self, "fork_copies", self._struct.fork_copy_count, SLOT_COPY)
        return array

    def kv(self, row: int, first: int = 0) -> Int32s:
        """The ids of a row from `first` on: id k holds the tokens [k, k + 1) * kv_tokens_per_id of the request."""
        count = int(self.kv_count[row]) - first
        if first < 0:
            raise InvalidArgument(f"first is {first}, and must not be negative")
        with self._turn:
            self._check()
            if count <= 0:
                return np.empty(0, np.int32)
            begin = ctypes.cast(self._struct.kv[row % self.rows], ctypes.c_void_p).value or 0
            return copied(begin + 4 * first, count, np.int32)

    @functools.cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The plan of each group of layers; with a layout in slots there is one."""
        self._check()
        return tuple(GroupPlan(group, self.rows, self._check, self._turn) for group in self._groups)

    def __repr__(self) -> str:
        return f"<PassPlan {self.pass_id}: {self.rows} rows, {self.rows_without_room} without room, ready={self.ready}>"


class GroupCommit:
    """Work to enqueue after a pass, for one group of layers: `steps`, then `from_scratch`, then `copies`."""

    def __init__(self, struct: Any) -> None:
        self.steps: Records = copied(struct.steps, struct.step_count, STEP_COMMIT)
        self.from_scratch: Records = copied(struct.from_scratch, struct.from_scratch_count, SLOT_COPY)
        self.copies: Records = copied(struct.copies, struct.copy_count, SLOT_COPY)


class PassCommit:
    """A committed pass.

    next: the complete plan of a pass that was planned ahead and was not ready; None: there is none.
    published_states: checkpoints that requests can start from, from now on. dropped_states: for which there was no
    room. refused_breakpoints: REFUSED_BREAKPOINT [n], named positions that the pass ran over without leaving a
    checkpoint: there was no room, or it could neither stop nor save there. kv_moves: KV_MOVE [n], with trees of
    drafts: KV of single tokens moves from the index src to dst in every layer, before all else and in this order.
    transfers: TRANSFER [n], which come before the copies (CacheTiers). kv_copies: SLOT_COPY [n], moves: MEMORY_MOVE
    [n]: memory work behind all else (CacheArena)."""

    def __init__(self, struct: Any, groups: Any, upcoming: PassPlan | None) -> None:
        self.transfers = answered_transfers(struct)
        self.kv_copies, self.moves = answered_memory(struct)
        self.groups = tuple(GroupCommit(group) for group in groups)
        self.published_states = int(struct.published_states)
        self.dropped_states = int(struct.dropped_states)
        self.refused_breakpoints: Records = copied(struct.refused_breakpoints, struct.refused_breakpoint_count,
                                                   REFUSED_BREAKPOINT)
        self.kv_moves: Records = copied(struct.kv_moves, struct.kv_move_count, KV_MOVE)
        self.next = upcoming if struct.has_next else None

    def __repr__(self) -> str:
        return f"<PassCommit: {self.published_states} states published, {self.dropped_states} dropped>"
