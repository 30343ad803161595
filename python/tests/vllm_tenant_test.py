# SPDX-License-Identifier: Apache-2.0
"""Salted prompts under the connector for vLLM: nothing is shared, and places that change salt are scrubbed."""
from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import open_images, seeds
from stateport.tier_options import CONTENTS, MEDIA, TRANSFER_KINDS
from stateport.vllm.metadata import PageCopies, PlaceClears, StepBuilder, StepPlan
from stateport.vllm.options import ConnectorOptions

pytest.importorskip("torch")
from vllm_stand_in import KV_GROUPS, Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

SALTS = (None, "one", "two")
VARIABLE = "STATEPORT_SEED_OF_A_TEST"


class Watch:
    """Sees every copy of KV to the host before it is made, and counts the places in it that hold bytes of another salt.
    It knows the last salt that wrote each place."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.pool = engine, engine.ranks[0].side._pools[0]
        self.writers: dict[int, str | None] = {}
        self.changed = self.leaks = 0
        copier = engine.ranks[0].side._groups[KV_GROUPS[0]].to_host
        self._copy = copier.copy
        copier.copy = self.copy  # type: ignore[method-assign]

    def copy(self, pairs: np.ndarray[Any, Any], stream: Any) -> None:
        salts = {page: request.cache_salt for request in self.engine.requests.values()
                 for page in request.blocks[KV_GROUPS[0]]}
        tensors = [self.pool.tensor(i) for i in range(len(self.pool.spec.tensors))]
        for page, place in pairs.tolist():
            if self.writers.setdefault(place, salts[page]) != salts[page]:
                self.changed += 1
                self.leaks += any(np.count_nonzero(tensor[place]) for tensor in tensors)
            self.writers[place] = salts[page]
        self._copy(pairs, stream)


def converse(scrub: bool, seed: int) -> Watch:
    chance = random.Random(seed)
    options = ConnectorOptions(host_bytes=chance.choice((16_000, 30_000)), checkpoint_tokens=8, scrub=scrub,
                               decode_checkpoint_tokens=8)
    engine = Engine(options, chance=chance, budget=chance.choice((8, 64)))
    watch = Watch(engine)
    prompts = [[chance.randrange(3) for _ in range(chance.randrange(8, 60))] for _ in range(3)]
    served: set[tuple[str | None, tuple[int, ...]]] = set()
    for turn in range(40):
        tokens = chance.choice(prompts)[:chance.randrange(8, 60)] + [chance.randrange(3)]
        one = Request(f"r{turn} 0", tokens, len(tokens), chance.choice(SALTS))
        engine.add(one)
        engine.drain()
        assert not one.restored or (one.cache_salt, tuple(tokens[:one.restored])) in served
        served |= {(one.cache_salt, tuple(tokens[:end])) for end in range(len(tokens))}
        if chance.random() < 0.05:
            engine.side.reset()
    engine.side.cache.check_invariants()
    engine.close()
    return watch


def test_places_that_change_salt_are_zero_before_they_are_written() -> None:
    changed = 0
    for seed in seeds(8):
        print("seed", seed)
        watch = converse(True, seed)
        assert watch.leaks == 0
        changed += watch.changed
    assert changed > 0


def test_without_scrub_bytes_of_another_salt_are_there() -> None:
    """Shows that the test above can see leaks."""
    assert converse(False, 1).leaks > 0


@pytest.mark.parametrize("scrub", [False, True])
def test_the_pools_are_zero_when_a_worker_has_ended(scrub: bool) -> None:
    engine = Engine(ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, scrub=scrub), chance=random.Random(1))
    pools = engine.ranks[0].side._pools
    memory = [pool.tensor(i) for pool in pools for i in range(len(pool.spec.tensors))]
    for tensor in memory:  # it was never set
        tensor[:] = 0
    engine.add(Request("a 0", list(range(42)), 42, "one"))
    engine.drain()
    assert all(np.count_nonzero(tensor) for tensor in memory)
    engine.close()
    assert any(np.count_nonzero(tensor) for tensor in memory) != scrub


def check_order(plan: StepPlan, scrubbed: set[int]) -> int:
    """Follows the work of a step on places of KV. A place that was scrubbed and not written since must not go to a
    file. Returns the number of places that go to files."""
    read = 0
    for save in plan.saves:
        if isinstance(save, PlaceClears):
            scrubbed.update(save.places.tolist())
        elif isinstance(save, PageCopies):
            scrubbed.difference_update(save.pages.get(KV_GROUPS[0], np.empty((0, 2), np.int32))[:, 1].tolist())
        else:
            of_kv = save[save["image"]["content"] == CONTENTS.index("kv_block")]
            moved = of_kv["kind"] != TRANSFER_KINDS.index("drop")
            sources = of_kv["place"][moved & (of_kv["from"] == MEDIA.index("device"))].tolist()
            assert not scrubbed & set(sources)
            read += len(sources)
            scrubbed.difference_update(of_kv["place"][moved & (of_kv["to"] == MEDIA.index("device"))].tolist())
    return read


def test_scrubbed_places_were_written_to_files_before(tmp_path: pathlib.Path) -> None:
    """Files have less room than the pools, so that a victim of the pools is written to a file before its place is
    taken."""
    read = 0
    for seed in seeds(6):
        print("seed", seed)
        chance = random.Random(seed)
        options = ConnectorOptions(host_bytes=16_000, checkpoint_tokens=8, folder=str(tmp_path / str(seed)),
                                   file_bytes=1 << chance.randrange(18, 21), scrub=True)
        engine, scrubbed = Engine(options, chance=chance), set[int]()
        plan_step = engine.side.plan_step

        def watched(*given: Any, plan_step: Any = plan_step, scrubbed: set[int] = scrubbed, **named: Any) -> StepPlan:
            nonlocal read
            plan: StepPlan = plan_step(*given, **named)
            read += check_order(plan, scrubbed)
            return plan

        engine.side.plan_step = watched  # type: ignore[method-assign]
        for turn in range(40):
            tokens = [chance.randrange(6)] * chance.randrange(10, 40)
            engine.add(Request(f"r{turn} 0", tokens, len(tokens), chance.choice(SALTS)))
            engine.drain()
        engine.close()
    assert read > 0


def in_files(tmp_path: pathlib.Path, salt: str | None, seed: str | None, monkeypatch: pytest.MonkeyPatch,
             **more: Any) -> int:
    """Tokens that a prompt restores in a new engine."""
    if seed is not None:
        monkeypatch.setenv(VARIABLE, seed)
        more["hash_seed_variable"] = VARIABLE
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(tmp_path / "images"),
                               file_bytes=1 << 22, **more)
    engine = Engine(options, chance=random.Random(1))
    one = Request("a 0", list(range(42)), 42, salt)
    engine.add(one)
    engine.drain()
    engine.close()
    return one.restored


def test_equal_prompts_of_two_salts_share_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [in_files(tmp_path, salt, None, monkeypatch, scrub=True) for salt in SALTS] == [0, 0, 0]
    assert [in_files(tmp_path, salt, None, monkeypatch, scrub=True) for salt in SALTS] == [40, 40, 40]


@pytest.mark.parametrize(("first", "second", "shares"), [
    (None, None, True), ("7", "7", True), ("7", "8", False), (None, "7", False), ("7", None, False)])
def test_engines_share_files_if_they_have_one_seed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                   first: str | None, second: str | None, shares: bool) -> None:
    assert in_files(tmp_path, None, first, monkeypatch) == 0
    assert in_files(tmp_path, None, second, monkeypatch) == (40 if shares else 0)


def test_pools_alone_have_a_random_seed() -> None:
    drawn = []
    for _ in range(2):
        engine = Engine(ConnectorOptions(host_bytes=1 << 20), chance=random.Random(1))
        drawn.append(engine.side.cache.options.hash_seed)
        engine.close()
    assert 0 not in drawn and drawn[0] != drawn[1]


def test_removed_files_hold_nothing_any_more(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scrub in (False, True):
        folder = tmp_path / str(scrub)
        options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(folder), file_bytes=1 << 22,
                                   scrub=scrub)
        engine = Engine(options, chance=random.Random(1))
        engine.add(Request("a 0", list(range(42)), 42, "one"))
        engine.drain()
        while engine.side.cache.transfers_under_way:
            engine.step()
        with open_images(folder) as hold_bytes:
            engine.side.reset()
            engine.step()
            engine.close()
            assert not list(folder.rglob("*.img"))
            assert any(hold_bytes()) != scrub


def test_a_mistaken_seed_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sp.InvalidArgument, match="name an environment variable by 'hash_seed_variable'") as refused:
        ConnectorOptions.read({"hash_seed": 7113})
    assert "7113" not in str(refused.value)
    options = ConnectorOptions.read({"hash_seed_variable": VARIABLE})
    with pytest.raises(sp.InvalidArgument, match="hash_seed_variable is 'STATEPORT_SEED_OF_A_TEST', which is no"):
        options.hash_seed()
    monkeypatch.setenv(VARIABLE, "7113")
    assert options.hash_seed() == 7113 and "7113" not in repr(options)
    for wrong in ({"hash_seed_variable": 7}, {"scrub": 1}):
        with pytest.raises(sp.InvalidArgument, match="and must be"):
            ConnectorOptions.read(wrong)


def test_a_step_clears_between_copies() -> None:
    step = StepBuilder()
    step.save(1, [4], [0])
    step.clear(np.array([2], np.int32))
    step.clear(np.empty(0, np.int32))
    step.save(1, [5], [2])
    assert [type(save) for save in step.build().saves] == [PageCopies, PlaceClears, PageCopies]
