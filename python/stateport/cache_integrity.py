# SPDX-License-Identifier: Apache-2.0
"""Checks of checkpoints that a request cache names."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from stateport import _c, _library
from stateport._arrays import STATE_CHECK, STATE_FAULT, Records, address, copied, records
from stateport._library import calls
from stateport.cache_options import plain

CHECK_KINDS: tuple[str, ...] = _c.CHECK_KIND
FAULT_KINDS: tuple[str, ...] = _c.FAULT_KIND


@dataclasses.dataclass(frozen=True)
class IntegrityUsage:
    """Since the cache was made. published: checks that remember a checkpoint. reads: checks that compare one. changed,
    other_state, not_finite: faults that `withdraw` was told. withdrawn_states: checkpoints that it took back.
    unchecked_states: checkpoints that found no room in the list of checks. checks_max: the most checks that one
    take_checks answers; StateIntegrity needs at least that."""

    published: int
    reads: int
    changed: int
    other_state: int
    not_finite: int
    withdrawn_states: int
    unchecked_states: int
    checks_max: int


class CacheIntegrity(_library.Object):
    """The part of RequestCache for integrity checks, which StateIntegrity makes:

        start, plan, commit, finish … → take_checks → begin → (the work of the answer) → end
        poll names faults → withdraw → preempt the requests that read a wrong state, and start them again

    An engine that waits for the verdicts of a plan before it runs the pass cancels the plan, and no token depends on a
    wrong state. One that does not wait polls before it commits the pass, and aborts the requests that the faults name.
    Ranks of a group withdraw the same checkpoints at the same point of their calls. These methods raise InvalidState
    without CacheOptions.integrity."""

    def take_checks(self) -> Records:
        """STATE_CHECK [n]: the checks that were decided since the last call, in order. An engine takes them after each
        call whose answer it executes, and begins them before it does. kind: index of CHECK_KINDS. content names the
        checkpoint: the number of its publication. request: that made or reads the state; -1: a transfer to a tier
        reads it. pass: whose commit publishes it, or which reads it; 0: none."""
        checks, count = ctypes.POINTER(_c.StateCheck)(), ctypes.c_size_t()
        with self._turn:
            calls.request_cache_take_checks(self.handle, ctypes.byref(checks), ctypes.byref(count))
            return copied(checks, count.value, STATE_CHECK)

    def withdraw(self, faults: Any) -> int:
        """faults: STATE_FAULT [n], as StateIntegrity.poll answers them. No later prompt finds the checkpoints that they
        name, on the device or in a tier but the remote one. A checkpoint that is not in its slot any more is left
        alone: faults may come late and twice. Answers how many were taken back. Raises InvalidArgument for a group, a
        slot or a kind that does not exist; nothing has changed then."""
        array = records("faults", faults, STATE_FAULT)
        withdrawn = ctypes.c_int32()
        calls.request_cache_withdraw(self.handle, address(array), len(array), ctypes.byref(withdrawn))
        return withdrawn.value

    def integrity_usage(self) -> IntegrityUsage:
        out = _c.IntegrityUsage()
        calls.request_cache_integrity_usage(self.handle, ctypes.byref(out))
        usage: IntegrityUsage = plain(IntegrityUsage, out)
        return usage
