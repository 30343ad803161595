# SPDX-License-Identifier: Apache-2.0
"""Sampled tokens on their way into the cache."""

from __future__ import annotations

from typing import Any

from stateport.eviction import ReuseHint
from stateport.transformers.ledger import Ledger, Running

_FLUSH_TOKENS = 64  # sampled tokens that are reported together, without pages


class Answer:
    """Reports the tokens that a running request samples, several at a time. `running` is None behind its end, or where
    there was no room."""

    def __init__(self, owner: Any, ledger: Ledger, running: Running, prompt_tokens: int,
                 hint: ReuseHint | None) -> None:
        self._owner, self._ledger, self._prompt_tokens, self._hint = owner, ledger, prompt_tokens, hint
        self.running: Running | None = running
        self._pending: list[int] = []

    def append(self, token: int) -> None:
        """The model ran one token, and sampled this one."""
        if self.running is None:
            return
        self._pending.append(token)
        position = self.running.position + len(self._pending)
        full = position + 1 >= self._owner.request_tokens
        if full or self._wants_state(position):
            self._tell()
        if full:
            self.finish()

    def _wants_state(self, position: int) -> bool:
        """Whether the cache may keep the current state, after `position` tokens."""
        if position <= self._prompt_tokens:
            return True
        page = self._owner.page_tokens
        return position % page == 0 if page > 1 else len(self._pending) >= _FLUSH_TOKENS

    def _tell(self) -> None:
        tokens, self._pending = self._pending, []
        if self.running is not None and tokens and not self._ledger.append(self.running, tokens):
            self.finish()

    def fork(self, tokens: list[int]) -> list[Answer]:
        """The model ran the last token of the prompt in each row of its cache, and sampled these, one for each. Answers
        their answers, and ends this one. []: there is no room for them."""
        if self.running is None:
            return []
        forks = self._ledger.fork(self.running, tokens, self._hint)
        self.running = None
        return [Answer(self._owner, self._ledger, fork, self._prompt_tokens, self._hint) for fork in forks]

    def finish(self) -> None:
        """Keeps the computed tokens. Ending an answer twice is fine."""
        self._tell()
        running, self.running = self.running, None
        if running is not None:
            self._ledger.finish(running, self._hint)

    def abort(self) -> None:
        """Keeps only prefixes that other requests can find already."""
        running, self.running = self.running, None
        if running is not None:
            self._ledger.abort(running)
