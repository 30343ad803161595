# SPDX-License-Identifier: Apache-2.0
"""The device, and streams on it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from stateport import _c, _library
from stateport._library import calls
from stateport._tensors import stream_handle
from stateport.errors import InvalidState

ANY_DEVICE = -1

_started: Runtime | None = None
_started_in: int | None = None


class Runtime(_library.Object):
    """Starts the device. The first store makes one by itself; make it before to say which device, or how many threads.

    device: its number; ANY_DEVICE: the one in use. host_threads: of an OpenMP build; 0: as OpenMP decides.
    Kokkos, or a context on the device, that the engine has started is used and stays the engine's."""

    def __init__(self, device: int = ANY_DEVICE, host_threads: int = 0) -> None:
        _refuse_after_fork()
        options = _c.RuntimeOptions(device_id=device, host_threads=host_threads)
        super().__init__(calls.runtime_create, calls.runtime_destroy, ctypes.byref(options))
        _remember(self)

    def __repr__(self) -> str:
        return f"<Runtime: {_library.backend()}>"


def _remember(runtime: Runtime) -> None:
    global _started, _started_in
    if _started is None:
        _started, _started_in = runtime, os.getpid()


def _refuse_after_fork() -> None:
    if _started_in is not None and _started_in != os.getpid():
        raise InvalidState("the device was started before this process forked: its threads are not here. Fork before "
                           "the first store, or use multiprocessing's method 'spawn'")


def ensure_started() -> None:
    """Starts the device unless that was done. It stays until the program ends. Raises InvalidState after a fork."""
    _refuse_after_fork()
    if _started is None:
        Runtime()


def synchronize(stream: Any = None) -> None:
    """Waits until everything enqueued on the stream is done."""
    _refuse_after_fork()
    calls.stream_synchronize(stream_handle(stream))


def forget_stream(stream: Any) -> None:
    """Drops the resources kept for an engine's stream. Call it before the stream is destroyed."""
    _refuse_after_fork()
    calls.stream_forget(stream_handle(stream))
