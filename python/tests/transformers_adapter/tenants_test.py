# SPDX-License-Identifier: Apache-2.0
"""Two tenants of one PrefixCache: nothing is shared, and memory is cleared before the other tenant uses it."""
from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from witness import as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from conftest import open_images, seeds  # noqa: E402
from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, probe  # noqa: E402
from stateport.transformers.stores import Stores  # noqa: E402

TENANTS = (None, sp.Namespace(salt=b"one"), sp.Namespace(salt=b"two"))
PROMPT = tuple(range(3, 40))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("lfm2")


class Watch:
    """Sees every plan of a cache before its pass, and counts the memory in it that holds bytes of another tenant: pages
    and slots that are about to be written. It knows the last tenant that wrote each place."""

    def __init__(self, cache: PrefixCache) -> None:
        self.ledger, self.page_tokens = cache._ledger, cache.page_tokens
        self.tenant: sp.Namespace | None = None  # of the request that runs
        self.writers: dict[tuple[str, int], sp.Namespace | None] = {}
        self.changed = self.leaks = 0
        self._plan, self._copy = self.ledger._plan, self.ledger._copy
        self.ledger._plan, self.ledger._copy = self.plan, self.copy  # type: ignore[method-assign]

    def plan(self, running: Any, count: int) -> Any:
        plan = self._plan(running, count)
        if plan is None:
            return None
        group, page, first, kv = plan.groups[0], self.page_tokens, int(plan.start[0]), plan.kv(0)
        pages = {int(index) // page for index in kv[-(-first // page) * page:]}
        self.visit("page", pages, self.ledger.stores._kv)
        saves = {int(save["slot"]) for save in group.saves}
        self.visit("slot", saves | {int(group.write_slot[0])}, self.ledger.stores._states)
        return plan

    def copy(self, copies: Any) -> None:
        """Copies whole slots, so no earlier content stays."""
        self._copy(copies)
        self.writers.update({("slot", int(copy["dst_slot"])): self.tenant for copy in copies})

    def visit(self, kind: str, places: set[int], memory: list[torch.Tensor]) -> None:
        for place in places:
            if self.writers.setdefault((kind, place), self.tenant) != self.tenant:
                self.changed += 1
                self.leaks += any(bool(tensor[place].ne(0).any()) for tensor in memory)
            self.writers[kind, place] = self.tenant


def serve(cache: PrefixCache, prompt: tuple[int, ...], tenant: sp.Namespace | None, answer: int = 3) -> int:
    out = cache.generate(as_ids(prompt), max_new_tokens=answer, do_sample=False, namespace=tenant)
    assert out.shape[1] == len(prompt) + answer and cache.last is not None
    return cache.last.reused_tokens


def converse(model: Any, scrub: bool, seed: int) -> Watch:
    draw = random.Random(seed)
    page = draw.choice([1, 4])
    options = budget(probe(model), states=6, tokens=160, page_tokens=page, longest=70)
    with PrefixCache(model, **options, scrub=scrub) as cache:
        watch = Watch(cache)
        prompts = [tuple(draw.randrange(3, 9) for _ in range(draw.randint(1, 60))) for _ in range(3)]
        served: dict[Any, list[tuple[int, ...]]] = {}
        for _ in range(24):
            which, watch.tenant = draw.choice(prompts), draw.choice(TENANTS)
            prompt = which[:draw.randint(1, len(which))]
            reused = serve(cache, prompt, watch.tenant)
            mine = served.setdefault(watch.tenant, [])
            assert not reused or any(one[:reused] == prompt[:reused] for one in mine)
            mine.append(prompt)
            if draw.random() < 0.05:
                cache.reset()
                served.clear()
        cache.check_invariants()
        return watch


def test_memory_that_changes_tenant_is_zero_before_a_pass_writes_to_it(model: Any) -> None:
    changed = 0
    for seed in seeds(8):
        print("seed", seed)
        watch = converse(model, True, seed)
        assert watch.leaks == 0
        changed += watch.changed
    assert changed > 0


def test_without_scrub_another_tenants_bytes_are_there(model: Any) -> None:
    """Shows that the test above can see leaks."""
    assert converse(model, False, 1).leaks > 0


def mapped(stores: Stores) -> list[torch.Tensor]:
    """The parts of all tensors that have memory."""
    return [tensor[extent * info.extent_count:(extent + 1) * info.extent_count]
            for store, tensors in ((stores.states, stores._states), (stores.pages, stores._kv))
            for info in [store.info()] for extent in filter(store.is_mapped, range(info.extents)) for tensor in tensors]


@pytest.mark.parametrize("scrub", [False, True])
def test_scrubbed_memory_is_zero_when_a_cache_ends(model: Any, scrub: bool) -> None:
    cache = PrefixCache(model, memory="1 MiB", scrub=scrub)
    serve(cache, PROMPT, TENANTS[1])
    memory = mapped(cache._ledger.stores)
    cache.close()
    assert any(bool(tensor.ne(0).any()) for tensor in memory) != scrub


def test_equal_prompts_of_two_tenants_share_no_file(model: Any, tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"memory": "1 MiB", "page_tokens": 4, "scrub": True,
                               "tiers": Tiers(folder=tmp_path, file_bytes="8 MiB", write_through=True)}
    for tenant in TENANTS:
        with PrefixCache(model, **options) as cache:
            assert serve(cache, PROMPT, tenant) == 0
    with PrefixCache(model, **options) as cache:
        for tenant in TENANTS:
            assert serve(cache, PROMPT, tenant) >= len(PROMPT) - 4


@pytest.mark.parametrize(("first", "second", "shares"), [
    (None, None, True), (7, 7, True), (None, 0, True), (7, 8, False), (None, 7, False), (7, None, False)])
def test_caches_share_files_if_they_have_one_seed(model: Any, tmp_path: pathlib.Path, first: int | None,
                                                  second: int | None, shares: bool) -> None:
    tiers = Tiers(folder=tmp_path, file_bytes="8 MiB", write_through=True)
    reused = []
    for seed in (first, second):
        with PrefixCache(model, memory="1 MiB", page_tokens=4, tiers=tiers, hash_seed=seed) as cache:
            reused.append(serve(cache, PROMPT, None))
    assert reused[0] == 0 and bool(reused[1]) == shares


def test_a_cache_of_memory_alone_has_a_random_seed(model: Any) -> None:
    drawn = []
    for _ in range(2):
        with PrefixCache(model, memory="1 MiB") as cache:
            drawn.append(cache._ledger.book.options.hash_seed)
            assert str(drawn[-1]) not in repr(cache)
    assert 0 not in drawn and drawn[0] != drawn[1]


def test_a_mistaken_seed_is_named_without_its_value(model: Any) -> None:
    for seed in (-1, 1 << 64, "71"):
        with pytest.raises(sp.InvalidArgument, match="hash_seed must be a whole number") as refused:
            PrefixCache(model, memory="1 MiB", hash_seed=seed)  # type: ignore[arg-type]
        assert "71" not in str(refused.value)


def test_files_that_are_dropped_hold_nothing_any_more(model: Any, tmp_path: pathlib.Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    for scrub in (False, True):
        folder = tmp_path / str(scrub)
        tiers = Tiers(folder=folder, file_bytes="8 MiB", write_through=True)
        cache = PrefixCache(model, memory="1 MiB", page_tokens=4, tiers=tiers, scrub=scrub)
        serve(cache, PROMPT, TENANTS[1])
        cache.drain()
        with open_images(folder) as hold_bytes:
            cache.reset()
            cache.close()
            assert not list(folder.rglob("*.img"))
            assert any(hold_bytes()) != scrub
