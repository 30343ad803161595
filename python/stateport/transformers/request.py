# SPDX-License-Identifier: Apache-2.0
"""One prompt on its way through the cache."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, StoppingCriteria

from stateport.errors import InvalidState
from stateport.transformers.layout import run
from stateport.transformers.ledger import Ledger, Running

_FLUSH_TOKENS = 64  # sampled tokens that wait to be told, without pages


@dataclasses.dataclass
class Served:
    """What the cache did for one request.

    reused_tokens: of the prompt, that were not computed; loaded_tokens: those of them that came from a tier, and
    loaded_from which ("" : none). computed_tokens: by passes of the cache over the prompt. lost: why not more was
    reused. cached: False: there was no room, and the request ran without the cache, from then on.
    restore_s, prefill_s: seconds to look up, load and restore, and to compute the rest of the prompt but for its last
    token. saved_s: what computing the reused tokens would take by the prefill speed seen so far, less restore_s."""

    prompt_tokens: int
    reused_tokens: int = 0
    loaded_tokens: int = 0
    loaded_from: str = ""
    computed_tokens: int = 0
    sampled_tokens: int = 0
    lost: str = "nothing"
    cached: bool = True
    restore_s: float = 0.0
    prefill_s: float = 0.0
    saved_s: float = 0.0


class Request(StoppingCriteria):  # type: ignore[misc]
    """A request that started. past_key_values goes on from what the prompt shares with earlier ones.

    `prefill` runs the prompt but for its last token. Then each forward pass over one token is followed by `append` with
    what was sampled; or the request is handed to `generate` as a stopping criterion, which tells it. Leaving its `with`
    statement finishes the request; an exception aborts it."""

    def __init__(self, owner: Any, ledger: Ledger, ids: torch.Tensor, options: dict[str, Any]) -> None:
        self._owner, self._ledger, self._ids, self._hint = owner, ledger, ids, options["hint"]
        tokens = ids[0].to("cpu", torch.int64).numpy()
        self.served = Served(len(tokens))
        self._pending: list[int] = []
        self._ended = False
        begin = time.perf_counter()
        self._running = self._start(tokens.astype(np.int32), options)
        self.past_key_values: DynamicCache = self._cache()
        self.served.restore_s = time.perf_counter() - begin
        self.served.saved_s = owner.speed.saved(self.served.reused_tokens, self.served.restore_s)

    def _start(self, tokens: np.ndarray[Any, Any], options: dict[str, Any]) -> Running | None:
        running = None
        if len(tokens) < self._owner.request_tokens:
            running = self._ledger.start(tokens, options["namespace"], self._hint)
        self.served.cached = running is not None
        if running is None:
            return None
        started, self.served.reused_tokens = running.started, running.position
        self.served.lost = started.lost
        if started.load_tokens and running.position == started.load_tokens:
            self.served.loaded_tokens = started.load_tokens - started.reused_tokens
            self.served.loaded_from = started.load_medium
        return running

    def _cache(self) -> DynamicCache:
        if self._running is not None and self._running.cache is not None:
            return self._running.cache
        cache = DynamicCache(config=self._owner.model.config)
        if self._running is not None:
            self._running.cache = cache
        return cache

    # --- Tokens ------------------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        """Runs the prompt up to its last token, which is left for the caller's first forward pass."""
        begin, first = time.perf_counter(), self.past_key_values.get_seq_length()
        end = self._ids.shape[1] - 1
        while (at := self.past_key_values.get_seq_length()) < end:
            count = self._part(at, end - at)
            if self._running is None or not self._ledger.run(self._running, count, self._forward):
                self._leave()
                self._forward(self.past_key_values, at, at + count)
        self.served.computed_tokens = end - first
        self.served.prefill_s = time.perf_counter() - begin
        if first == 0 or not self._owner.layout.stepwise:
            self._owner.speed.note(self.served.computed_tokens, self.served.prefill_s)

    def _part(self, at: int, left: int) -> int:
        """How many of the tokens that are left to run in one pass."""
        if not self._owner.layout.stepwise:
            most: int = self._owner.chunk_tokens
            return min(left, most)
        # What follows the first pass is slow: it is as long as it can be, and ends where its state can be kept.
        page: int = self._owner.page_tokens
        return left // page * page if at == 0 and left >= page else left

    def _forward(self, cache: DynamicCache, begin: int, end: int) -> None:
        step = 1 if self._owner.layout.stepwise and begin > 0 else end - begin
        for at in range(begin, end, step):
            run(self._owner.model, self._ids, cache, at, at + step)

    def append(self, token: int) -> None:
        """The last forward pass ran one token, and `token` was sampled. Raises InvalidState after the end, ClosedError
        if the cache was closed meanwhile."""
        if self._ended:
            raise InvalidState("this request has ended")
        self._ledger.require_open()
        self.served.sampled_tokens += 1
        if self._running is None:
            return
        self._pending.append(token)
        position = self._running.position + len(self._pending)
        full = position + 1 >= self._owner.request_tokens
        if full or self._wants_state(position):
            self._tell()
        if full:
            self._leave()

    def _wants_state(self, position: int) -> bool:
        """Whether the cache may want the state after so many tokens, which is the one that there is now."""
        if position <= self.served.prompt_tokens:
            return True
        page = self._owner.page_tokens
        return position % page == 0 if page > 1 else len(self._pending) >= _FLUSH_TOKENS

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """As a stopping criterion of `generate`: hears of every token, and stops nothing."""
        self.append(int(input_ids[0, -1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def _tell(self) -> None:
        tokens, self._pending = self._pending, []
        if self._running is not None and tokens and not self._ledger.append(self._running, tokens):
            self._leave()

    def _leave(self) -> None:
        """Goes on without the cache: there is no room."""
        if self._running is not None:
            self._ledger.finish(self._running, self._hint)
        self._running, self.served.cached = None, False
        self._pending = []

    # --- The end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Keeps what was computed. Ending a request twice is fine."""
        if not self._ended:
            self._tell()
            self._end(keep=True)

    def abort(self) -> None:
        """Keeps what other requests can find already, and nothing more."""
        self._end(keep=False)

    def _end(self, keep: bool) -> None:
        if self._ended:
            return
        self._ended = True
        running, self._running = self._running, None
        if running is not None and keep:
            self._ledger.finish(running, self._hint)
        elif running is not None:
            self._ledger.abort(running)
        self._owner.ended(self)

    def __enter__(self) -> Request:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "ended" if self._ended else "runs"
        return f"<Request of {self.served.prompt_tokens} tokens, {self.served.reused_tokens} reused, {state}>"


class Speed:
    """How fast the model computes prompts: seconds = a + b * tokens, fitted to the requests seen so far, of which later
    ones count more."""

    _KEPT = 0.9  # of the weight of a request, when the next one is seen

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt took so long."""
        if tokens == 0:
            return
        seen = {"_n": 1.0, "_x": tokens, "_y": seconds, "_xx": tokens**2, "_xy": tokens * seconds}
        for name, value in seen.items():
            setattr(self, name, self._KEPT * getattr(self, name) + value)

    def seconds_per_token(self) -> float:
        """b; 0: nothing was seen."""
        if self._x == 0:
            return 0.0
        spread = self._n * self._xx - self._x**2
        if spread < 1e-6 * self._n * self._xx:  # prompts of one length: all of it is b
            return self._y / self._x
        return max((self._n * self._xy - self._x * self._y) / spread, 0.0)

    def saved(self, tokens: int, spent_s: float) -> float:
        """Seconds that computing so many tokens more takes, less those spent in place of it. 0: nothing was seen."""
        per_token = self.seconds_per_token()
        return tokens * per_token - spent_s if tokens and per_token else 0.0
