# SPDX-License-Identifier: Apache-2.0
"""The C library: where it lies, how its functions are called, and the life of what they make.

It is loaded at the first call. Every call releases the GIL."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

from stateport.errors import BackendError, ClosedError, Error, InvalidState, error_of

HANDLE = STREAM = POINTER = ctypes.c_void_p
TEXT = ctypes.c_char_p
INT32 = ctypes.c_int32
INT64 = ctypes.c_int64
UINT64 = ctypes.c_uint64
SIZE = ctypes.c_size_t

_NAMES = ("libstateport-c.so", "libstateport-c-core.so")

forks = 0  # how often this process is the child of a fork since the package was imported


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


def library_path() -> pathlib.Path:
    """The library of this installation, or the one that the environment variable STATEPORT_LIBRARY names: a build for
    another device. Raises BackendError if there is none."""
    named = os.environ.get("STATEPORT_LIBRARY")
    if named:
        return pathlib.Path(named)
    folder = pathlib.Path(__file__).parent / "lib"
    for name in _NAMES:
        if (folder / name).exists():
            return folder / name
    raise BackendError(f"no library of stateport: neither {' nor '.join(_NAMES)} lies in {folder}, and the environment "
                       "variable STATEPORT_LIBRARY is not set")


@functools.cache
def library() -> ctypes.CDLL:
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"the library {path} cannot be loaded: {error}") from error
    loaded.stateport_last_error.restype = ctypes.c_char_p
    loaded.stateport_version.restype = ctypes.c_char_p
    if hasattr(loaded, "stateport_backend"):
        loaded.stateport_backend.restype = ctypes.c_char_p
    return loaded


def has_device() -> bool:
    """Whether this build moves bytes: stores, copies and tiers. A core-only build decides alone."""
    return hasattr(library(), "stateport_backend")


def backend() -> str | None:
    """What the library was built for: "CUDA", "HIP" or "OpenMP"; None: a core-only build."""
    return str(library().stateport_backend().decode()) if has_device() else None


def version() -> str:
    """Of the library, for example "0.1.0"."""
    return str(library().stateport_version().decode())


def last_error() -> str:
    return str(library().stateport_last_error().decode(errors="replace"))


def function(name: str, *argument_types: Any) -> Callable[..., None]:
    """stateport_<name> as a Python function that raises what its status says. It is looked up at its first call."""
    raw: Any = None

    def call(*arguments: Any) -> None:
        nonlocal raw
        if raw is None:
            raw = _bind(name, argument_types)
        status = raw(*arguments)
        if status:
            raise error_of(status, last_error())

    return call


def _bind(name: str, argument_types: tuple[Any, ...]) -> Any:
    try:
        raw = getattr(library(), f"stateport_{name}")
    except AttributeError:
        raise BackendError(f"this build of stateport has no device: stateport_{name} is not in it") from None
    raw.argtypes = argument_types
    raw.restype = ctypes.c_int
    return raw


class Object:
    """Something of the library that has a handle. Use it in a `with` statement, or close it.

    Calls on one object run one after another, from whatever thread. After a fork the parent's objects are refused."""

    def __init__(self, make: Callable[..., None], destroy: Callable[..., None], *arguments: Any) -> None:
        handle = ctypes.c_void_p()
        make(*arguments, ctypes.byref(handle))
        self._forks = forks
        self._destroy = destroy
        self._handle: int | None = handle.value

    @property
    def handle(self) -> int:
        """The handle of the C interface. Raises ClosedError, or InvalidState after a fork."""
        if self._handle is None:
            raise ClosedError(f"this {type(self).__name__} is closed")
        if self._forks != forks:
            raise InvalidState(f"this {type(self).__name__} was made before the process forked: make one after it")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """Ends the object; closing it twice is fine. What others need of it lives until they go."""
        handle, self._handle = self._handle, None
        if handle is not None and self._forks == forks:
            self._destroy(handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None:
            return
        with contextlib.suppress(Error, TypeError, AttributeError):  # at the end of the interpreter
            self.close()
