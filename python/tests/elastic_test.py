# SPDX-License-Identifier: Apache-2.0
"""Elastic memory: stores whose extents come and go, and the mover of a cache whose KV and states lie in them."""
from __future__ import annotations

import mmap
import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport._arrays import MEMORY_MOVE

BLOCK, BLOCKS, CHECKPOINTS, GRANULES = 4, 40, 36, 40
PAGE = mmap.PAGESIZE
SPEC = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (PAGE // 4,), layer=0)])

pytestmark = pytest.mark.skipif(sp.backend() != "OpenMP", reason="the test reads the memory itself")


def make_stores(granules: int = GRANULES) -> tuple[sp.ElasticMemory, sp.ElasticStore, sp.ElasticStore]:
    memory = sp.ElasticMemory(granules * PAGE)
    kv = sp.ElasticStore(memory, SPEC, BLOCKS)
    return memory, kv, sp.ElasticStore(memory, SPEC, CHECKPOINTS, layout="slot_major")


def make_cache(granules: int = GRANULES, arena: sp.Arena | None = None, **options: Any) -> sp.RequestCache:
    layout = sp.SlotLayout(3, CHECKPOINTS, separate_checkpoints=True, placement="last",
                           arena=arena or sp.Arena(granules * PAGE, 1, PAGE, 1, PAGE))
    return sp.RequestCache("tree", layout, **{
        "max_requests": 1, "max_request_tokens": 8 * BLOCK, "block_size_tokens": BLOCK,
        "kv_tokens": BLOCK * (BLOCKS - 1), **options})


def test_extents_come_and_go_and_addresses_stay() -> None:
    memory, store, _ = make_stores(2)
    assert store.info() == sp.ElasticStoreInfo(1, BLOCKS, PAGE, 0, 0)
    assert memory.usage().granularity_bytes == PAGE
    array = store.tensor(0)
    store.map(3)
    store.map(39)
    assert [extent for extent in range(BLOCKS) if store.is_mapped(extent)] == [3, 39]
    assert memory.usage().mapped_bytes == 2 * PAGE == store.info().mapped_extents * PAGE
    array[3] = np.arange(PAGE // 4)
    store.copy([(3, 39)])
    sp.synchronize()
    assert (array[39] == array[3]).all()
    with pytest.raises(sp.OutOfMemory, match="elastic store"):
        store.map(4)
    store.unmap(3)
    store.map(4)
    array[4] = 5
    assert (array[39] == np.arange(PAGE // 4)).all() and (array[4] == 5).all()


def test_arrays_keep_the_memory() -> None:
    memory, store, _ = make_stores()
    store.map(0)
    array = store.tensor(0)
    array[0] = 7
    store.close()
    memory.close()
    assert (array[0] == 7).all()
    assert repr(memory) == "<ElasticMemory, closed>"


class Engine:
    """Serves prompts that are one token over and over: each block of KV and each checkpoint holds that token."""

    def __init__(self) -> None:
        self.memory, self.kv, self.states = make_stores()
        self.cache = make_cache()
        self.mover = sp.MemoryMover(self.cache, self.kv, self.states)
        self.blocks, self.moves, self.reused = self.kv.tensor(0), 0, 0
        self.check()

    def check(self) -> None:
        usage, memory = self.cache.arena_usage(), self.memory.usage()
        assert memory.mapped_bytes == usage.kv_bytes + usage.state_bytes <= memory.limit_bytes
        for part, store in (("kv", self.kv), ("states", self.states)):
            for extent in range(store.info().extents):
                assert self.cache.is_mapped(part, extent) == store.is_mapped(extent)

    def carry_out(self, answer: Any) -> None:
        assert self.mover.carry_out(answer, wait=True) == len(answer.moves)
        sp.synchronize()
        self.moves += len(answer.moves)
        self.check()

    def serve(self, name: int, blocks: int) -> None:
        started = self.cache.start([name] * (blocks * BLOCK + 1))
        assert started is not None
        rest = [blocks * BLOCK + 1 - started.reused_tokens]
        while not (plan := self.cache.plan([started.request], rest)).room[0]:
            assert len(plan.moves)
            self.carry_out(plan)
            self.cache.cancel(plan)
        for at in range(0, blocks * BLOCK + 1, BLOCK):
            block = int(plan.kv(0)[at]) // BLOCK
            if at < plan.start[0]:
                assert (self.blocks[block] == name).all()
                self.reused += 1
            self.blocks[block] = name
        commit = self.cache.commit(plan, [0], [])
        self.carry_out(commit)
        ended = self.cache.finish(started.request)
        assert all(self.states.is_mapped(int(copy["dst_slot"])) for copy in ended.copies)


def test_a_mover_moves_memory_to_where_prompts_need_it() -> None:
    for seed in seeds(3):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        draw, engine, extents = random.Random(seed), Engine(), {}
        for round_ in range(4):
            blocks = 7 if round_ % 2 else 1
            for _ in range(60):
                engine.serve(draw.randrange(1000, 1000 + (4 if blocks == 7 else 40)) * 10 + blocks, blocks)
            extents[round_] = engine.kv.info().mapped_extents
        assert min(extents[1], extents[3]) > max(extents[0], extents[2])
        assert engine.moves > 10 and engine.reused > 100


def test_a_mover_refuses_moves_that_the_cache_did_not_decide() -> None:
    engine = Engine()
    before = engine.memory.usage()
    move = np.zeros(1, MEMORY_MOVE)
    move["id"] = 1
    with pytest.raises(sp.InvalidArgument, match="must be the next move of the cache"):
        engine.mover.carry_out(sp.MemoryPlan(np.zeros(0), move))  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="moves has the type"):
        engine.mover.carry_out(sp.MemoryPlan(np.zeros(0), np.zeros(1)))  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="kv_copies = 39"):
        engine.mover.carry_out(sp.MemoryPlan([(0, 39)], move[:0]))  # type: ignore[arg-type]
    assert engine.memory.usage() == before
    assert engine.mover.carry_out() == 0


def test_a_mover_refuses_other_caches_and_stores() -> None:
    memory, kv, states = make_stores()
    cache = make_cache()
    with pytest.raises(sp.InvalidArgument, match="kv = 36"):
        sp.MemoryMover(cache, states, kv)
    with pytest.raises(sp.InvalidArgument, match="states is a StateStore"):
        sp.MemoryMover(cache, kv, sp.StateStore(SPEC, CHECKPOINTS))  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="must have the extents of the arena"):
        sp.MemoryMover(make_cache(arena=sp.Arena(GRANULES * PAGE, 2, 2 * PAGE, 1, PAGE)), kv, states)
    with pytest.raises(sp.InvalidState, match="has no arena"):
        sp.MemoryMover(make_cache(arena=sp.Arena()), kv, states)
    with pytest.raises(sp.OutOfMemory, match="MemoryMover"):
        sp.MemoryMover(make_cache(2 * GRANULES), kv, states)
    kv.map(BLOCKS - 1)
    with pytest.raises(sp.InvalidState, match="extents of this store are mapped"):
        sp.MemoryMover(cache, kv, states)
    kv.unmap(BLOCKS - 1)
    assert memory.usage().mapped_bytes == 0
    with sp.MemoryMover(cache, kv, states):
        with pytest.raises(sp.InvalidState, match="another mover"):
            sp.MemoryMover(make_cache(), kv, states)
        for call in (kv.map, kv.unmap):
            with pytest.raises(sp.InvalidState, match="memory mover"):
                call(0)
    kv.unmap(0)


@pytest.mark.parametrize(("options", "text"), [
    ({"limit_bytes": 0}, "limit_bytes = 0"), ({"limit_bytes": -1}, "limit_bytes is -1"),
    ({"limit_bytes": PAGE, "granularity_bytes": PAGE + 1}, "granularity"),
    ({"limit_bytes": PAGE, "granularity_bytes": 3 * PAGE}, "granularity")])
def test_wrong_memory_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=text):
        sp.ElasticMemory(**options)


def test_wrong_extents_are_refused() -> None:
    _, store, _ = make_stores()
    for call in (store.map, store.unmap, store.is_mapped):
        for extent in (-1, BLOCKS, 1.5, True):
            with pytest.raises(sp.InvalidArgument, match="extent"):
                call(extent)  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="must be mapped"):
        store.unmap(0)
    store.map(0)
    with pytest.raises(sp.InvalidArgument, match="must not be mapped"):
        store.map(0)
    with pytest.raises(sp.InvalidArgument, match="memory is a StateSpec"):
        sp.ElasticStore(SPEC, SPEC, 4)  # type: ignore[arg-type]
