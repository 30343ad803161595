# SPDX-License-Identifier: Apache-2.0
"""Arrays of plain data that cross the C interface: their element types, and how they come in and out."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from stateport import _c
from stateport._arguments import integer
from stateport.errors import InvalidArgument

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]


def record_of(struct: Any) -> np.dtype[Any]:
    """The element type of an array of a struct of the C interface. Addresses are numbers."""

    def kind_of(kind: Any) -> Any:
        if issubclass(kind, ctypes.Structure):
            return record_of(kind)
        return np.uint64 if issubclass(kind, (ctypes.c_void_p, ctypes._Pointer)) else np.dtype(kind)

    record = np.dtype([(name.rstrip("_"), kind_of(kind)) for name, kind in struct._fields_])
    assert record.itemsize == ctypes.sizeof(struct), "the struct has gaps"
    return record


SLOT_COPY = record_of(_c.SlotCopy)
IMAGE_KEY = record_of(_c.ImageKey)
SLOT_IMAGE = record_of(_c.SlotImage)
MEMORY_MOVE = record_of(_c.MemoryMove)
TRANSFER = record_of(_c.Transfer)
TRANSFER_RESULT = record_of(_c.TransferResult)
STATE_SAVE = record_of(_c.StateSave)
STEP_COMMIT = record_of(_c.StepCommit)
REFUSED_BREAKPOINT = record_of(_c.RefusedBreakpoint)
KV_MOVE = record_of(_c.KvMove)
CACHE_EVENT = record_of(_c.CacheEvent)
FORGET_RECORD = record_of(_c.ForgetRecord)
ROUTER_REACH = record_of(_c.RouterReach)
STATE_CHECK = record_of(_c.StateCheck)
STATE_FAULT = record_of(_c.StateFault)


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Raises InvalidArgument for values that numpy makes no array of, and for masked elements, which have no values."""
    if np.ma.is_masked(values):
        raise InvalidArgument(f"{name} has masked elements")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgument(f"{name} cannot be read as an array: {error}") from error


def room(name: str, count: Any, dtype: Any) -> npt.NDArray[Any]:
    """Zeros for `count` results. Raises InvalidArgument for a count that is negative, too large or no integer."""
    return np.zeros(integer(name, count, 0, 2**40 - 1), dtype)


def ints(name: str, values: Any, dtype: Any) -> npt.NDArray[Any]:
    """`values` as a contiguous vector of `dtype`, without a copy if it is one. Raises InvalidArgument for another
    shape, for values that are no integers and for those that do not fit."""
    array = as_array(name, values)
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has {array.ndim} dimensions, and must have one")
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return np.ascontiguousarray(array) if array.flags.aligned else array.copy()
    if array.size == 0:
        return np.empty(0, wanted)
    if array.dtype.kind not in "iu":
        shown = f"; the first one is {array[0]!r}" if array.dtype == object else ""
        raise InvalidArgument(f"{name} has elements of type {array.dtype}, and must have integers of at most 64 bits"
                              f"{shown}")
    limits = np.iinfo(wanted)
    for value in (int(array.min()), int(array.max())):
        if not limits.min <= value <= limits.max:
            raise InvalidArgument(f"{name} has the element {value}, which does not fit into {wanted}")
    return np.ascontiguousarray(array.astype(wanted))


def int32s(name: str, values: Any) -> Int32s:
    return ints(name, values, np.int32)


def int64s(name: str, values: Any) -> Int64s:
    return ints(name, values, np.int64)


def records(name: str, values: Any, dtype: np.dtype[Any]) -> Records:
    """`values` as a contiguous vector of a structured type. Raises InvalidArgument for anything else."""
    array = as_array(name, values)
    if array.dtype != dtype or array.ndim != 1:
        raise InvalidArgument(f"{name} has the type {array.dtype} and {array.ndim} dimensions, and must be a vector of "
                              f"{dtype}")
    # A structured type is never unaligned to numpy; C reads words.
    return np.ascontiguousarray(array) if (address(array) or 0) % 8 == 0 else array.copy()


def prefixes(name: str, values: Any) -> UInt64s:
    """Names of prefixes, [n, 2]. Raises InvalidArgument for anything else."""
    array = as_array(name, values)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype != np.uint64:
        raise InvalidArgument(f"{name} has the shape {array.shape} and the type {array.dtype}, and must be [n, 2] of "
                              "uint64")
    return np.ascontiguousarray(array)


def slot_copies(name: str, values: Any) -> Records:
    """Copies of states: a vector of SLOT_COPY, or integers [n, 2] (source, destination) or [n, 4] in the order of
    SLOT_COPY."""
    array = as_array(name, values)
    if array.dtype == SLOT_COPY:
        return records(name, array, SLOT_COPY)
    if array.size == 0:
        return np.empty(0, SLOT_COPY)
    if array.ndim != 2 or array.shape[1] not in (2, 4):
        raise InvalidArgument(f"{name} has the shape {array.shape}, and must be [n, 2], [n, 4] or SLOT_COPY [n]")
    columns = int32s(name, array.reshape(-1)).reshape(array.shape).T
    copies = np.zeros(len(array), SLOT_COPY)
    copies["src_slot"], copies["dst_slot"], copies["recurrent_src_slot"] = columns[0], columns[1], columns[0]
    if len(columns) == 4:
        copies["conv_shift"], copies["recurrent_src_slot"] = columns[2], columns[3]
    return copies


def address(array: npt.NDArray[Any]) -> int | None:
    """Where a contiguous array begins; None for one without elements."""
    return array.__array_interface__["data"][0] if array.size else None


def copied(pointer: Any, count: int, dtype: Any) -> npt.NDArray[Any]:
    """A copy, not to be written, of `count` elements at an address, or at a pointer of ctypes. Null has none."""
    where = pointer if isinstance(pointer, int) else ctypes.cast(pointer, ctypes.c_void_p).value
    wanted = np.dtype(dtype)
    if not where or count <= 0:
        return np.empty(0, wanted)
    return np.frombuffer(ctypes.string_at(where, count * wanted.itemsize), wanted)
