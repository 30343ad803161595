# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package: one class for each status of the C interface (stateport/c/status.h).

The text of an exception names the argument, its value and the rule. A call that raises has changed nothing, unless it
takes several things one after the other and says how many were done."""

from __future__ import annotations


class Error(Exception):
    """Base of every exception of this package.

    done: of a call that takes several things one after the other: how many of them count."""

    done = 0


class InvalidArgument(Error, ValueError):
    """A caller's mistake: the text names the argument, its value and the rule."""


class ClosedError(Error):
    """The object was closed, or its memory is not valid any more."""


class NoCapacity(Error):
    """A pool has not enough now: evict, preempt or wait."""


class OutOfMemory(Error, MemoryError):
    """Of the host, the device or a budget."""


class BackendError(Error):
    """The vendor's runtime refused a call, there is no device, or this build has none (core only)."""


class InternalError(Error):
    """A defect of the library."""


class InvalidState(Error, RuntimeError):
    """A call at a wrong time: too early, too late, twice, after a fork, or of something that is switched off."""


_CLASSES: tuple[type[Error], ...] = (InvalidArgument, ClosedError, NoCapacity, OutOfMemory, BackendError,
                                     InternalError, InvalidState)


def error_of(status: int, text: str) -> Error:
    """The exception for a stateport_status other than STATEPORT_OK."""
    if 1 <= status <= len(_CLASSES):
        return _CLASSES[status - 1](text)
    return InternalError(f"status {status}: {text}")
