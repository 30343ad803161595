# SPDX-License-Identifier: Apache-2.0
"""Random conversations with tiny models, and a witness that compares every answer with runs that know no cache."""
from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

from stateport.demo.tiny import ARCHITECTURES, VOCABULARY
from stateport.transformers import PrefixCache, Served
from stateport.transformers.layout import CacheLayout, cache_argument, run
from stateport.transformers.stores import extent_of, granularity_bytes, kv_bytes_per_token, state_bytes

# For tests that take seconds for each architecture. Every run has these twelve; among them are windows (lfm3), several
# states of a layer with windows (inkling), and integers with an indexer (qwen4_exp). With
# STATEPORT_TEST_ARCHITECTURES=all, as in .ci/deep, all architectures are here.
_EVERY_RUN = ("qwen3_next", "qwen3_5", "bamba", "falcon_h1", "jamba", "nemotron_h", "granitemoehybrid", "lfm2",
              "zamba2", "lfm3", "inkling", "qwen4_exp")
_ALL = os.environ.get("STATEPORT_TEST_ARCHITECTURES") == "all"
COSTLY = tuple(name for name in ARCHITECTURES if _ALL or name in _EVERY_RUN)

CLOSE = 2e-3  # of logits up to 5: another order of additions changes them by less than 1e-4, another state by more
Tokens = tuple[int, ...]
Part = tuple[int, int]  # the tokens [begin, end) of one forward pass


LONGEST = 130  # tokens of a request under `budget`


def budget(layout: CacheLayout, *, states: int = 0, tokens: int = 0, page_tokens: int = 1, requests: int = 2,
           longest: int = LONGEST) -> dict[str, Any]:
    """Options of a PrefixCache that serves requests of up to `longest` tokens, and has room for `states` states and
    `tokens` tokens of KV beside the least memory for that."""
    granularity = granularity_bytes(layout)
    of_states = extent_of(layout.state_spec(), granularity)
    of_pages = extent_of(layout.page_spec(page_tokens), granularity)
    least = (of_states.least(requests + 1) * of_states.bytes + 2 * (of_states.bytes + of_pages.bytes)
             + of_pages.least(longest // page_tokens + 1) * of_pages.bytes)
    return {"memory": least + states * state_bytes(layout) + tokens * kv_bytes_per_token(layout),
            "max_tokens": longest, "page_tokens": page_tokens, "requests": requests}


def as_ids(tokens: Tokens) -> torch.Tensor:
    return torch.tensor([tokens])


class Witness:
    """Serves prompts by a cache.

    Each answer is compared with that of model.generate, which computes the prompt in one pass: tokens are equal (unless
    two logits are closer than rounding), logits close. Where all that a request reused was computed by one history of
    passes, the same passes run without a cache must give the same logits bit by bit."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.exact, self.ties, self.compared = 0, 0, 0
        self._parts: list[Part] = []
        self._records = False
        self._origins: dict[Tokens, set[Part]] = {}  # the passes that computed the last token of each prefix
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _: Any, arguments: Any, options: Any) -> None:
        if self._records:
            begin = options[cache_argument(self.model)].get_seq_length()
            self._parts.append((begin, begin + options["input_ids"].shape[1]))

    @contextlib.contextmanager
    def recording(self, tokens: list[int]) -> Iterator[None]:
        """The model computes these tokens in the `with` statement; the list may grow meanwhile."""
        self._parts, self._records = [], True
        try:
            yield
        finally:
            self._records = False
            for begin, end in self._parts:
                for at in range(begin + 1, end + 1):
                    self._origins.setdefault(tuple(tokens[:at]), set()).add((begin, end))

    def serve(self, cache: PrefixCache, prompt: Tokens, answer: int, **options: Any) -> tuple[Tokens, Served]:
        """Generates `answer` tokens. options: of PrefixCache.generate. Returns all tokens, and the cache's counts."""
        tokens = list(prompt)
        with self.recording(tokens):
            out = cache.generate(as_ids(prompt), max_new_tokens=answer, do_sample=False, return_dict_in_generate=True,
                                 output_logits=True, **options)
            tokens[:] = out.sequences[0].tolist()
        cache.check_invariants()
        assert cache.running_requests == 0
        assert cache.last is not None
        assert tokens[:len(prompt)] == list(prompt)
        assert len(tokens) == len(prompt) + answer
        logits = torch.cat([step.float() for step in out.logits])
        self.compare(prompt, tokens[len(prompt):], logits)
        self._compare_parts(tuple(tokens), cache.last.reused_tokens, logits)
        return tuple(tokens), cache.last

    def compare(self, prompt: Tokens, sampled: list[int], logits: torch.Tensor) -> None:
        """With a run that computes the whole prompt in one pass."""
        ids = as_ids(prompt)
        cold = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(sampled),
                                   do_sample=False, return_dict_in_generate=True, output_logits=True)
        for step, (token, wanted) in enumerate(zip(sampled, cold.sequences[0, len(prompt):].tolist(), strict=True)):
            expected = cold.logits[step][0].float()
            apart = float((logits[step] - expected).abs().max())
            assert apart < CLOSE, f"logits after {len(prompt) + step} tokens are {apart} apart"
            self.compared += 1
            if token != wanted:
                assert float(expected[wanted] - expected[token]) < 2 * CLOSE
                self.ties += 1
                return

    def _compare_parts(self, tokens: Tokens, reused: int, logits: torch.Tensor) -> None:
        before = self._history(tokens, reused)
        if before is None:
            return
        ids, cold, begins = as_ids(tokens), DynamicCache(config=self.model.config), 0
        steps = []
        for begin, end in (*before, *self._parts):
            assert begin == begins
            steps.append(run(self.model, ids, cold, begin, end)[0, -1].float())
            begins = end
        assert torch.equal(torch.stack(steps[-len(logits):]), logits), f"not the same bits after {reused} reused tokens"
        self.exact += reused > 0

    def _history(self, tokens: Tokens, reused: int) -> list[Part] | None:
        """The only passes that ever computed the first `reused` tokens; None: there were others, or passes that were
        not seen."""
        parts: list[Part] = []
        while (done := parts[-1][1] if parts else 0) < reused:
            if not (seen := self._origins.get(tokens[:done + 1])):
                return None
            part = min(seen)
            begin, end = part
            if begin != done or end > reused:
                return None
            if any(self._origins.get(tokens[:at]) != {part} for at in range(done + 1, end + 1)):
                return None
            parts.append(part)
        return parts


class Conversations:
    """Prompts that go on from earlier answers, branch off inside them, repeat earlier ones, or are new."""

    def __init__(self, seed: int, longest: int) -> None:
        self._draw, self._longest = random.Random(seed), longest
        self.asked: list[Tokens] = []
        self.answered: list[Tokens] = []

    def fresh(self, least: int, most: int) -> Tokens:
        """From `least` to `most` random tokens."""
        return tuple(self._draw.randrange(3, VOCABULARY) for _ in range(self._draw.randint(least, most)))

    def next(self) -> tuple[Tokens, int]:
        """A prompt, and how many tokens to answer."""
        kind = self._draw.random()
        prompt = self.fresh(1, 40)
        if self.answered and kind < 0.4:
            prompt = self._draw.choice(self.answered) + self.fresh(1, 12)
        elif self.answered and kind < 0.65:
            earlier = self._draw.choice(self.answered)
            prompt = earlier[:self._draw.randint(1, len(earlier))] + self.fresh(1, 15)
        elif self.asked and kind < 0.75:
            prompt = self._draw.choice(self.asked)
        prompt = prompt[:self._longest]
        self.asked.append(prompt)
        return prompt, self._draw.randint(1, 6)

    def keep(self, tokens: Tokens) -> None:
        self.answered.append(tokens)
