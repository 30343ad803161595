# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries: where their memory lies. DLPack (versioned or not) or __cuda_array_interface__, without a
copy and without an import of those libraries."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from stateport import _library
from stateport.errors import InvalidArgument

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 10, 11, 13  # DLDeviceType
HOST_KINDS = (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED)
# Memory that the kernels of each build reach. Arrays of ROCm, too, have __cuda_array_interface__.
REACHED = {"OpenMP": HOST_KINDS, "CUDA": (CUDA, CUDA_HOST, CUDA_MANAGED), "HIP": (ROCM, ROCM_HOST, CUDA)}


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes",
                ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides",
                ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_READ_ONLY, _COPIED = 1, 2  # flags of a versioned tensor
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_FLOAT8_FIRST, _FLOAT8_LAST = 7, 14  # the DLPack codes of 8-bit floats


@dataclasses.dataclass(frozen=True)
class Memory:
    """Where a tensor lies. `owner` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: str  # "float32", "bfloat16", "float8", "int8", …
    device_type: int
    owner: object


def describe(name: str, tensor: Any, *, writes: bool = True) -> Memory:
    """The memory of a tensor that kernels of this build will read, or write. Hold on to the answer as long as they do.

    Raises InvalidArgument for a value that is no tensor, lies in memory that this build does not reach, is read-only
    but will be written, needs a gradient, cannot be viewed without a copy, or has elements that no state can have."""
    if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
        memory, read_only = _from_dlpack(name, tensor)
    elif hasattr(tensor, "__cuda_array_interface__"):
        memory, read_only = _from_cuda_array(name, tensor)
    else:
        raise InvalidArgument(f"{name} is a {type(tensor).__name__}, and must be a tensor: it has neither __dlpack__ "
                              "nor __cuda_array_interface__")
    if read_only and writes:
        raise InvalidArgument(f"{name} is read-only, and must be writable")
    backend = _library.backend()
    if backend is not None and memory.device_type not in REACHED[backend]:
        raise InvalidArgument(f"{name} lies on a device of DLPack's type {memory.device_type}, which this build of "
                              f"stateport for {backend} does not reach")
    return memory


def device_int32s(**tensors: Any) -> tuple[dict[str, Memory], int]:
    """Dense int32 [rows] in device memory, all with the rows of the first one; those that are None are left out."""
    memories = {name: describe(name, tensor, writes=False) for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(memories.values()), None)
    rows = first.shape[0] if first is not None and first.shape else 0
    for name, memory in memories.items():
        if memory.dtype != "int32" or memory.shape != (rows,) or (rows > 1 and memory.strides_bytes != (4,)):
            raise InvalidArgument(f"{name} has the shape {list(memory.shape)} and elements of type {memory.dtype}, and "
                                  f"must be dense int32 [{rows}]")
    return memories, rows


def _from_dlpack(name: str, tensor: Any) -> tuple[Memory, bool]:
    try:
        on_host = int(tensor.__dlpack_device__()[0]) in HOST_KINDS
        # -1: no stream waits for another. Nothing is read here.
        options = {} if on_host else {"stream": -1}
        try:
            capsule = tensor.__dlpack__(max_version=(1, 0), **options)
        except TypeError:
            capsule = tensor.__dlpack__(**options)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise InvalidArgument(f"{name} cannot be viewed by DLPack: {error}") from error
    dl, read_only = _open(name, capsule)
    shape = tuple(dl.shape[i] for i in range(dl.ndim))
    item = dl.bits // 8
    strides = tuple(dl.strides[i] for i in range(dl.ndim)) if dl.strides else _dense(shape)
    # The capsule still owns its tensor, and frees it when the capsule is freed.
    return Memory((dl.data or 0) + dl.byte_offset, shape, tuple(stride * item for stride in strides),
                  _dtype(name, dl.code, dl.bits, dl.lanes), dl.device_type, (capsule, tensor)), read_only


def _open(name: str, capsule: Any) -> tuple[_DLTensor, bool]:
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    if api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise InvalidArgument(f"{name} comes by DLPack {versioned.major}.{versioned.minor}, and must by 1.x")
        if versioned.flags & _COPIED:
            raise InvalidArgument(f"{name} cannot be viewed by DLPack without a copy")
        return versioned.tensor, bool(versioned.flags & _READ_ONLY)
    if api.PyCapsule_IsValid(capsule, b"dltensor"):
        return _DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor")), False
    raise InvalidArgument(f"{name} gives no capsule of DLPack")


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _dtype(name: str, code: int, bits: int, lanes: int) -> str:
    if lanes == 1 and bits == 8 and _FLOAT8_FIRST <= code <= _FLOAT8_LAST:
        return "float8"
    if lanes != 1 or code not in _KINDS:
        raise InvalidArgument(f"{name} has elements of DLPack's type (code {code}, {bits} bits, {lanes} lanes), "
                              "which no state has")
    return f"{_KINDS[code]}{bits}"


def _from_cuda_array(name: str, tensor: Any) -> tuple[Memory, bool]:
    interface = tensor.__cuda_array_interface__
    try:
        where, read_only = interface["data"]
        shape = tuple(interface["shape"])
        kind, item = interface["typestr"][1], int(interface["typestr"][2:])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidArgument(f"{name} has a __cuda_array_interface__ without all it must have: {error!r}") from error
    strides = interface.get("strides") or tuple(stride * item for stride in _dense(shape))
    kinds = {"f": "float", "i": "int", "u": "uint", "b": "bool"}
    if kind not in kinds:
        raise InvalidArgument(f"{name} has elements of type {interface['typestr']}, which no state has")
    return Memory(where, shape, tuple(strides), f"{kinds[kind]}{item * 8}", CUDA, tensor), bool(read_only)


def stream_handle(stream: Any) -> int | None:
    """The handle of a stream for the C interface: None is the library's default stream; an integer is a native handle;
    objects of torch (cuda_stream) and those with __cuda_stream__ are theirs."""
    if stream is None:
        return None
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not 0 <= stream < 2**64:
            raise InvalidArgument(f"stream is {stream}, and no native handle")
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    raise InvalidArgument(f"stream is a {type(stream).__name__}, and must be None, a native handle, or a stream of "
                          "torch or another library with __cuda_stream__")
