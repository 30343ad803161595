# SPDX-License-Identifier: Apache-2.0
"""Memory for states on the device, and copies of states."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arrays import address, int32s, slot_copies
from stateport._library import calls
from stateport._tensors import Memory, describe, stream_handle
from stateport.errors import BackendError, InvalidArgument
from stateport.runtime import ensure_started
from stateport.spec import ELEMENT_BYTES, StateSpec, TensorSpec

_LAYOUTS: tuple[str, ...] = _c.STORE_LAYOUT
# numpy has neither bfloat16 nor float8: their bits are seen as integers.
_NUMPY = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "float64": "f8", "float8": "u1", "int8": "i1",
          "int8_block32": "u1"}
_ROW = ("int8", "uint8")  # how int8_block32 comes: [slots, bytes]
_SAME_BITS = {"bfloat16": ("bfloat16", "uint16"), "float8": ("float8", "uint8"), "int8_block32": _ROW}


class DeviceArray:
    """A tensor of a store on a device, for libraries that read __cuda_array_interface__ (torch.as_tensor,
    cupy.asarray). bfloat16 and float8 are seen as unsigned integers of their size."""

    def __init__(self, owner: object, memory: dict[str, Any]) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = memory


class StateStore(_library.Object):
    """Slots 0 … slots - 1, each with room for one state: memory of its own (this constructor), or a view of the
    engine's tensors (`view`). Nothing is cleared.

    layout: "layer_major" = [tensor][slot], "slot_major" = [slot][tensor]. The memory is ordered on `stream`."""

    def __init__(self, spec: StateSpec, slots: int, *, layout: str = "layer_major", stream: Any = None) -> None:
        self._make(calls.store_create, (), spec, slots, layout, stream)

    def _make(self, make: Callable[..., None], memory: tuple[int, ...], spec: StateSpec, slots: int, layout: str,
              stream: Any) -> None:
        if layout not in _LAYOUTS:
            raise InvalidArgument(f"layout is {layout!r}, and must be one of {', '.join(_LAYOUTS)}")
        _require_slots(slots)
        ensure_started()
        options = _c.StoreOptions(slots=slots, layout=_LAYOUTS.index(layout))
        self._keep: tuple[object, ...] = ()
        self.spec, self.slots = spec, slots
        _library.Object.__init__(self, make, calls.store_destroy, *memory, _library.handle_of("spec", spec, StateSpec),
                                 ctypes.byref(options), stream_handle(stream))
        self._owned: _library.Owned | None = _library.Owned(calls.store_destroy, self.handle)

    @classmethod
    def view(cls, spec: StateSpec, tensors: Sequence[Any]) -> StateStore:
        """A store over the engine's tensors, without a copy: tensors[i] is [slots, …], the rest as tensor i of the spec
        in the order of memory (a conv state of layout "ds" is [slots, dim, window]). They are kept alive until the
        store and everything made of it are gone.

        Raises InvalidArgument for a tensor on the wrong device, of the wrong type, shape or strides."""
        _library.handle_of("spec", spec, StateSpec)
        if len(tensors) != len(spec.tensors):
            raise InvalidArgument(f"tensors has {len(tensors)} elements, and the spec has {len(spec.tensors)}")
        memories = [describe(f"tensors[{i}]", tensor) for i, tensor in enumerate(tensors)]
        slots = memories[0].shape[0] if memories and memories[0].shape else 0
        rows = (_c.TensorMemory * len(memories))()
        for i, (memory, wanted) in enumerate(zip(memories, spec.tensors, strict=True)):
            slot_bytes = _check(f"tensors[{i}]", memory, wanted, slots)
            # Of a single slot the stride says nothing.
            rows[i].__init__(base=memory.address,
                             slot_stride_bytes=memory.strides_bytes[0] if slots > 1 else slot_bytes)
        _require_slots(slots)
        ensure_started()
        store = cls.__new__(cls)
        store._keep = tuple(memory.owner for memory in memories)
        store.spec, store.slots = spec, slots
        _library.Object.__init__(store, calls.store_view, calls.store_destroy, spec.handle, rows, len(memories), slots)
        store._owned = _library.Owned(calls.store_destroy, store.handle)
        return store

    def close(self) -> None:
        """Ends the store; its memory stays as long as arrays of `tensor`, or objects that were made of it, use it."""
        self._handle, self._owned = None, None

    def tensor(self, index: int) -> Any:
        """Tensor `index` of the spec, [slots, …] in the order of memory, without a copy: a numpy array if the library
        was built for CPUs, else a DeviceArray. bfloat16 and float8 are seen as unsigned integers of their size.
        It keeps the store's memory. Raises IndexError, and BackendError for int8_block32."""
        wanted = self.spec.tensors[index]
        if wanted.dtype == "int8_block32":
            raise BackendError(f"tensor {index} has elements of type int8_block32, which have no array")
        owned, memory = self._owned, _c.TensorMemory()
        calls.store_tensor(self.handle, index % len(self.spec.tensors), ctypes.byref(memory))
        dtype = np.dtype(_NUMPY[wanted.dtype])
        shape = (self.slots, *wanted.memory_shape())
        strides = (memory.slot_stride_bytes, *(stride * dtype.itemsize for stride in wanted.strides()))
        if _library.backend() != "OpenMP":
            return DeviceArray((owned, self._keep), {"data": (memory.base, False), "shape": shape, "strides": strides,
                                      "typestr": dtype.str, "version": 3})
        span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        buffer = (ctypes.c_char * span).from_address(memory.base)
        buffer._owner = (owned, self._keep)
        return np.ndarray(shape, dtype, buffer, 0, strides)

    def copy(self, copies: Any, stream: Any = None) -> None:
        """Copies states within the store, in one launch. copies: SLOT_COPY, or integers [n, 2] (source, destination);
        negative slots are skipped. Raises InvalidArgument for a slot out of range, two copies into one slot, and a slot
        that one copy writes and another reads."""
        array = slot_copies("copies", copies)
        calls.store_copy(self.handle, stream_handle(stream), address(array), len(array))

    def clear(self, slots: Any, stream: Any = None) -> None:
        """Zeroes slots [n], in one launch. Negative ones are skipped."""
        array = int32s("slots", slots)
        calls.store_clear(self.handle, stream_handle(stream), address(array), len(array))

    def __repr__(self) -> str:
        kind = "view" if self._keep else "store"
        return f"<StateStore: a {kind} of {self.slots} slots of {self.spec.slot_bytes:,} bytes>"


def _require_slots(slots: int) -> None:
    if not isinstance(slots, int) or not 1 <= slots < 2**31:
        raise InvalidArgument(f"slots is {slots}, and must be from 1 to {2**31 - 1}")


def _check(name: str, memory: Memory, wanted: TensorSpec, slots: int) -> int:
    """Answers the bytes from the first to the last element of a slot."""
    if memory.dtype not in _SAME_BITS.get(wanted.dtype, (wanted.dtype,)):
        raise InvalidArgument(f"{name} has elements of type {memory.dtype}, and must have {wanted.dtype}")
    # A state quantised in blocks is a row of bytes.
    rest, item = wanted.memory_shape(), ELEMENT_BYTES.get(wanted.dtype, 1)
    strides = tuple(stride * item for stride in wanted.strides())
    if wanted.dtype == "int8_block32":
        rest, strides = (StateSpec([wanted]).slot_bytes,), (1,)
    shape = (slots, *rest)
    if memory.shape != shape:
        raise InvalidArgument(f"{name} has the shape {list(memory.shape)}, and must have {list(shape)}")
    for extent, stride, needed in zip(rest, memory.strides_bytes[1:], strides, strict=True):
        if extent > 1 and stride != needed:
            raise InvalidArgument(f"{name} has strides of {list(memory.strides_bytes[1:])} bytes within a slot, and "
                                  f"the spec says {list(strides)}")
    slot_bytes = sum((extent - 1) * stride for extent, stride in zip(rest, strides, strict=True)) + item
    if slots > 1 and memory.strides_bytes[0] < math.prod(rest) * item:
        raise InvalidArgument(f"{name} has {memory.strides_bytes[0]} bytes from slot to slot, less than a slot has")
    return slot_bytes
