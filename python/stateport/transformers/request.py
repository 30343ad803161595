# SPDX-License-Identifier: Apache-2.0
"""One prompt on its way through the cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, StoppingCriteria

from stateport.errors import InvalidState
from stateport.transformers.answer import Answer
from stateport.transformers.layout import CacheLayout, run
from stateport.transformers.ledger import Ledger, Running

_STEPS_MAX = 32  # of a stepwise model behind the first pass over a prompt, so that it leaves named states


@dataclasses.dataclass
class Served:
    """The cache's work for one request.

    reused_tokens: of the prompt, that were not computed; loaded_tokens: those of them that came from a tier, and
    loaded_from which ("" : none). skipped_tokens: that were found, and computed all the same, because that is faster:
    such a request leaves nothing in the cache. computed_tokens: by passes of the cache over the prompt. lost: why not
    more was reused. cached: False: the request ran without the cache, from then on: there was no room, or a hit was
    skipped.
    restore_s, prefill_s: seconds to look up, load and restore, and to compute the rest of the prompt but for its last
    token; of a hit that was skipped until the first new token. saved_s: the time of computing the reused tokens by
    the passes seen so far, less restore_s. All three are known after the first new token."""

    prompt_tokens: int
    reused_tokens: int = 0
    loaded_tokens: int = 0
    loaded_from: str = ""
    skipped_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    lost: str = "nothing"
    cached: bool = True
    restore_s: float = 0.0
    prefill_s: float = 0.0
    saved_s: float = 0.0


class Request(StoppingCriteria):  # type: ignore[misc]
    """A request that started. past_key_values holds the prefix that the prompt shares with earlier ones.

    `prefill` runs the prompt but for its last token. Then each forward pass over one token is followed by `append` with
    the sampled token; or the request is handed to `generate` as a stopping criterion, and appends the tokens itself.
    Leaving its `with` statement finishes the request; an exception aborts it."""

    def __init__(self, owner: Any, ledger: Ledger, ids: torch.Tensor, options: dict[str, Any]) -> None:
        self._owner, self._ledger, self._ids, self._hint = owner, ledger, ids, options["hint"]
        tokens = ids[0].to("cpu", torch.int64).numpy()
        self.served = Served(len(tokens))
        self._ended = False
        # Where the passes over the prompt begin and end, until the first new token is there.
        self._marks: list[tuple[int, Any]] | None = [(0, owner.clock.mark())]
        running = self._start(tokens.astype(np.int32), options)
        self._answer = None if running is None else Answer(owner, ledger, running, len(tokens), self._hint)
        self.past_key_values: DynamicCache = self._cache()
        self._mark()

    def _start(self, tokens: np.ndarray[Any, Any], options: dict[str, Any]) -> Running | None:
        running, speed = None, self._owner.speed

        def skips(reused: int) -> bool:
            return bool(options["may_skip"] and speed.is_slow(len(tokens), reused, self._owner.layout.stepwise))

        if len(tokens) < self._owner.request_tokens:
            running = self._ledger.start(tokens, {name: options[name] for name in ("namespace", "hint", "breakpoints")},
                                         speed, skips)
        self.served.cached = running is not None
        if running is None:
            return None
        started = running.started
        self.served.reused_tokens, self.served.lost = running.position, started.lost
        if started.load_tokens and started.load_tokens in (running.position, running.skipped):
            speed.note_load(started.load_medium, started.load_bytes, running.loaded_s)
        if running.skipped:
            speed.note_skip(running.skipped)
            self.served.skipped_tokens, self.served.cached = running.skipped, False
            return None
        if started.load_tokens and running.position == started.load_tokens:
            self.served.loaded_tokens = started.load_tokens - started.reused_tokens
            self.served.loaded_from = started.load_medium
        return running

    def _cache(self) -> DynamicCache:
        if self._running is not None and self._running.cache is not None:
            return self._running.cache
        cache = DynamicCache(config=self.model_config)
        if self._running is not None:
            self._running.cache = cache
        return cache

    @property
    def _running(self) -> Running | None:
        return None if self._answer is None else self._answer.running

    @property
    def layout(self) -> CacheLayout:
        """That of the model."""
        layout: CacheLayout = self._owner.layout
        return layout

    @property
    def model_config(self) -> Any:
        """That of the model."""
        return self._owner.model.config

    # --- Tokens ------------------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        """Runs the prompt up to its last token, which is left for the caller's first forward pass. Where a hit is
        skipped all of it is left."""
        if self.served.skipped_tokens:
            self.served.computed_tokens = self.served.prompt_tokens
            return
        first, end = self.past_key_values.get_seq_length(), self._ids.shape[1] - 1
        while (at := self.past_key_values.get_seq_length()) < end:
            count = self._part(at, end - at)
            if self._running is None or not self._ledger.run(self._running, count, self._forward):
                self._leave()
                self._forward(self.past_key_values, at, at + count)
            self._mark()
        self.served.computed_tokens = end - first

    def _part(self, at: int, left: int) -> int:
        """How many of the tokens that are left to run in one pass. It ends at the next named position."""
        named = self._running.started.breakpoints if self._running is not None else ()
        behind = [position - at for position in named if position > at]
        if not self._owner.layout.stepwise or at > 0:
            most: int = left if self._owner.layout.stepwise else self._owner.chunk_tokens
            return min(left, most, *behind[:1])
        # Passes after the first are slow, so the first is as long as it can be, and ends where its state can be kept.
        page: int = self._owner.page_tokens
        whole = left // page * page or left
        return min([whole, *(count for count in behind if count >= left - _STEPS_MAX)])

    def _forward(self, cache: DynamicCache, begin: int, end: int) -> None:
        step = 1 if self._owner.layout.stepwise and begin > 0 else end - begin
        for at in range(begin, end, step):
            run(self._owner.model, self._ids, cache, at, at + step)

    def _mark(self) -> None:
        if self._marks is not None:
            self._marks.append((self.past_key_values.get_seq_length(), self._owner.clock.mark()))

    def _measure(self) -> None:
        """Notes the times until the first new token, which is there now, in `served` and in the speed."""
        marks, self._marks = self._marks, None
        if marks is None:
            return
        served, speed, clock = self.served, self._owner.speed, self._owner.clock
        now, (at, restored) = clock.mark(), marks[1]
        served.restore_s = clock.seconds(marks[0][1], restored)
        if served.skipped_tokens and not served.sampled_tokens:
            return
        if served.skipped_tokens:
            served.prefill_s = clock.seconds(restored, now)
            speed.passes.note(served.prompt_tokens, served.restore_s + served.prefill_s)
            return
        for (begin, begin_mark), (end, end_mark) in zip(marks[1:], marks[2:], strict=False):
            took = clock.seconds(begin_mark, end_mark)
            served.prefill_s += took
            if begin == 0 or not self._owner.layout.stepwise:
                speed.passes.note(end - begin, took)
        if served.sampled_tokens and marks[-1][0] == served.prompt_tokens - 1:
            speed.last_tokens.note(1, clock.seconds(marks[-1][1], now))
        if at and not served.loaded_tokens:
            speed.restores.note(at, served.restore_s)
        served.saved_s = speed.saved(served.prompt_tokens, served.reused_tokens, served.restore_s)

    def append(self, token: int) -> None:
        """The last forward pass ran one token, and `token` was sampled. Raises InvalidState after the end, ClosedError
        if the cache was closed meanwhile."""
        self.count_sampled(1)
        if self._answer is not None:
            self._answer.append(token)
            self.served.cached = self.served.cached and self._running is not None

    def count_sampled(self, count: int) -> None:
        """`count` tokens were sampled. Raises as append."""
        if self._ended:
            raise InvalidState("this request has ended")
        self._ledger.require_open()
        self.served.sampled_tokens += count
        self._measure()

    def fork(self, cache: DynamicCache, tokens: list[int]) -> list[Answer]:
        """The last token of the prompt ran in each row of `cache`, and these were sampled. Answers the answers that
        begin with them, one for each; []: the cache keeps none, and the prompt alone."""
        if self._answer is None or self._running is None:
            return []
        self._running.cache = cache
        answers = self._answer.fork(tokens)
        self.served.cached = bool(answers)
        return answers

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """As a stopping criterion of `generate`: hears of every token, and stops nothing."""
        self.append(int(input_ids[0, -1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def _leave(self) -> None:
        """Goes on without the cache: there is no room."""
        if self._answer is not None:
            self._answer.finish()
        self.served.cached = False

    # --- The end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Keeps the computed prefix. Ending a request twice is fine."""
        self._end(keep=True)

    def abort(self) -> None:
        """Keeps only prefixes that other requests can find already."""
        self._end(keep=False)

    def _end(self, keep: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._measure()
        if self._answer is not None:
            if keep:
                self._answer.finish()
            else:
                self._answer.abort()
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
