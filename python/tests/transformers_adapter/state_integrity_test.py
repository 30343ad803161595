# SPDX-License-Identifier: Apache-2.0
"""A cached state that somebody writes to is taken back, and the prompt computed again."""
from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from witness import Conversations, Witness, as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from conftest import seeds  # noqa: E402
from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, probe  # noqa: E402

PROMPT = tuple(range(3, 40))
LONGEST = 120


def damage(cache: PrefixCache, draw: random.Random) -> None:
    """Writes to one element of every slot that has memory, of one tensor."""
    stores = cache._ledger.stores
    info = stores.states.info()
    memory = draw.choice(stores._states)
    for extent in filter(stores.states.is_mapped, range(info.extents)):
        for slot in memory[extent * info.extent_count:(extent + 1) * info.extent_count]:
            slot.view(-1)[draw.randrange(slot.numel())] += 0.75 if slot.is_floating_point() else 1


# Mamba-1, Mamba-2, gated delta net, several states with integers
@pytest.mark.parametrize("architecture", ["jamba", "bamba", "qwen3_next", "qwen4_exp"])
def test_damaged_states_are_computed_again(architecture: str) -> None:
    """Random conversations; each answer is that of a run without a cache."""
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model, draw = tiny_model(architecture, seed), random.Random(seed)
        witness, source = Witness(model), Conversations(seed, LONGEST)
        with PrefixCache(model, **budget(probe(model)), integrity=True) as cache:
            hits = damaged = 0
            for _ in range(30):
                if hurt := draw.random() < 0.3:
                    damage(cache, draw)
                before = cache.integrity_usage()
                prompt, answer = source.next()
                tokens, served = witness.serve(cache, prompt, answer)
                source.keep(tokens)
                after = cache.integrity_usage()
                if hurt:
                    assert served.reused_tokens == 0
                    assert (after.withdrawn_states > before.withdrawn_states) == (after.changed > before.changed)
                    damaged += after.withdrawn_states - before.withdrawn_states
                    cache.reset()  # the other states that were written to would be found later
                hits += served.reused_tokens > 0
            usage = cache.integrity_usage()
            assert hits > 0
            assert damaged == usage.withdrawn_states == usage.changed > 0
            assert usage.unchecked_states == usage.not_finite == usage.other_state == 0
            assert cache.stats().hit_tokens > 0


def test_every_state_of_a_prefix_may_be_damaged() -> None:
    """A prompt falls back from one state to the one before, until none is left."""
    model = tiny_model("qwen3_next")
    with PrefixCache(model, memory="4 MiB", integrity=True) as cache:
        witness = Witness(model)
        witness.serve(cache, PROMPT, 3, breakpoints=(10, 20, 30))
        states = cache.stats().states
        assert states >= 4
        damage(cache, random.Random(1))
        tokens, served = witness.serve(cache, PROMPT, 3)
        assert served.reused_tokens == 0
        assert cache.integrity_usage().withdrawn_states == 4  # those before its last token
        assert witness.serve(cache, (*tokens[:-1], 90, 91), 3)[1].reused_tokens > 0


def test_without_the_option_a_damaged_state_is_used() -> None:
    """Shows that the damage of these tests matters, and that the option is needed."""
    model = tiny_model("qwen3_next")
    with PrefixCache(model, memory="4 MiB") as cache:
        witness = Witness(model)
        witness.serve(cache, PROMPT, 3)
        damage(cache, random.Random(1))
        with pytest.raises(AssertionError, match="apart|not the same bits"):
            witness.serve(cache, (*PROMPT, 80), 3)
        with pytest.raises(sp.InvalidState):
            cache.integrity_usage()


def test_a_state_with_a_nan_is_not_kept() -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, memory="4 MiB", integrity=True) as cache:
        with torch.no_grad():
            weights = model.model.embed_tokens.weight
            kept = weights[9].clone()
            weights[9] = float("nan")  # of the prompt
        cache.generate(as_ids(PROMPT), max_new_tokens=2, do_sample=False)
        with torch.no_grad():
            weights[9] = kept
        usage = cache.integrity_usage()
        assert usage.not_finite == usage.withdrawn_states > 0
        with cache.request(as_ids(PROMPT)) as request:
            assert request.served.reused_tokens == 0


def test_states_below_the_device_are_checked_on_their_way(tmp_path: pathlib.Path) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model("falcon_h1", seed)
        layout = probe(model)
        witness, source = Witness(model), Conversations(seed, 48)
        tiers = Tiers(host_bytes=48 * layout.state_spec().image_bytes, folder=tmp_path / str(seed), file_bytes="16 MiB")
        options: dict[str, Any] = {"tiers": tiers, **budget(layout, page_tokens=8, longest=56), "integrity": True}
        with PrefixCache(model, **options) as cache:
            for _ in range(60):
                prompt, answer = source.next()
                tokens, _ = witness.serve(cache, prompt, answer)
                source.keep(tokens)
                cache._ledger.settle()
            usage = cache.integrity_usage()
            assert cache.tier_usage("host").loads > 0
            assert usage.reads > 0
            assert usage.published > 0
            assert usage.changed == usage.other_state == usage.not_finite == usage.unchecked_states == 0


def test_samples_of_a_damaged_prompt(weighed: None) -> None:
    model = tiny_model("bamba")
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(1)
    wanted = model.generate(as_ids(PROMPT), **options).tolist()
    with PrefixCache(model, memory="4 MiB", requests=4, page_tokens=4, integrity=True) as cache:
        for hurt in (False, True):
            if hurt:
                damage(cache, random.Random(2))
            torch.manual_seed(1)
            assert cache.generate(as_ids(PROMPT), **options).tolist() == wanted
            cache.check_invariants()
        assert cache.integrity_usage().withdrawn_states > 0
