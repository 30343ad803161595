# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: states of accepted drafts go from an engine's scratch memory to live slots and checkpoints."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from stateport import _c, _library
from stateport._library import calls
from stateport._tensors import Memory, describe, device_int32s, stream_handle
from stateport.errors import InvalidArgument
from stateport.spec import ELEMENT_TYPES, TensorSpec
from stateport.store import StateStore

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class StepCommitter(_library.Object):
    """Moves the state after one chosen step of each request to a live slot, and that of another step to a checkpoint
    slot, in one launch; float32, float16 and bfloat16 are converted where scratch and store differ.

    scratch: one tensor for each of the destination, in its order; kept alive. Of a recurrent state:
    [requests, steps, …], the rest as the spec says and dense. Of a conv state a strip of its inputs:
    [requests, tokens, dim], or [requests, dim, tokens] if the spec's layout is "ds"; the window after step t begins at
    token t, so that it has at least window + steps - 1 tokens. steps: states of a request."""

    def __init__(self, scratch: Sequence[Any], destination: StateStore, *, steps: int) -> None:
        target = _library.handle_of("destination", destination, StateStore)
        specs = destination.spec.tensors
        if not isinstance(steps, int) or not 1 <= steps < 2**31:
            raise InvalidArgument(f"steps is {steps!r}, and must be from 1 to {2**31 - 1}")
        if len(scratch) != len(specs):
            raise InvalidArgument(f"scratch has {len(scratch)} elements, and the destination {len(specs)} tensors")
        memories = [describe(f"scratch[{i}]", tensor, writes=False) for i, tensor in enumerate(scratch)]
        requests = memories[0].shape[0] if memories[0].shape else 0
        rows = (_c.StepScratch * len(memories))(*(
            (_strip if spec.kind == "conv" else _states)(f"scratch[{i}]", memory, spec, requests, steps)
            for i, (memory, spec) in enumerate(zip(memories, specs, strict=True))))
        self._keep = [memory.owner for memory in memories], destination
        super().__init__(calls.step_committer_create, calls.step_committer_destroy, rows, len(rows), target, requests,
                         steps)

    def commit(self, last_step: Any, live_slot: Any, *, track_step: Any = None, track_slot: Any = None,
               stream: Any = None) -> None:
        """Device memory int32 [rows], read when the kernel runs: the step whose state goes to live_slot, and the one
        that goes to track_slot. Negative numbers and those out of range skip a part of a row."""
        memories, rows = device_int32s(last_step=last_step, live_slot=live_slot, track_step=track_step,
                                       track_slot=track_slot)
        targets = _c.StepTargets(rows=rows, **{name: memory.address for name, memory in memories.items()})
        calls.step_committer_commit(self.handle, stream_handle(stream), ctypes.byref(targets))

    def __repr__(self) -> str:
        return f"<StepCommitter into {self._keep[1]!r}>"


def _type(name: str, memory: Memory) -> str:
    """numpy has no bfloat16: its bits come as uint16."""
    kind = "bfloat16" if memory.dtype == "uint16" else memory.dtype
    if kind not in _ITEM_BYTES:
        raise InvalidArgument(f"{name} has elements of type {memory.dtype}, and must have float32, float16 or bfloat16")
    return kind


def _states(name: str, memory: Memory, spec: TensorSpec, requests: int, steps: int) -> Any:
    kind, shape = _type(name, memory), (requests, steps, *spec.shape)
    if memory.shape != shape:
        raise InvalidArgument(f"{name} has the shape {list(memory.shape)}, and must have {list(shape)}")
    dense = _ITEM_BYTES[kind]
    for extent, stride in zip(reversed(shape[2:]), reversed(memory.strides_bytes[2:]), strict=True):
        if extent > 1 and stride != dense:
            raise InvalidArgument(f"{name} has strides of {list(memory.strides_bytes[2:])} bytes within a state, and "
                                  "must be dense there")
        dense *= extent
    return _c.StepScratch(base=memory.address, request_stride_bytes=memory.strides_bytes[0],
                          step_stride_bytes=memory.strides_bytes[1], type=ELEMENT_TYPES[kind])


def _strip(name: str, memory: Memory, spec: TensorSpec, requests: int, steps: int) -> Any:
    kind, (window, dim) = _type(name, memory), spec.shape
    token, channel = (2, 1) if spec.conv_layout == "ds" else (1, 2)
    wanted = [requests, 0, 0]
    wanted[token], wanted[channel] = window + steps - 1, dim
    fits = len(memory.shape) == 3 and memory.shape[0] == requests and memory.shape[channel] == dim
    if not fits or memory.shape[token] < wanted[token]:
        raise InvalidArgument(f"{name} has the shape {list(memory.shape)}, and must have {wanted}, or more tokens")
    item = _ITEM_BYTES[kind]
    return _c.StepScratch(base=memory.address, request_stride_bytes=memory.strides_bytes[0],
                          step_stride_bytes=memory.strides_bytes[token], type=ELEMENT_TYPES[kind],
                          token_stride=memory.strides_bytes[token] // item,
                          channel_stride=memory.strides_bytes[channel] // item)
