# SPDX-License-Identifier: Apache-2.0
"""The index by block-table column, for engines whose kernels address states by block tables and which schedule
otherwise than RequestCache does. AlignPlanner decides on the host, AlignContext on the device."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arrays import SLOT_COPY, Int32s, Records, address, copied, int32s, int64s, room
from stateport._library import calls
from stateport._tensors import describe, device_int32s, stream_handle
from stateport.cache_options import ALIGN_MODES
from stateport.errors import InvalidArgument
from stateport.runtime import ensure_started
from stateport.store import StateStore


@dataclasses.dataclass(frozen=True)
class AlignGroup:
    """Layers that share a block table.

    blocks: block ids are below; block 0 is null. conv_window: the shortest of the group's conv states; 0: it has none.
    retention_tokens: distance of the columns that are kept; 0: all are kept; -1: named boundaries alone."""

    block_size_tokens: int
    blocks: int
    conv_window: int = 0
    retention_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class AlignStep:
    """The plan of one step: copies over all groups, and parts of copies without a valid block at an end."""

    copies: int
    skipped_parts: int


def _options(groups: Sequence[AlignGroup], max_requests: int, drafts: int, mode: str) -> Any:
    if mode not in ALIGN_MODES:
        raise InvalidArgument(f"mode is {mode!r}, and must be one of {', '.join(ALIGN_MODES)}")
    rows = (_c.AlignGroup * len(groups))(*(_c.AlignGroup(**dataclasses.asdict(group)) for group in groups))
    return _c.AlignOptions(drafts=drafts, max_requests=max_requests, groups=rows, group_count=len(groups),
                           mode=ALIGN_MODES.index(mode))


class AlignPlanner(_library.Object):
    """Decides on the host which states a step copies:

        add_requests → [ pre_step → copies, forward → accept → post_step → copies ]… → forget

    Requests are slots below max_requests; negative ones are skipped. mode: one of "align", "none", "all"."""

    def __init__(self, groups: Sequence[AlignGroup], *, max_requests: int, drafts: int = 0,
                 mode: str = "align") -> None:
        options = _options(groups, max_requests, drafts, mode)
        self._max_requests = max_requests
        super().__init__(calls.align_planner_create, calls.align_planner_destroy, ctypes.byref(options))

    def add_requests(self, requests: Any, computed: Any) -> None:
        """Starts requests (again), each with its number of computed tokens."""
        rows, tokens = int32s("requests", requests), int64s("computed", computed)
        _same("computed", tokens, rows)
        calls.align_planner_add_requests(self.handle, address(rows), address(tokens), len(rows))

    def forget(self, requests: Any) -> None:
        """Finished, preempted or resumed ones; one that is not remembered is harmless."""
        rows = int32s("requests", requests)
        calls.align_planner_forget(self.handle, address(rows), len(rows))

    def pre_step(self, request: Any, computed: Any, scheduled: Any, drafts: Any, tables: Sequence[Any]) -> AlignStep:
        """Before the forward. int32 [rows] each, in batch order: tokens before the step, tokens of the step with
        drafts, drafts. tables: one for each group, block ids int32 [rows, columns]."""
        return self._step(calls.align_planner_pre_step, tables, request=request, computed=computed, scheduled=scheduled,
                          drafts=drafts)

    def accept(self, request: Any, sampled: Any) -> None:
        """After sampling: sampled [rows] tokens of each request."""
        rows, tokens = int32s("request", request), int32s("sampled", sampled)
        _same("sampled", tokens, rows)
        calls.align_planner_accept(self.handle, address(rows), address(tokens), len(rows))

    def post_step(self, request: Any, computed: Any, scheduled: Any, drafts: Any, tables: Sequence[Any]) -> AlignStep:
        """After accept; the arrays of pre_step."""
        return self._step(calls.align_planner_post_step, tables, request=request, computed=computed,
                          scheduled=scheduled, drafts=drafts)

    def post_step_advanced(self, request: Any, computed: Any, tables: Sequence[Any]) -> AlignStep:
        """After accept, where `computed` counts the tokens after the step."""
        return self._step(calls.align_planner_post_step_advanced, tables, request=request, computed=computed)

    def _step(self, call: Any, tables: Sequence[Any], **arrays: Any) -> AlignStep:
        batch = {name: int32s(name, values) for name, values in arrays.items()}
        for name, values in batch.items():
            _same(name, values, batch["request"])
        given = _c.AlignBatch(rows=len(batch["request"]), **{name: address(values) for name, values in batch.items()})
        ids = [_table(f"tables[{i}]", table) for i, table in enumerate(tables)]
        rows = (_c.BlockTable * len(ids))(*(
            _c.BlockTable(ids=address(table), id_count=table.size, row_stride=table.shape[1],
                          columns=table.shape[1]) for table in ids))
        out = _c.AlignStep()
        with self._turn:
            call(self.handle, ctypes.byref(given), rows, len(ids), ctypes.byref(out))
        return AlignStep(out.copies, out.skipped_parts)

    def plan(self, group: int) -> Records:
        """SLOT_COPY [n] of the last step for one group, for SlotCopier.copy_shifted. Slots are block ids."""
        copies, count = ctypes.c_void_p(), ctypes.c_size_t()
        with self._turn:
            calls.align_planner_plan(self.handle, group, ctypes.byref(copies), ctypes.byref(count))
            return copied(copies, count.value, SLOT_COPY)

    def columns(self, group: int) -> Int32s:
        """[max_requests] the running column of each request slot of a group; -1: it begins with the empty state; -2:
        no request is in the slot."""
        out = _c.AlignArrays()
        calls.align_planner_arrays(self.handle, group, ctypes.byref(out))
        return copied(out.columns, self._max_requests, np.int32)

    def gather_accepted(self, group: int, request: Any) -> Int32s:
        """[rows] accepted counts in batch order for the forward; 1 for rows that are skipped."""
        rows = int32s("request", request)
        out = np.empty(len(rows), np.int32)
        calls.align_planner_gather_accepted(self.handle, group, address(rows), len(rows), address(out))
        return out

    def retention(self, group: int, start_column: int, columns: int,
                  boundaries: Any = ()) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[columns] whether column start_column + i is kept: by the group's retention_tokens, or because it ends at or
        last before one of `boundaries` (tokens)."""
        named, keep = int64s("boundaries", boundaries), room("columns", columns, np.uint8)
        calls.align_planner_retention(self.handle, group, start_column, address(named), len(named), address(keep),
                                      len(keep))
        return keep.astype(np.bool_)

    def checkpoint_in(self, group: int, *, start: int, end: int, position: int, hash_block: int,
                      alignment: int = 0) -> tuple[int, int]:
        """Where a checkpoint at `position` inside the prefill chunk [start, end) is stored: column (-1: nowhere) and
        offset in tokens from the start of the chunk. hash_block: tokens of a hashed block. alignment: distance at which
        the kernel can stop; 0: it cannot."""
        chunk = _c.ChunkCheckpoint(start=start, end=end, position=position, hash_block=hash_block, alignment=alignment)
        column, offset = ctypes.c_int32(), ctypes.c_int64()
        calls.align_planner_checkpoint_in(self.handle, group, ctypes.byref(chunk), ctypes.byref(column),
                                          ctypes.byref(offset))
        return column.value, offset.value

    def publish(self, group: int, blocks: Any, tokens: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Before blocks are registered for reuse: [n] whether blocks[i] holds exactly the state after tokens[i] tokens;
        otherwise it must not be registered."""
        ids, counts = int32s("blocks", blocks), int64s("tokens", tokens)
        _same("tokens", counts, ids)
        out = np.zeros(len(ids), np.uint8)
        calls.align_planner_publish(self.handle, group, address(ids), address(counts), len(ids), address(out))
        return out.astype(np.bool_)

    def wrote(self, group: int, blocks: Any, tokens: Any) -> None:
        """The caller itself had states written into blocks: after tokens[i] tokens; -1: their content is not known."""
        ids, counts = int32s("blocks", blocks), int64s("tokens", tokens)
        _same("tokens", counts, ids)
        calls.align_planner_wrote(self.handle, group, address(ids), address(counts), len(ids))

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        calls.align_planner_check(self.handle)


class AlignContext(_library.Object):
    """Decides on the device, from arrays there, which states a step copies, and copies them, in one launch a call. The
    slots of a group's store are block ids; block 0 is null. Arrays of batches are int32 [rows] in device memory, dense,
    and must live until the stream has passed."""

    def __init__(self, groups: Sequence[AlignGroup], *, max_requests: int, drafts: int = 0) -> None:
        ensure_started()
        options = _options(groups, max_requests, drafts, "align")
        self._bound: tuple[object, ...] = ()
        self._table_rows = 0
        super().__init__(calls.align_create, calls.align_destroy, ctypes.byref(options))

    def bind(self, stores: Sequence[StateStore], tables: Sequence[Any]) -> None:
        """One store and one block table (device memory, int32 [rows, columns]) for each group; kept alive. Again after
        the engine moved its tensors. Waits for an upload; no other call does."""
        if len(stores) != len(tables):
            raise InvalidArgument(f"tables has {len(tables)} elements, and stores {len(stores)}")
        handles = [_library.handle_of(f"stores[{i}]", store, StateStore) for i, store in enumerate(stores)]
        memories = [describe(f"tables[{i}]", table, writes=False) for i, table in enumerate(tables)]
        for i, memory in enumerate(memories):
            dense = len(memory.shape) == 2 and (memory.strides_bytes[1] == 4 or memory.shape[1] == 1)
            if memory.dtype != "int32" or not dense:
                raise InvalidArgument(f"tables[{i}] has the shape {list(memory.shape)} and elements of type "
                                      f"{memory.dtype}, and must be int32 [rows, columns] with dense rows")
        rows = (_c.AlignBinding * len(stores))(*(
            # Of a single row the stride says nothing.
            _c.AlignBinding(store=store, block_table=memory.address, columns=memory.shape[1],
                            row_stride=memory.strides_bytes[0] // 4 if memory.shape[0] > 1 else memory.shape[1])
            for store, memory in zip(handles, memories, strict=True)))
        calls.align_bind(self.handle, rows, len(rows))
        self._table_rows = min((memory.shape[0] for memory in memories), default=0)
        self._bound = (tuple(stores), tuple(memory.owner for memory in memories))

    def add_request(self, request: int, computed: int, stream: Any = None) -> None:
        """Starts a request with `computed` tokens."""
        calls.align_add_request(self.handle, stream_handle(stream), request, computed)

    def forget(self, request: int, stream: Any = None) -> None:
        """A finished, preempted or resumed one."""
        calls.align_forget(self.handle, stream_handle(stream), request)

    def pre_step(self, request: Any, computed: Any, scheduled: Any, drafts: Any = None, stream: Any = None) -> None:
        """Before the forward."""
        self._step(calls.align_pre_step, stream, request=request, computed=computed, scheduled=scheduled, drafts=drafts)

    def post_step(self, request: Any, computed: Any, scheduled: Any, drafts: Any, stream: Any = None) -> None:
        """After sampling."""
        self._step(calls.align_post_step, stream, request=request, computed=computed, scheduled=scheduled,
                   drafts=drafts)

    def post_step_advanced(self, request: Any, computed: Any, stream: Any = None) -> None:
        """After sampling, where `computed` counts the tokens after the step."""
        self._step(calls.align_post_step_advanced, stream, request=request, computed=computed)

    def scatter_accepted(self, request: Any, sampled: Any, stream: Any = None) -> None:
        """Tokens that each request sampled, before post_step."""
        memories, rows = device_int32s(request=request, sampled=sampled)
        calls.align_scatter_accepted(self.handle, stream_handle(stream), memories["request"].address,
                                     memories["sampled"].address, rows)

    def _step(self, call: Any, stream: Any, **arrays: Any) -> None:
        memories, rows = device_int32s(**arrays)
        if rows > self._table_rows:
            raise InvalidArgument(f"request has {rows} elements, and the block tables {self._table_rows} rows")
        batch = _c.AlignBatch(rows=rows, **{name: memory.address for name, memory in memories.items()})
        call(self.handle, stream_handle(stream), ctypes.byref(batch))


def _same(name: str, values: Any, rows: Any) -> None:
    if len(values) != len(rows):
        raise InvalidArgument(f"{name} has {len(values)} elements, and must have {len(rows)}")


def _table(name: str, table: Any) -> Int32s:
    array = np.asarray(table)
    if array.ndim != 2:
        raise InvalidArgument(f"{name} has {array.ndim} dimensions, and must be [rows, columns]")
    return int32s(name, array.reshape(-1)).reshape(array.shape)
