# SPDX-License-Identifier: Apache-2.0
"""Which hits are not taken, by clocks that the tests turn."""
from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
import transformers  # noqa: E402
from witness import COSTLY, Witness, as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Speed, Tiers, attention, probe  # noqa: E402
from stateport.transformers.fingerprint import model_name  # noqa: E402
from stateport.transformers.layout import run  # noqa: E402
from stateport.transformers.speed import Times  # noqa: E402

PROMPT = tuple(range(3, 40))
PASS_S, STEP_S, RESTORE_S = 0.05, 0.02, 0.001  # a machine where launches decide: a pass takes as long as any other


class Machine:
    """A clock that passes and restores turn, as far as a cache looks at it."""

    def __init__(self, model: Any, cache: PrefixCache) -> None:
        self.now, self.passes = 0.0, []  # type: tuple[float, list[int]]
        model.register_forward_pre_hook(self._run, with_kwargs=True)
        restore = cache._ledger.stores.restore

        def slow(*arguments: Any) -> Any:
            self.now += RESTORE_S
            return restore(*arguments)

        cache._ledger.stores.restore = slow  # type: ignore[method-assign]
        cache.clock = self  # type: ignore[assignment]

    def _run(self, _: Any, arguments: Any, options: Any) -> None:
        tokens = options["input_ids"].shape[1]
        self.passes.append(tokens)
        self.now += PASS_S if tokens > 1 else STEP_S

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def learn(cache: PrefixCache, witness: Witness) -> tuple[int, ...]:
    """Four misses and two hits; returns the answer that was hit."""
    for first in (110, 111):
        witness.serve(cache, (first, *range(3, 62)), 2)
    for first in (3, 4):
        tokens, _ = witness.serve(cache, (first, *PROMPT), 2)
    for first in (50, 70):
        _, served = witness.serve(cache, (*tokens, *range(first, first + 20)), 2)
        assert served.reused_tokens > 0
        assert served.skipped_tokens == 0
    return tokens


@pytest.mark.parametrize("page_tokens", [1, 8])
@pytest.mark.parametrize("architecture", ["lfm2", "qwen3_5", "jamba"])
def test_a_hit_that_takes_longer_than_the_prompt_is_skipped(weighed: None, architecture: str, page_tokens: int) -> None:
    model = tiny_model(architecture)
    with PrefixCache(model, memory="1 MiB", page_tokens=page_tokens) as cache:
        witness, machine = Witness(model), Machine(model, cache)
        tokens = learn(cache, witness)
        asked, hits = (*tokens, *range(90, 110)), cache.speed.skipped_hits
        with witness.recording(list(asked)):
            machine.passes.clear()
            cache.generate(as_ids(asked), max_new_tokens=2, do_sample=False)
            assert machine.passes == [len(asked), 1]
        served = cache.last
        assert served is not None
        assert (served.reused_tokens, served.computed_tokens) == (0, len(asked))
        assert served.skipped_tokens >= 32
        assert served.prefill_s == pytest.approx(PASS_S)
        assert cache.speed.skipped_hits == hits + 1
        assert cache.speed.skipped_tokens >= served.skipped_tokens
        cache.check_invariants()
        assert cache.running_requests == 0
        # A prompt that is more than twice as long as its hit takes it, however slow, and leaves a state behind it.
        _, served = witness.serve(cache, (*tokens, *range(50)), 5)
        assert served.reused_tokens > 0


def test_a_hit_that_is_faster_is_taken(weighed: None) -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="1 MiB") as cache:
        witness = Witness(model)
        Machine(model, cache)
        tokens = learn(cache, witness)
        for _ in range(3):  # an equal prompt computes its last token alone
            _, served = witness.serve(cache, (4, *PROMPT), 2)
            assert served.reused_tokens == len(PROMPT)
            assert served.restore_s == pytest.approx(RESTORE_S)
        with cache.request(as_ids((*tokens, *range(90, 110)))) as request:  # no loop of the caller's own skips
            assert request.served.reused_tokens > 0


def test_every_hit_is_taken_where_an_operator_says_so(weighed: None) -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="1 MiB", skip_slow_hits=False) as cache:
        witness = Witness(model)
        Machine(model, cache)
        tokens = learn(cache, witness)
        _, served = witness.serve(cache, (*tokens, *range(90, 110)), 2)
        assert served.reused_tokens > 0
        assert cache.speed.skipped_hits == 0


SLOW = Speed({1: 0.02, 16: 0.05, 4096: 0.05}, restores={1: 0.01, 4096: 0.01}, last_token_s=0.02)


def test_figures_of_an_operator_decide_from_the_first_hit_on(weighed: None) -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="1 MiB", speed=SLOW) as cache:
        witness = Witness(model)
        tokens, _ = witness.serve(cache, PROMPT, 2)
        _, served = witness.serve(cache, (*tokens, *range(60, 79)), 2)
        assert served.skipped_tokens > 0


def test_a_model_that_fails_in_the_pass_of_a_skipped_hit_leaves_nothing(weighed: None) -> None:
    model = tiny_model("lfm2")

    def fail(*_: Any) -> None:
        raise ArithmeticError("the model failed")

    with PrefixCache(model, memory="1 MiB", speed=SLOW) as cache:
        witness = Witness(model)
        tokens, _ = witness.serve(cache, PROMPT, 2)
        with model.register_forward_pre_hook(fail), pytest.raises(ArithmeticError):
            cache.generate(as_ids((*tokens, *range(60, 79))), max_new_tokens=2)
        assert cache.running_requests == 0
        cache.check_invariants()
        witness.serve(cache, (*tokens, *range(60, 79)), 2)


@pytest.mark.parametrize("medium", ["host", "file"])
@pytest.mark.parametrize("bytes_per_s", [1e3, 1e12])
def test_loads_are_weighed_by_measured_speeds(weighed: None, tmp_path: pathlib.Path, medium: str,
                                              bytes_per_s: float) -> None:
    model = tiny_model("lfm2")
    speed = Speed({1: 0.01, 64: 1.0}, host_bytes_per_s=bytes_per_s, file_bytes_per_s=bytes_per_s)
    tiers = (Tiers(host_bytes="4 MiB") if medium == "host" else
             Tiers(folder=tmp_path, file_bytes="8 MiB", write_through=True))
    small = budget(probe(model), page_tokens=4, requests=1, longest=64)
    with PrefixCache(model, tiers=tiers, speed=speed, **small) as cache:
        witness = Witness(model)
        witness.serve(cache, PROMPT, 2)
        for first in range(70, 76):  # they drive it out of memory
            witness.serve(cache, (first, *PROMPT), 2)
        _, served = witness.serve(cache, PROMPT, 2)
        assert (served.loaded_from == medium) == (bytes_per_s > 1e6)
        assert (served.lost == "tier_costs_more") == (bytes_per_s < 1e6)


def test_loads_are_measured(weighed: None) -> None:
    speed = Speed()
    assert speed.bytes_per_s("host") == 0.0
    speed.note_load("host", 1000, 0.5)
    assert speed.bytes_per_s("host") == 2000.0
    speed.note_load("host", 0, 0.5)
    for _ in range(60):
        speed.note_load("host", 4000, 0.5)
    assert speed.bytes_per_s("host") == pytest.approx(8000.0, rel=1e-3)
    assert speed.bytes_per_s("file") == 0.0
    assert Speed(file_bytes_per_s=5.0).bytes_per_s("file") == 5.0


def test_times_are_known_where_they_were_measured_twice() -> None:
    times = Times()
    times.note(100, 9.0)  # kernels were loaded
    assert times.seconds(100) is None
    assert times.seconds(100, 1) == 9.0
    times.note(100, 1.0)
    times.note(0, 5.0)
    assert times.seconds(100) == 1.0
    assert (times.seconds(50), times.seconds(49)) == (1.0, None)
    assert (times.seconds(200), times.seconds(201)) == (2.0, None)
    for _ in range(2):
        times.note(1000, 10.0)
    assert times.seconds(550) == pytest.approx(5.5)
    assert times.seconds(1000) == 10.0
    for _ in range(4):  # the machine got slower
        times.note(1000, 20.0)
    assert times.seconds(1000) == 20.0


def test_one_of_many_slow_hits_is_taken_all_the_same(weighed: None) -> None:
    speed = Speed({16: 0.05, 4096: 0.05}, restores={1: 0.01, 4096: 0.01}, last_token_s=0.02)
    assert not speed.is_slow(1000, 499)
    decisions = [speed.is_slow(1000, 900) for _ in range(64)]
    assert decisions.count(False) == 2
    assert not decisions[31]


def test_savings_are_the_time_of_the_reused_tokens() -> None:
    speed = Speed()
    assert speed.saved(101, 50, 0.5) == 0.0
    speed.passes.note(100, 2.0)
    assert speed.saved(101, 100, 0.5) == 1.5
    speed.passes.note(50, 1.0)
    assert speed.saved(101, 50, 0.25) == 0.75
    assert speed.saved(101, 0, 0.25) == 0.0


def test_a_rate_counts_no_time_that_few_tokens_take_too(weighed: None) -> None:
    assert Speed().tokens_per_s(1000) == 0.0
    assert Speed({64: 0.05, 1000: 1.05}).tokens_per_s(1000) == pytest.approx(1000.0)
    assert Speed({64: 0.05, 1000: 0.05}).tokens_per_s(1000) > 1e9


@pytest.mark.parametrize(("options", "why"), [
    ({"passes": {0: 1.0}}, "passes has 1.0 for 0"), ({"passes": {8: -1.0}}, "passes has -1.0 for 8"),
    ({"restores": {8: math.nan}}, "restores has nan for 8"), ({"last_token_s": -1.0}, "last_token_s is -1.0"),
    ({"host_bytes_per_s": math.inf}, "host_bytes_per_s is inf")])
def test_figures_that_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=why):
        Speed(**options)


# --- Warming up ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("architecture", ["qwen3_5", "jamba"])
def test_warming_up_runs_the_passes_of_serving_and_leaves_no_trace(weighed: None, architecture: str) -> None:
    model = tiny_model(architecture)
    with PrefixCache(model, memory="1 MiB", chunk_tokens=16) as cache:
        machine, before, random = Machine(model, cache), cache.stats(), torch.get_rng_state()
        cache.warm_up([40], tails=[5], rounds=3)
        chunks, tail = ([39], [1] * 5) if architecture == "jamba" else ([16, 16, 7], [5])
        assert machine.passes == [40, *chunks, 1, *tail] * 3
        assert cache.stats() == before
        assert cache.last is None
        assert cache.running_requests == 0
        assert torch.equal(torch.get_rng_state(), random)
        assert cache.speed.passes.seconds(40) == pytest.approx(PASS_S, rel=0.05)
        assert cache.speed.last_tokens.seconds(1) == pytest.approx(STEP_S)
        assert cache.speed.restores.seconds(40) == pytest.approx(RESTORE_S)
        cache.check_invariants()
        _, served = Witness(model).serve(cache, tuple(range(40)), 2)
        assert served.reused_tokens == 0


def test_lengths_to_warm_up_that_are_refused() -> None:
    with PrefixCache(tiny_model("lfm2"), memory="1 MiB") as cache:
        for arguments, why in ((([0],), "prompts is 0"), (([8], [-1]), "tails is -1"), (([8.5],), "prompts is 8.5")):
            with pytest.raises(sp.InvalidArgument, match=why):
                cache.warm_up(*arguments)  # type: ignore[arg-type]
        with pytest.raises(sp.InvalidArgument, match="rounds is 0"):
            cache.warm_up([8], rounds=0)
    with pytest.raises(sp.ClosedError):
        cache.warm_up([8])


# --- Attention -------------------------------------------------------------------------------------------------------

# Attention that stays as it is: inkling2 cannot use torch's, and models with an indexer make a mask in every pass.
OWN_ATTENTION = {"inkling2": "eager", "inkling2_loop": "eager", "glm5_next": "sdpa", "qwen4_exp": "sdpa"}


@pytest.mark.parametrize("architecture", COSTLY)
def test_attention_without_a_mask_of_all_pairs_answers_the_same(architecture: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_ROWS", 7)
    model = tiny_model(architecture)
    ids = torch.randint(3, 128, (1, 60), generator=torch.Generator().manual_seed(1))
    stepwise = probe(model).stepwise

    def answers() -> torch.Tensor:
        cache = transformers.DynamicCache(config=model.config)
        parts = [0, 20, *range(21, 61)] if stepwise else [0, 20, 55, 60]
        return torch.cat([run(model, ids, cache, begin, end)[:, -1] for begin, end in zip(parts, parts[1:],
                                                                                         strict=False)])

    wanted, name = answers(), model_name(model)
    attention.use(model)
    assert model_name(model) == name
    assert model.config._attn_implementation == OWN_ATTENTION.get(architecture, "stateport_sdpa")
    assert float((answers() - wanted).abs().max()) < 1e-4
    attention.leave(model)
    assert model.config._attn_implementation == OWN_ATTENTION.get(architecture, "sdpa")
    assert torch.equal(answers(), wanted)


def test_the_diagonal_of_a_gpu_is_the_diagonal_of_the_mask() -> None:
    """On a GPU torch gets the place of the diagonal."""
    draw = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, tokens, 8, generator=draw) for tokens in (5, 12, 12))
    bias = attention.causal_lower_right(5, 12)
    mask = attention._rows_of_mask(0, 5, 7)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert torch.allclose(attend(query, key, value, attn_mask=bias), attend(query, key, value, attn_mask=mask),
                          atol=1e-6)


def test_a_model_attends_as_before_once_the_cache_is_closed() -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="1 MiB"):
        assert model.config._attn_implementation == "stateport_sdpa"
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(sp.InvalidArgument):
        PrefixCache(model, memory=1000)
    assert model.config._attn_implementation == "sdpa"
    with PrefixCache(model, memory="1 MiB"):
        PrefixCache(model, memory="1 MiB").close()  # another cache of the model goes on
        assert model.config._attn_implementation == "stateport_sdpa"
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with PrefixCache(model, memory="1 MiB") as cache:
        assert model.config._attn_implementation == "eager"
        Witness(model).serve(cache, PROMPT, 2)
