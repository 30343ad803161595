# SPDX-License-Identifier: Apache-2.0
"""Checks of the checkpoints in the stores of a cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import STATE_CHECK, STATE_FAULT, Records, address, copied, records, slot_copies
from stateport._library import calls
from stateport._tensors import stream_handle
from stateport.copier import SlotCopier
from stateport.store import StateStore


class StateIntegrity(_library.Object):
    """Finds checkpoints whose bytes changed between their publication and their use: a late write, a copy on the wrong
    stream, a slot that was given away too early. It keeps a sum of 64 bits for each slot and tensor, in device memory.

        before a pass:  begin(checks) → copy(restores) → end → [wait → poll] → forward
        after a pass:   begin(checks) → kernels of the commit, copy(checkpoints) → end
        when the engine has waited for a pass: poll, before it trusts the tokens

    stores: one for each group of layers, the one with the checkpoints. checks_max: checks that may be under way: begun,
    and not yet polled. Raises InvalidArgument for no store, and for memory that kernels cannot reach. A change of one
    word of 32 bits is always found, and a slot of another publication whatever its bytes are. A NaN or an infinity is
    found when the state is published, and whenever it is read. Not found: a source that was wrong before it was copied,
    and a write between the check and the forward. Calls wait for nothing but for `wait`, and none may be captured into
    a graph."""

    def __init__(self, stores: Sequence[StateStore], *, checks_max: int = 4096) -> None:
        # The memory that the stores view must outlive the object.
        self._stores = tuple(stores)
        handles = [_library.handle_of("stores", store, StateStore) for store in self._stores]
        options = _c.IntegrityOptions(checks_max=integer("checks_max", checks_max, 1, 2**31 - 1))
        super().__init__(calls.integrity_create, calls.integrity_destroy, (ctypes.c_void_p * len(handles))(*handles),
                         len(handles), ctypes.byref(options))

    def begin(self, checks: Any, stream: Any = None) -> None:
        """checks: STATE_CHECK [n], as RequestCache.take_checks names them, before the work of that answer. Waits for
        the stream if more than checks_max checks would be under way. Raises InvalidArgument for more than checks_max
        checks, and for a group or a slot that does not exist, InvalidState if `end` is due, or if
        checks_max faults wait for `poll`."""
        array = records("checks", checks, STATE_CHECK)
        calls.integrity_begin(self.handle, stream_handle(stream), address(array), len(array))

    def copy(self, copier: SlotCopier, copies: Any, stream: Any = None, *, group: int = 0) -> None:
        """As SlotCopier.copy, and sums the states of this group that `begin` named as they pass. Raises as that call,
        InvalidArgument for a copier neither of whose stores is that of the group, InvalidState before `begin`."""
        array = slot_copies("copies", copies)
        calls.integrity_copy(self.handle, stream_handle(stream), _library.handle_of("copier", copier, SlotCopier),
                             address(array), len(array), integer("group", group, 0, 2**31 - 1))

    def end(self, stream: Any = None) -> None:
        """Enqueues the sums of all other states that `begin` named, then compares or remembers. Raises InvalidState
        before `begin`."""
        calls.integrity_end(self.handle, stream_handle(stream))

    def poll(self) -> Records:
        """STATE_FAULT [n]: the faults of checks that the device has finished, in the order of `begin`. kind: index of
        FAULT_KINDS. tensor: the first one for which this holds; -1: the whole slot. check: STATE_CHECK. Each is
        answered once."""
        faults, count = ctypes.POINTER(_c.StateFault)(), ctypes.c_size_t()
        with self._turn:
            calls.integrity_poll(self.handle, ctypes.byref(faults), ctypes.byref(count))
            return copied(faults, count.value, STATE_FAULT)

    def wait(self, stream: Any = None) -> None:
        """Waits for the stream, so that `poll` answers all checks that have ended."""
        calls.integrity_wait(self.handle, stream_handle(stream))

    def __repr__(self) -> str:
        return f"<StateIntegrity of {len(self._stores)} stores>"
