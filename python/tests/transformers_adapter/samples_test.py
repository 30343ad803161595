# SPDX-License-Identifier: Apache-2.0
"""Several answers to one prompt: the prompt is computed once, and the cache keeps each answer."""
from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from transformers import StoppingCriteria  # noqa: E402
from witness import COSTLY, Witness, as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from conftest import seeds  # noqa: E402
from stateport.demo.tiny import VOCABULARY, tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, probe  # noqa: E402

PROMPT = tuple(range(3, 40))
SAMPLES = 4


class Passes:
    """Counts the tokens that a model runs: rows times tokens of each pass."""

    def __init__(self, model: Any) -> None:
        self.tokens: list[tuple[int, int]] = []
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _: Any, __: Any, inputs: Any) -> None:
        self.tokens.append(tuple(inputs["input_ids"].shape))

    def of_prompt(self) -> int:
        """Tokens of passes before the first one that samples. Forgets all passes."""
        count = next(i for i, (rows, _) in enumerate(self.tokens) if rows > 1)
        tokens = sum(rows * tokens for rows, tokens in self.tokens[:count])
        self.tokens.clear()
        return tokens


def sampled(generate: Any, prompt: tuple[int, ...], seed: int, count: int = SAMPLES, **options: Any) -> list[Any]:
    torch.manual_seed(seed)
    options = {"max_new_tokens": 6, "do_sample": True, "num_return_sequences": count, **options}
    rows: list[Any] = generate(as_ids(prompt), **options).tolist()
    return rows


def without_padding(rows: list[Any], ends: int) -> list[tuple[int, ...]]:
    """Each row up to the first token that ends an answer, behind the prompt."""
    found = []
    for row in rows:
        answer = row[len(PROMPT):]
        found.append(tuple(row[:len(PROMPT) + (answer.index(ends) + 1 if ends in answer else len(answer))]))
    return found


@pytest.mark.parametrize("architecture", COSTLY)
@pytest.mark.parametrize("page_tokens", [1, 4])
def test_samples_are_those_without_a_cache_and_go_on_from_their_ends(architecture: str, page_tokens: int) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model(architecture, seed)
        passes, draw = Passes(model), random.Random(seed)
        with PrefixCache(model, memory="4 MiB", page_tokens=page_tokens, requests=SAMPLES + 1) as cache:
            passes.tokens.clear()
            for turn in range(2):
                rows = sampled(cache.generate, PROMPT, seed)
                assert passes.of_prompt() == (len(PROMPT) - 1 if turn == 0 else 0 if page_tokens == 1 else
                                              (len(PROMPT) - 1) % page_tokens)
                assert rows == sampled(model.generate, PROMPT, seed)
                passes.tokens.clear()
                assert cache.last is not None
                assert cache.last.cached
                assert cache.last.sampled_tokens == SAMPLES * 6
                cache.check_invariants()
                assert cache.running_requests == 0
            assert cache.stats().forks == 2 * SAMPLES
            assert cache.stats().requests == 2
            witness = Witness(model)
            for row in rows:
                _, served = witness.serve(cache, (*row, draw.randrange(3, VOCABULARY)), 3)
                assert served.reused_tokens == (len(row) - 1) // page_tokens * page_tokens


def test_an_answer_that_ends_early_is_kept_up_to_its_end() -> None:
    model = tiny_model("qwen3_next", 5)
    ends = sampled(model.generate, PROMPT, 3, 8)[0][len(PROMPT) + 2]
    options: dict[str, Any] = {"eos_token_id": [ends], "pad_token_id": 0}
    with PrefixCache(model, memory="4 MiB", requests=9) as cache:
        rows = sampled(cache.generate, PROMPT, 3, 8, **options)
        assert rows == sampled(model.generate, PROMPT, 3, 8, **options)
        answers = without_padding(rows, ends)
        lengths = {len(answer) for answer in answers}
        assert len(lengths) > 1
        assert cache.last is not None
        assert cache.last.sampled_tokens == sum(len(answer) - len(PROMPT) for answer in answers)
        witness = Witness(model)
        for answer in answers:
            _, served = witness.serve(cache, (*answer, 70, 71), 3)
            assert served.reused_tokens >= len(answer) - 1


class EndsAt(StoppingCriteria):  # type: ignore[misc]
    """Ends row i after i + 1 tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.arange(len(input_ids)) < input_ids.shape[1] - len(PROMPT)


def test_a_criterion_of_the_caller_ends_rows() -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="4 MiB", requests=SAMPLES + 1) as cache:
        rows = sampled(cache.generate, PROMPT, 3, stopping_criteria=[EndsAt()])
        assert rows == sampled(model.generate, PROMPT, 3, stopping_criteria=[EndsAt()])
        assert cache.last is not None
        assert cache.last.sampled_tokens == sum(range(1, SAMPLES + 1))
        for i, row in enumerate(rows):
            with cache.request(as_ids((*row[:len(PROMPT) + i + 1], 90, 91))) as request:
                # Row 0 had no pass of its own: it leaves no state.
                assert request.served.reused_tokens == (len(PROMPT) + i if i > 0 else len(PROMPT) - 1)


@pytest.mark.parametrize("requests", [1, SAMPLES])
def test_without_request_numbers_the_prompt_alone_is_kept(requests: int) -> None:
    model = tiny_model("bamba")
    with PrefixCache(model, memory="4 MiB", requests=requests) as cache:
        rows = sampled(cache.generate, PROMPT, 3)
        assert rows == sampled(model.generate, PROMPT, 3)
        assert cache.last is not None
        assert not cache.last.cached
        assert cache.stats().forks == cache.running_requests == 0
        _, served = Witness(model).serve(cache, tuple(rows[0]), 2)
        assert served.reused_tokens == len(PROMPT)


def test_samples_that_fill_the_room_go_on_without_the_cache() -> None:
    model = tiny_model("falcon_h1")
    options = {**budget(probe(model), longest=48, requests=SAMPLES + 1)}
    for answer in (30, 5):
        with PrefixCache(model, **options) as cache:
            wanted = sampled(model.generate, PROMPT, 3, max_new_tokens=answer)
            assert sampled(cache.generate, PROMPT, 3, max_new_tokens=answer) == wanted
            cache.check_invariants()
            assert cache.running_requests == 0
            long = tuple(range(3, 51))  # longer than the cache serves, with the last token that it can begin with
            for prompt in (long, long[:-1], long[:-2]):
                assert sampled(cache.generate, prompt, 4) == sampled(model.generate, prompt, 4)
                cache.check_invariants()
                assert cache.running_requests == 0


@pytest.mark.parametrize("prompt", [(5,), (5, 6), PROMPT])
@pytest.mark.parametrize("new", [1, 2])
def test_the_shortest_prompts_and_answers(prompt: tuple[int, ...], new: int, tmp_path: pathlib.Path) -> None:
    model = tiny_model("qwen3_5")
    tiers = Tiers(host_bytes="1 MiB", folder=tmp_path, file_bytes="8 MiB")
    with PrefixCache(model, memory="4 MiB", requests=SAMPLES + 1, tiers=tiers, page_tokens=4, scrub=True) as cache:
        for seed in range(3):
            namespace = sp.Namespace(salt=b"tenant %d" % (seed % 2))
            rows = sampled(cache.generate, prompt, seed, max_new_tokens=new, namespace=namespace)
            assert rows == sampled(model.generate, prompt, seed, max_new_tokens=new)
            cache.check_invariants()
            assert cache.running_requests == 0


@pytest.mark.parametrize("at", range(1, 5))
def test_an_exception_in_the_answers_leaves_nothing_running(at: int) -> None:
    model = tiny_model("lfm2")
    left = [at]

    class Fails(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            left[0] -= 1
            if left[0] == 0:
                raise ArithmeticError("the caller failed")
            return torch.zeros(len(input_ids), dtype=torch.bool)

    with PrefixCache(model, memory="4 MiB", requests=SAMPLES + 1) as cache:
        with pytest.raises(ArithmeticError, match="the caller failed"):
            sampled(cache.generate, PROMPT, 3, stopping_criteria=[Fails()])
        assert cache.running_requests == 0
        cache.check_invariants()
        assert sampled(cache.generate, PROMPT, 3) == sampled(model.generate, PROMPT, 3)


def test_a_hit_is_taken_whatever_it_costs(weighed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateport.transformers.speed.Speed.is_slow", lambda *_: True)
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="4 MiB", requests=SAMPLES + 1) as cache:
        for reused in (0, len(PROMPT) - 1):
            sampled(cache.generate, PROMPT, 3)
            assert cache.last is not None
            assert (cache.last.reused_tokens, cache.last.skipped_tokens) == (reused, 0)


def test_the_number_of_samples_is_read_from_the_configuration_and_refused_of_a_stream() -> None:
    model = tiny_model("lfm2")
    model.generation_config.num_return_sequences, model.generation_config.do_sample = 3, True
    with PrefixCache(model, memory="4 MiB", requests=4) as cache:
        torch.manual_seed(1)
        assert cache.generate(as_ids(PROMPT), max_new_tokens=2).shape == (3, len(PROMPT) + 2)
        assert cache.stats().forks == 3
        with pytest.raises(sp.InvalidArgument, match="num_return_sequences is 3, and must be 1"):
            cache.stream(as_ids(PROMPT))
