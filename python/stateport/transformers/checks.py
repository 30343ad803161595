# SPDX-License-Identifier: Apache-2.0
"""Checks of cached states: those whose bytes changed are taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from stateport.integrity import StateIntegrity
from stateport.request_cache import RequestCache
from stateport.store import StateStore


class Checks:
    """The sums of a cache's states, if its option `integrity` is set; else every call does nothing."""

    def __init__(self, book: RequestCache, states: StateStore) -> None:
        self._book, self._integrity = book, None
        self.withdrawn_states = 0
        self._wrong: set[int] = set()  # requests that read a state which had changed
        if book.options.integrity:
            self._integrity = StateIntegrity([states], checks_max=book.integrity_usage().checks_max)

    @contextlib.contextmanager
    def around(self, stream: Any) -> Iterator[None]:
        """The `with` statement carries out the newest answer of the cache."""
        checks = self._book.take_checks() if self._integrity is not None else ()
        if self._integrity is None or not len(checks):
            yield
            return
        self._integrity.begin(checks, stream)
        try:
            yield
        finally:
            self._integrity.end(stream)

    def withdraw(self) -> None:
        """Takes the states back that are known to be wrong. No pass is planned."""
        if self._integrity is None:
            return
        faults = self._integrity.poll()
        if len(faults):
            self.withdrawn_states += self._book.withdraw(faults)
            self._wrong.update(faults["check"]["request"].tolist())

    def is_wrong(self, request: int, stream: Any) -> bool:
        """Whether the plan that was just cancelled read a state that had changed. Waits for its checks. No later prompt
        finds the state then."""
        if self._integrity is None:
            return False
        self._integrity.wait(stream)
        self.withdraw()
        wrong = request in self._wrong
        self._wrong.clear()  # other requests hold states that they restored before
        return wrong

    def close(self) -> None:
        if self._integrity is not None:
            self._integrity.close()
