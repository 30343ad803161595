# SPDX-License-Identifier: Apache-2.0
"""Passes over made-up prompts, before there are requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from stateport.transformers.layout import cache_argument, run
from stateport.transformers.ledger import Ledger
from stateport.transformers.speed import Times


class Warming:
    """Runs passes of a PrefixCache's model beside the cache. measured: their times go into the cache's speed. Its
    memory is read, and not written."""

    def __init__(self, owner: Any, ledger: Ledger, *, measured: bool) -> None:
        self._owner, self._ledger, self._measured = owner, ledger, measured

    def warm_up(self, prompt: int, tails: Sequence[int]) -> None:
        """A prompt of `prompt` tokens in one pass, then in the passes of a miss with each tail behind it."""
        owner, speed = self._owner, self._owner.speed
        vocabulary = owner.model.get_input_embeddings().num_embeddings
        ids = (torch.arange(prompt + sum(tails), device=owner.layout.device) % vocabulary).unsqueeze(0)
        with self._timed(speed.passes, prompt):
            self._sample(ids[:, :prompt], DynamicCache(config=owner.model.config))
        cache = DynamicCache(config=owner.model.config)
        step = prompt if owner.layout.stepwise else owner.chunk_tokens
        for begin in range(0, prompt - 1, step):
            self._pass(ids, cache, begin, min(begin + step, prompt - 1))
        with self._timed(speed.last_tokens, 1):
            self._sample(ids[:, :prompt], cache)
        with self._timed(speed.restores, prompt):
            self._ledger.read(prompt)
        for tail in tails:
            begin = cache.get_seq_length()
            step = 1 if owner.layout.stepwise else tail
            for at in range(begin, begin + tail, step):
                self._pass(ids, cache, at, at + step)

    def _pass(self, ids: torch.Tensor, cache: DynamicCache, begin: int, end: int) -> None:
        # A step behind a prefix is no measure of passes that begin a prompt.
        into = Times() if self._owner.layout.stepwise and begin > 0 else self._owner.speed.passes
        with self._timed(into, end - begin):
            run(self._owner.model, ids, cache, begin, end)

    def _sample(self, ids: torch.Tensor, cache: DynamicCache) -> None:
        model = self._owner.model
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False,
                       **{cache_argument(model): cache})

    @contextlib.contextmanager
    def _timed(self, into: Times, size: int) -> Iterator[None]:
        clock = self._owner.clock
        begin = clock.mark()
        yield
        took = clock.seconds(begin, clock.mark())
        if self._measured:
            into.note(size, took)
