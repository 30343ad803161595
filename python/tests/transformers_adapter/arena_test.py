# SPDX-License-Identifier: Apache-2.0
"""One memory for KV and states: it follows the prompts, holds no byte more than it may, and changes no answer."""
from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from witness import Tokens, Witness, as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from conftest import seeds  # noqa: E402
from stateport.demo.tiny import VOCABULARY, tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, probe  # noqa: E402
from stateport.transformers.stores import _UNMAP, extent_of, granularity_bytes  # noqa: E402

LONG = 120


class Watch:
    """Sees all memory work of a cache, and counts the bytes that are mapped after each."""

    def __init__(self, cache: PrefixCache, limit: int) -> None:
        self.stores, self._book, self._limit = cache._ledger.stores, cache._ledger.book, limit
        self.kv_copies = 0
        self.moves = {(part, kind): 0 for part in sp.MEMORY_PARTS for kind in sp.MOVE_KINDS}  # extents that change
        self._mapped = self.mapped()
        self._carry_out = self.stores.carry_out
        self.stores.carry_out = self.carry_out  # type: ignore[method-assign]
        self.check()

    def carry_out(self, answer: Any, stream: Any, *, wait: bool) -> int:
        ended = self._carry_out(answer, stream, wait=wait)
        self.kv_copies += len(answer.kv_copies)
        before, self._mapped = self._mapped, self.mapped()
        for part, had, has in zip(sp.MEMORY_PARTS, before, self._mapped, strict=True):
            self.moves[part, "map" if has > had else "unmap"] += abs(has - had)
        self.check()
        return ended

    def mapped(self) -> list[int]:
        return [store.info().mapped_extents for store in (self.stores.pages, self.stores.states)]

    def check(self) -> None:
        memory, usage = self.stores.memory.usage(), self._book.arena_usage()
        assert memory.mapped_bytes <= memory.held_bytes <= self._limit
        assert memory.mapped_bytes <= usage.kv_bytes + usage.state_bytes <= self._limit
        held = [store.info() for store in (self.stores.pages, self.stores.states)]
        assert memory.mapped_bytes == sum(info.mapped_extents * info.extent_bytes for info in held)


class Prompts:
    """Short prompts that branch off inside few openings, and long ones; some come again."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._openings = [self._random(16) for _ in range(3)]
        self._long: list[Tokens] = []

    def _random(self, count: int) -> Tokens:
        return tuple(self._draw.randrange(3, VOCABULARY) for _ in range(count))

    def short(self) -> Tokens:
        """Most of its tokens are cached, and it leaves states."""
        return self._draw.choice(self._openings)[:4 * self._draw.randint(1, 4)] + self._random(self._draw.randint(4, 5))

    def long(self) -> Tokens:
        if self._long and self._draw.random() < 0.5:
            return self._draw.choice(self._long)
        self._long.append(self._random(LONG - self._draw.randint(4, 12)))
        return self._long[-1]


def serve(cache: PrefixCache, prompt: Tokens, tenant: sp.Namespace | None = None) -> None:
    cache.generate(as_ids(prompt), max_new_tokens=2, do_sample=False, namespace=tenant)


def serve_and_compare(cache: PrefixCache, witness: Witness, prompt: Tokens) -> None:
    """The answer is that of a run without a cache."""
    out = cache.generate(as_ids(prompt), max_new_tokens=3, do_sample=False, return_dict_in_generate=True,
                         output_logits=True)
    witness.compare(prompt, out.sequences[0, len(prompt):].tolist(), torch.cat([step.float() for step in out.logits]))


@pytest.mark.parametrize(("architecture", "page_tokens", "tiers", "scrub"), [
    ("lfm2", 1, None, False),  # an extent has several states; of the others one
    ("qwen3_5", 4, None, True), ("qwen3_5", 4, Tiers(host_bytes="256 KiB"), False)])
def test_memory_follows_the_prompts(architecture: str, page_tokens: int, tiers: Tiers | None, scrub: bool) -> None:
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model = tiny_model(architecture, seed)
        witness, prompts = Witness(model), Prompts(seed)
        options = budget(probe(model), states=24, tokens=60, longest=LONG, page_tokens=page_tokens, requests=1)
        kv_bytes = []
        # hix keeps long prompts of lfm2, beside which its states fit into two extents.
        order = "lru" if architecture == "lfm2" else "hix"
        with PrefixCache(model, tiers=tiers, scrub=scrub, skip_slow_hits=False, eviction=order, **options) as cache:
            watch = Watch(cache, options["memory"])
            for round_ in range(4):
                for _ in range(60 if round_ % 2 else 6):
                    serve(cache, prompts.short() if round_ % 2 else prompts.long())
                for _ in range(3):
                    serve_and_compare(cache, witness, prompts.short() if round_ % 2 else prompts.long())
                kv_bytes.append(cache.memory_usage().kv_bytes)
            cache.check_invariants()
            assert cache.stats().hit_tokens > 0
            assert cache.memory_usage().refused_moves == 0
        assert kv_bytes[1] < kv_bytes[2] > kv_bytes[3], kv_bytes
        assert all(watch.moves.values()), watch.moves
        assert witness.ties <= 1


def test_a_system_without_memory_changes_no_answer() -> None:
    """Another user takes the memory that is unmapped, so that maps are refused."""
    model = tiny_model("qwen3_5")
    witness, prompts = Witness(model), Prompts(1)
    options = budget(probe(model), states=24, tokens=60, longest=LONG, requests=1)
    with PrefixCache(model, skip_slow_hits=False, **options) as cache:
        stores = cache._ledger.stores
        other = sp.ElasticStore(stores.memory, stores.states.spec, 4, layout="slot_major")
        original = stores.carry_out

        def carry_out(answer: Any, stream: Any, *, wait: bool) -> int:
            moves = answer.moves
            if len(moves) < 2 or not any(moves["kind"] == _UNMAP) or other.info().mapped_extents == other.slots:
                return original(answer, stream, wait=wait)
            # Maps that unmaps make possible follow the last move of an answer.
            ended = original(sp.MemoryPlan(answer.kv_copies, moves[:-1]), stream, wait=wait)
            with contextlib.suppress(sp.OutOfMemory):
                other.map(other.info().mapped_extents)
            return ended + original(sp.MemoryPlan(answer.kv_copies[:0], moves[-1:]), stream, wait=wait)

        stores.carry_out = carry_out  # type: ignore[method-assign]
        for number in range(12):
            serve(cache, prompts.long() if number % 6 < 4 else prompts.short())
        serve_and_compare(cache, witness, prompts.long())
        assert other.info().mapped_extents > 0
        assert cache.memory_usage().refused_moves > 0
        cache.check_invariants()


def test_memory_is_scrubbed_before_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen3_5")
    prompts, seen = Prompts(2), []
    options = budget(probe(model), states=24, tokens=60, longest=LONG, requests=1)

    def carry_out(mover: sp.MemoryMover, answer: Any = None, **settings: Any) -> int:
        for move in answer.moves[answer.moves["kind"] == _UNMAP]:
            store, tensors = (stores.pages, stores._kv) if move["part"] == 0 else (stores.states, stores._states)
            count = store.info().extent_count
            slots = slice(int(move["extent"]) * count, (int(move["extent"]) + 1) * count)
            seen.append(any(bool(tensor[slots].ne(0).any()) for tensor in tensors))
        return original(mover, answer, **settings)

    original = sp.MemoryMover.carry_out
    monkeypatch.setattr(sp.MemoryMover, "carry_out", carry_out)
    for scrub in (False, True):
        seen.clear()
        with PrefixCache(model, scrub=scrub, **options) as cache:
            stores = cache._ledger.stores
            for round_ in range(4):
                for _ in range(25 if round_ % 2 else 6):
                    serve(cache, prompts.short() if round_ % 2 else prompts.long())
        assert len(seen) > 4
        assert any(seen) is not scrub


def test_warming_up_reads_memory_that_is_there() -> None:
    model = tiny_model("lfm2")
    with PrefixCache(model, **budget(probe(model), longest=LONG, page_tokens=4)) as cache:
        before = cache.memory_usage()
        cache.warm_up([5, 3 * LONG], [2])
        assert cache.speed.restores.points()
        assert cache.memory_usage() == before


def test_16_bit_numbers_lie_in_elastic_memory() -> None:
    model = tiny_model("qwen3_5").to(torch.bfloat16)
    with PrefixCache(model, memory="1 MiB") as cache:
        stores = cache._ledger.stores
        assert {tensor.dtype for tensor in (*stores._states, *stores._kv)} == {
            held.dtype for held in (*cache.layout.states, *cache.layout.kv)}


def test_granules_fit_a_state() -> None:
    layout = probe(tiny_model("qwen3_5"))
    granularity = granularity_bytes(layout)
    for page_tokens in (1, 16):
        extent = extent_of(layout.page_spec(page_tokens), granularity)
        assert extent.bytes % granularity == 0
        assert extent.bytes >= extent.count * layout.page_spec(page_tokens).slot_bytes


def test_there_are_no_walls() -> None:
    with pytest.raises(TypeError, match="state_share"):
        PrefixCache(tiny_model("lfm2"), memory="1 MiB", state_share=0.5)  # type: ignore[call-arg]


def test_a_device_that_cannot_map_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise sp.BackendError("the device cannot map memory")

    monkeypatch.setattr(sp.ElasticMemory, "__init__", no_memory)
    with pytest.raises(sp.BackendError, match="cannot map memory"):
        PrefixCache(tiny_model("lfm2"), memory="1 MiB")
