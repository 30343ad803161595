# SPDX-License-Identifier: Apache-2.0
"""Hybrid architectures: the answers of a cache of prefixes are those of a run without one."""
from __future__ import annotations

import pathlib
import random

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

from witness import COSTLY, Conversations, Witness, budget  # noqa: E402

from conftest import seeds  # noqa: E402
from stateport._arrays import Records  # noqa: E402
from stateport.demo.tiny import ARCHITECTURES, tiny_model  # noqa: E402
from stateport.errors import OutOfMemory  # noqa: E402
from stateport.request_cache import RequestCache  # noqa: E402
from stateport.tiers import StateTiers  # noqa: E402
from stateport.transformers import PrefixCache, Served, Tiers, probe  # noqa: E402

LONGEST = 120
SHORT = 48  # so that little memory is enough, and tiers get the rest
CONVERSATIONS = 26
MANY = 90  # make the device evict often


def converse(cache: PrefixCache, witness: Witness, source: Conversations, count: int) -> list[Served]:
    served = []
    for _ in range(count):
        prompt, answer = source.next()
        tokens, what = witness.serve(cache, prompt, answer)
        source.keep(tokens)
        served.append(what)
        cache._ledger.settle()  # a state that is evicted while all of the host's memory is written is dropped
    return served


@pytest.mark.parametrize("architecture", COSTLY)
def test_answers_are_those_of_a_cold_run_while_memory_is_short(architecture: str) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model(architecture, seed)
        witness, source = Witness(model), Conversations(seed, LONGEST)
        with PrefixCache(model, **budget(probe(model))) as cache:
            served = converse(cache, witness, source, CONVERSATIONS)
            stats = cache.stats()
        assert stats.requests == CONVERSATIONS
        assert stats.hit_tokens == sum(what.reused_tokens for what in served) > 0
        assert stats.evicted_states > 0
        assert stats.evicted_kv_tokens > 0
        assert all(what.cached for what in served)
        assert witness.ties <= 1


@pytest.mark.parametrize(("architecture", "page_tokens"),
                         [*((name, 1) for name in ARCHITECTURES), *((name, 4) for name in COSTLY)])
def test_turns_give_the_same_bits_as_the_same_passes_without_a_cache(architecture: str, page_tokens: int) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model(architecture, seed)
        witness, source = Witness(model), Conversations(seed, LONGEST)
        with PrefixCache(model, memory="4 MiB", page_tokens=page_tokens) as cache:
            tokens: tuple[int, ...] = ()
            for turn in range(3):
                asked = tokens + source.fresh(5, 30)
                tokens, what = witness.serve(cache, asked, 7)
                assert (what.reused_tokens > 0) == (turn > 0)
                assert what.reused_tokens + what.computed_tokens == len(asked) - 1
        # A page that the third turn computed again, because its state was not kept, has two histories.
        assert witness.exact >= (2 if page_tokens == 1 else 1)


@pytest.mark.parametrize("architecture", COSTLY)
def test_tiers_and_a_restart_give_the_same_answers(architecture: str, tmp_path: pathlib.Path) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        folder = tmp_path / str(seed)
        model = tiny_model(architecture, seed)
        layout = probe(model)
        witness, source = Witness(model), Conversations(seed, SHORT)
        tiers = Tiers(host_bytes=48 * layout.state_spec().image_bytes, folder=folder, file_bytes="16 MiB")
        options = {"tiers": tiers, **budget(layout, page_tokens=8, longest=SHORT + 8)}
        with PrefixCache(model, **options) as cache:
            converse(cache, witness, source, MANY)
            stats, host, file = cache.stats(), cache.tier_usage("host"), cache.tier_usage("file")
        assert stats.hit_tokens > 0
        assert stats.evicted_states > 0
        assert host.loads > 0
        assert file.bytes_written > 0
        assert host.lost_images == file.lost_images == 0
        # The next process: all that it finds are the files.
        with PrefixCache(model, **options) as cache:
            served = converse(cache, witness, source, CONVERSATIONS // 3)
            file = cache.tier_usage("file")
        assert file.loads > 0
        assert file.hit_tokens == sum(what.loaded_tokens for what in served if what.loaded_from == "file") > 0
        assert witness.ties <= 1
        others_hit_nothing(architecture, seed, source, options)


class Refusals:
    """Every second call of begin_transfers that has transfers finds no memory, while `short`."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.short, self.count = True, 0
        begin, chance = StateTiers.begin_transfers, random.Random(seed)

        def begin_some(tiers: StateTiers, cache: RequestCache, transfers: Records, stream: object = None) -> None:
            if self.short and len(transfers) and chance.random() < 0.5:
                self.count += 1
                raise OutOfMemory("no memory for transfers")
            begin(tiers, cache, transfers, stream)

        patch.setattr(StateTiers, "begin_transfers", begin_some)


@pytest.mark.parametrize("write_through", [False, True])
def test_transfers_that_find_no_memory_have_failed(write_through: bool, tmp_path: pathlib.Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds(3):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model("qwen3_next", seed)
        layout = probe(model)
        witness, source = Witness(model), Conversations(seed, LONGEST)
        # The host tier has room for few images: the move of one waits for the move of another to a file.
        tiers = Tiers(host_bytes=3 * layout.state_spec().image_bytes, folder=tmp_path / str(seed), file_bytes="16 MiB",
                      write_through=write_through)
        with (monkeypatch.context() as patch,
              PrefixCache(model, tiers=tiers, **budget(layout, page_tokens=8)) as cache):
            refusals = Refusals(seed, patch)
            for _ in range(CONVERSATIONS):
                prompt, answer = source.next()
                try:
                    tokens, _ = witness.serve(cache, prompt, answer)
                    source.keep(tokens)
                except OutOfMemory:
                    cache.check_invariants()
            assert refusals.count > 0
            refusals.short = False
            cache.drain()
            assert cache._ledger.book.transfers_under_way == 0
            assert cache._ledger.tiers is not None
            host = cache.tier_usage("host")
            assert cache._ledger.tiers.info()["host_images"] == host.states + host.kv_blocks
            cache.check_invariants()


def others_hit_nothing(architecture: str, seed: int, source: Conversations, options: dict[str, object]) -> None:
    """A model with the same configuration and other weights, over the same folder."""
    model = tiny_model(architecture, seed + 1000)
    with PrefixCache(model, **options) as cache:  # type: ignore[arg-type]
        prompt = max(source.answered, key=len)
        _, what = Witness(model).serve(cache, prompt, 2)
        assert what.reused_tokens == 0
        assert cache.tier_usage("file").loads == 0
