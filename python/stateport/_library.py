# SPDX-License-Identifier: Apache-2.0
"""The C library: where it lies, how its functions are called, and the lifetime of its objects.

It is loaded at the first call. Every call releases the GIL."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import operator
import os
import pathlib
import re
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from stateport import _c
from stateport._arguments import of_kind
from stateport.errors import BackendError, ClosedError, Error, InvalidArgument, InvalidState, error_of

_c.InvalidValue = InvalidArgument


def _checked(kind: Any, low: int, high: int) -> Any:
    """An integer type of C that refuses numbers which do not fit; ctypes alone would cut them."""

    def from_param(_: Any, value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError(f"{value} is no number")
        number = operator.index(value)
        if not low <= number <= high:
            raise OverflowError(f"{number} is not from {low} to {high}")
        return kind(number)

    return type(f"checked_{kind.__name__}", (kind,), {"from_param": classmethod(from_param)})


_ARGUMENTS = _c.ARGUMENTS | {"i": _checked(ctypes.c_int32, -(2**31), 2**31 - 1),
                             "l": _checked(ctypes.c_int64, -(2**63), 2**63 - 1),
                             "u": _checked(ctypes.c_uint64, 0, 2**64 - 1), "z": _checked(ctypes.c_size_t, 0, 2**63 - 1)}

_NAMES = ("libstateport-c.so", "libstateport-c-core.so")

forks = 0  # how often this process is the child of a fork since the package was imported


def _count_fork() -> None:
    global forks
    forks += 1
    _leftovers.clear()  # they are the parent's


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


def require_one_distribution(site: pathlib.Path) -> None:
    """Raises BackendError if several distributions of stateport are installed in the folder `site`. Each of them has
    the package `stateport`: the one that was installed last has overwritten files of the others."""
    found = sorted(match[1].replace("_", "-") for path in site.glob("stateport*.dist-info")
                   if (match := re.match(r"(stateport(?:_cu\d+|_rocm)?)-", path.name)))
    if len(found) > 1:
        names = " ".join(found)
        raise BackendError(f"{' and '.join(found)} are installed in {site}, and each holds the package stateport: "
                           f"run `pip uninstall {names}`, then install one of them")


@functools.cache
def library() -> ctypes.CDLL:
    require_one_distribution(pathlib.Path(__file__).parents[1])
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
    except (OSError, UnicodeDecodeError) as error:  # the latter up to Python 3.11, for a name that is no UTF-8
        raise BackendError(f"the library {path} cannot be loaded: {error}") from error
    if not hasattr(loaded, "stateport_last_error") or not hasattr(loaded, "stateport_version"):
        raise BackendError(f"the library {path} is none of stateport")
    loaded.stateport_last_error.restype = ctypes.c_char_p
    loaded.stateport_version.restype = ctypes.c_char_p
    if hasattr(loaded, "stateport_backend"):
        loaded.stateport_backend.restype = ctypes.c_char_p
    return loaded


def has_device() -> bool:
    """Whether this build moves bytes: stores, copies and tiers. A core-only build decides alone."""
    return hasattr(library(), "stateport_backend")


def backend() -> str | None:
    """The backend of the build: "CUDA", "HIP" or "OpenMP"; None: a core-only build."""
    return str(library().stateport_backend().decode()) if has_device() else None


def version() -> str:
    """Of the library, for example "0.2.0"."""
    return str(library().stateport_version().decode())


def last_error() -> str:
    return str(library().stateport_last_error().decode(errors="replace"))


def _function(name: str) -> Callable[..., None]:
    """stateport_<name> as a Python function that raises the exception of its status. It is looked up at its first
    call."""
    raw: Any = None

    def call(*arguments: Any) -> None:
        nonlocal raw
        if raw is None:
            raw = _bind(name)
        try:
            status = raw(*arguments)
        except ctypes.ArgumentError as error:
            raise InvalidArgument(f"{name}: {error}") from None
        if status:
            raise error_of(status, last_error())

    return call


class _Calls:
    """calls.<name>(…) calls stateport_<name>."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in _c.FUNCTIONS:
            raise AttributeError(name)
        self.__dict__[name] = call = _function(name)
        return call


calls = _Calls()


def _bind(name: str) -> Any:
    try:
        raw = getattr(library(), f"stateport_{name}")
    except AttributeError:
        raise BackendError(f"this build of stateport has no device: stateport_{name} is not in it") from None
    raw.argtypes = [_ARGUMENTS[letter] for letter in _c.FUNCTIONS[name]]
    raw.restype = ctypes.c_int
    return raw


def handle_of(name: str, value: Any, kind: type[Object]) -> int:
    """The handle of an argument. Raises InvalidArgument for an object of another kind."""
    return of_kind(name, value, kind).handle


def answering(answer: Callable[..., int], refusal: int) -> Callable[..., int]:
    """A callback of C. An exception of `answer` is printed, and C gets `refusal`; ctypes alone would return any
    number."""

    def call(*arguments: Any) -> int:
        try:
            return answer(*arguments)
        except BaseException:
            with contextlib.suppress(Exception):
                traceback.print_exc()
            return refusal

    return call


class Object:
    """Something of the library that has a handle. Use it in a `with` statement, or close it.

    Calls on one object run one after another, from whatever thread. After a fork the parent's objects are refused."""

    def __init__(self, make: Callable[..., None], destroy: Callable[..., None], *arguments: Any) -> None:
        _destroy_leftovers()
        handle = ctypes.c_void_p()
        make(*arguments, ctypes.byref(handle))
        self._forks = forks
        self._destroy = destroy
        self._handle: int | None = handle.value
        # Held by calls that copy arrays which the library keeps until its next call.
        self._turn = threading.RLock()

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

    @property
    def _usable(self) -> bool:
        """Neither closed nor made before the process forked."""
        return self._handle is not None and self._forks == forks

    def close(self) -> None:
        """Ends the object; closing it twice is fine. Parts that other objects need live until those are closed."""
        handle, self._handle = self._handle, None  # at once: another thread may close it, too
        if handle is None or self._forks != forks:
            return
        try:
            self._destroy(handle)
        except BaseException:
            self._handle = handle
            raise

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None:
            return
        try:
            self.close()
        except Error:  # in a callback of its own
            _leftovers.append((self._destroy, self._handle))
        except (TypeError, AttributeError):  # at the end of the interpreter
            pass

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled")


class Owned:
    """A handle that arrays over its memory hold, too: it goes with the last of them."""

    def __init__(self, destroy: Callable[..., None], handle: int) -> None:
        self._destroy, self._handle, self._forks = destroy, handle, forks

    def __del__(self) -> None:
        if self._forks == forks:
            with contextlib.suppress(Error, TypeError, AttributeError):  # at the end of the interpreter
                self._destroy(self._handle)


_closed_at_exit: weakref.WeakSet[Object] = weakref.WeakSet()


def close_at_exit(to_close: Object) -> None:
    """Registers an object whose threads call Python, to be closed before the interpreter ends. After that its threads
    would wait for ever, and closing it would wait for them."""
    _closed_at_exit.add(to_close)


@atexit.register
def _close_all() -> None:
    for to_close in list(_closed_at_exit):
        with contextlib.suppress(Error):
            to_close.close()


_leftovers: list[tuple[Callable[..., None], int | None]] = []  # objects that went while they could not be destroyed


def _destroy_leftovers() -> None:
    for destroy, handle in [_leftovers.pop() for _ in range(len(_leftovers))]:
        try:
            destroy(handle)
        except InvalidState:  # still in that callback
            _leftovers.append((destroy, handle))
        except Error:
            pass
