# SPDX-License-Identifier: Apache-2.0
"""KV that is still in vLLM's own blocks, under the stand-in for vLLM with a pool of blocks like vLLM's."""
from __future__ import annotations

import dataclasses
import random
import types
from typing import Any

import numpy as np
import pytest

from conftest import seeds
from stateport.vllm.device_kv import DeviceKv, Span
from stateport.vllm.options import ConnectorOptions

torch = pytest.importorskip("torch")
from vllm_connector_test import prompt, request  # noqa: E402
from vllm_pool import BlockPool  # noqa: E402
from vllm_stand_in import BLOCK, BLOCKS, HASHED, KV_GROUPS, STATE_GROUPS, WINDOWS, Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

LARGE = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, decode_checkpoint_tokens=4)


def engine_of(options: ConnectorOptions = LARGE, **more: Any) -> Engine:
    return Engine(options, chance=random.Random(1), **{"caching": True, **more})


def serve(engine: Engine, one: Request) -> int:
    """Tokens that a request restored."""
    engine.add(one)
    while engine.waiting or engine.running:
        engine.step()
        engine.check_blocks()
    engine.side.cache.check_invariants()
    return one.restored


def restored(engine: Engine) -> tuple[int, int, int]:
    """Since the last call: tokens whose KV was copied on the device, the bytes of that KV, and bytes from the host."""
    counted = engine.side.counters.take()
    return counted.get("device_tokens", 0), counted.get("device_bytes", 0), counted.get("restored_bytes", 0)


def sizes(engine: Engine) -> tuple[int, int]:
    """Bytes of a block of KV and of a state."""
    info = engine.ranks[0].info
    return info.kv_block_bytes, info.state_bytes


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("salt", [None, "x"])
def test_where_the_state_alone_is_gone_the_host_sends_the_state_alone(ranks: int, salt: str | None) -> None:
    engine = engine_of(ranks=ranks)
    block, state = sizes(engine)
    assert serve(engine, request("a", prompt(42), salt=salt)) == 0
    engine.pool.forget_groups(STATE_GROUPS)
    restored(engine)
    assert serve(engine, request("b", prompt(42), salt=salt)) == 40
    assert restored(engine) == (40, 10 * block, state)
    engine.pool.forget_groups(range(4))
    assert serve(engine, request("c", prompt(42), salt=salt)) == 40
    assert restored(engine) == (0, 0, 10 * block + state)
    engine.close()


def test_a_prompt_that_branches_off_takes_its_shared_blocks_on_the_device() -> None:
    engine = engine_of()
    block, state = sizes(engine)
    serve(engine, request("a", prompt(60)))
    engine.pool.forget_groups(STATE_GROUPS)
    restored(engine)
    assert serve(engine, request("b", prompt(60)[:30] + prompt(20, 1))) == 24
    assert restored(engine) == (24, 6 * block, state)
    engine.close()


def test_blocks_that_were_given_away_come_from_the_host() -> None:
    engine = engine_of()
    block, state = sizes(engine)
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    for column, group in ((2, KV_GROUPS[0]), (5, KV_GROUPS[1])):  # a column counts if all groups have it
        name = request("b", prompt(42)).hash_at((column + 1) * BLOCK)
        (found,) = engine.pool.get_cached_block(name, [group]) or ()
        engine.pool.forget(found)
    restored(engine)
    assert serve(engine, request("b", prompt(42))) == 40
    assert restored(engine) == (32, 8 * block, 2 * block + state)
    engine.close()


def test_prompts_of_another_salt_take_nothing_of_it() -> None:
    engine = engine_of()
    for name, salt in (("a", "x"), ("b", "y")):
        serve(engine, request(name, prompt(42), salt=salt))
        engine.pool.forget_groups(STATE_GROUPS if salt == "x" else range(4))
    restored(engine)
    assert serve(engine, request("c", prompt(42), salt="y")) == 40
    assert restored(engine)[:2] == (0, 0)
    engine.close()


@pytest.mark.parametrize("local", [0, 8])
def test_kv_that_the_same_step_computes_comes_from_the_host(local: int) -> None:
    engine = engine_of(budget=8)
    block, state = sizes(engine)
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(range(4))
    again = request("b", prompt(42))
    again.skip_reading_prefix_cache = True
    engine.add(again)
    engine.step()
    if not local:
        engine.pool.forget_groups(STATE_GROUPS)
        (found,) = engine.pool.get_cached_block(again.hash_at(BLOCK), KV_GROUPS[:1]) or ()
        engine.pool.forget(found)
    restored(engine)
    third = request("c", prompt(42))
    engine.add(third)
    engine.step()  # computes the tokens 8 to 16 of "b"
    assert (again.num_computed_tokens, third.local, third.restored) == (16, local, 40 - local)
    copied = 0 if local else 1  # before it, and not the first one
    assert restored(engine) == (copied * BLOCK, copied * block, (10 - local // BLOCK - copied) * block + state)
    engine.drain()
    engine.check_blocks()
    engine.close()


def begin_restore(engine: Engine) -> Request:
    """A prompt whose KV is copied on the device in the step under way."""
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    engine.late_answers = True
    again = request("b", prompt(42))
    engine.add(again)
    engine.step()
    assert again.waits and sum(map(len, (plan.moves for plan in engine.plans))) == 20
    return again


def owned(engine: Engine) -> int:
    return sum(block.ref_cnt for block in engine.pool.blocks)


def test_blocks_are_kept_until_the_workers_have_answered() -> None:
    engine = engine_of()
    again = begin_restore(engine)
    tables = sum(block > 0 for row in again.blocks for block in row)
    assert owned(engine) == tables + 20
    engine.step()
    engine.step()
    assert not again.waits
    engine.drain()
    assert owned(engine) == 0
    engine.close()


def test_blocks_of_a_prompt_that_is_given_up_are_kept_until_the_workers_have_answered() -> None:
    engine = engine_of()
    again = begin_restore(engine)
    engine.finish(again, "FINISHED_ABORTED")
    assert owned(engine) > 20
    engine.drain()
    engine.check_blocks()
    assert owned(engine) == 0
    engine.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_blocks_of_a_restore_that_failed_are_given_back(ranks: int) -> None:
    engine = engine_of(ranks=ranks)
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    engine.failures = 1.0
    again = request("b", prompt(42))
    engine.add(again)
    engine.step()
    assert owned(engine) == 0 and engine.side.counters.values["failed_restores"] == 1
    engine.drain()
    assert again.restored == 0
    engine.check_blocks()
    engine.close()


def test_a_restore_that_vllm_cuts_takes_no_block() -> None:
    engine = engine_of()
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    engine.cuts = 1.0
    assert serve(engine, request("b", prompt(42))) == 0
    assert "device_tokens" not in engine.side.counters.values
    engine.close()


class FullPool(BlockPool):
    """Has all that it is asked for."""

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Any) -> list[Any]:
        return self.blocks[1:3]


def test_nothing_is_copied_on_the_device_where_vllm_shows_no_pool_or_another_one(
        caplog: pytest.LogCaptureFixture) -> None:
    for manager in (None, types.SimpleNamespace(block_pool=types.SimpleNamespace(touch=None, hash_block_size=3)),
                    types.SimpleNamespace(block_pool=FullPool(9, 3, print))):  # hashes parts that make no block
        engine = engine_of(bound=False)
        if manager is not None:
            engine.side.device_kv.bind(manager)
        serve(engine, request("a", prompt(42)))
        engine.pool.forget_groups(STATE_GROUPS)
        assert serve(engine, request("b", prompt(42))) == 40
        assert restored(engine)[:2] == (0, 0)
        engine.close()
    assert caplog.messages == ["stateport: vLLM's pool of blocks has no get_cached_block, free_blocks, "
                               "get_num_free_blocks: all KV is restored from the host"]


def test_where_the_blocks_of_a_step_are_not_known_kv_comes_from_the_host() -> None:
    engine = engine_of()
    block, state = sizes(engine)
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    again, runs = request("b", prompt(42)), request("c", [1, 2])
    assert engine.side.match(again, 0) == 40
    engine.allocate(again, 40)
    restored(engine)
    engine.side.admit(again, again.blocks, 40)
    plan = engine.side.plan_step({"b 0": again, "c 0": runs}, scheduled={"c 0": 2}, offers={},
                                 block_ids=lambda _: None)
    assert len(plan.moves) == 0 and len(plan.restores) == 22
    assert restored(engine) == (0, 0, 10 * block + state)
    engine.side.device_kv.release(["another", "b 0"])
    engine.release(again)
    engine.check_blocks()
    engine.close()


# --- DeviceKv alone --------------------------------------------------------------------------------------------------


def kept_prompt(pool: BlockPool, columns: int) -> Request:
    """A prompt whose blocks are free, and named."""
    one = request("a", prompt(4 * columns + 2))
    blocks = pool.get_new_blocks(2 * columns)
    for i, block in enumerate(blocks):
        pool.name(block, one.hash_at((i // 2 + 1) * BLOCK), KV_GROUPS[i % 2])
    pool.free_blocks(blocks)
    return one


def bound(pool: BlockPool) -> DeviceKv:
    device = DeviceKv(BLOCK)
    device.bind(types.SimpleNamespace(block_pool=pool))
    return device


def span(first: int, end: int, groups: tuple[int, ...] = KV_GROUPS) -> Span:
    return Span(groups, first, np.arange(first, end, dtype=np.int32))


def test_half_of_the_free_blocks_stay_free() -> None:
    pool = BlockPool(41, HASHED, lambda _: None)
    one, device = kept_prompt(pool, 16), bound(pool)
    (columns, blocks), (more, _) = device.take(one, [span(1, 11), span(12, 16, KV_GROUPS[:1])])
    assert columns.tolist() == list(range(10)) and blocks.shape == (10, 2)
    assert len(more) == 0 and pool.get_num_free_blocks() == 20
    ((columns, _),) = device.take(dataclasses.replace(one, request_id="b"), [span(1, 16)])
    assert columns.tolist() == list(range(15))  # blocks that have an owner cost nothing
    device.release(["b"])
    assert pool.get_num_free_blocks() == 20
    device.release(["a 0"])
    device.release(["a 0"])
    assert pool.get_num_free_blocks() == 40
    assert list(pool.queue)[-2:] == [4, 3]  # from the end on: the first ones go last


def test_a_look_up_counts_as_a_use() -> None:
    pool = BlockPool(9, HASHED, lambda _: None)
    one, device = kept_prompt(pool, 3), bound(pool)
    kept = pool.get_new_blocks(2)
    assert [block.block_id for block in kept] == [7, 8]  # free ones without a name go first
    pool.free_blocks(kept)
    device.keep(one, [span(0, 2)])
    assert list(pool.queue) == [7, 8, 5, 6, 4, 3, 2, 1]
    assert all(block.ref_cnt == 0 for block in pool.blocks)
    device.keep(one, [span(2, 9)])
    assert list(pool.queue) == [7, 8, 4, 3, 2, 1, 6, 5]


# --- Random calls ----------------------------------------------------------------------------------------------------


def test_random_conversations_read_what_their_prefixes_made_and_leave_no_owner() -> None:
    """Each step reads all blocks of its requests again, and counts all references anew."""
    assert sum(converse(seed) for seed in seeds(4)) > 0


def converse(seed: int) -> int:
    """Blocks that were copied on the device."""
    chance = random.Random(seed)
    options = dataclasses.replace(LARGE, host_bytes=chance.choice((20_000, 60_000, 1 << 20)))
    engine = Engine(options, ranks=chance.choice((1, 2)), chance=chance, caching=True,
                    budget=chance.choice((8, 20, 64)), windows=chance.choice(WINDOWS))
    engine.late_answers, engine.late_saves = chance.random() < 0.5, chance.random() < 0.5
    engine.cuts, engine.failures = chance.choice((0.0, 0.1)), chance.choice((0.0, 0.1))
    print(f"seed {seed}: {vars(engine)}")
    shared = [[chance.randrange(3) for _ in range(chance.randrange(4, 50))] for _ in range(3)]
    for turn in range(50):
        if len(engine.requests) < 4:
            tokens = list(chance.choice([one.all_token_ids for one in engine.finished] + shared))
            tokens = tokens[:chance.randrange(1, 70)] + [chance.randrange(3) for _ in range(chance.randrange(12))]
            salt = chance.choice((None, None, "salt"))
            for i in range(chance.choice((1, 1, 2))):
                one = request(f"r{turn}.{i}", tokens, chance.randrange(10), salt)
                one.skip_reading_prefix_cache = chance.random() < 0.2
                engine.add(one)
        if chance.random() < 0.2:
            engine.pool.forget_groups(chance.choice((STATE_GROUPS, STATE_GROUPS, tuple(engine.windows), engine.groups)))
        engine.step(chance.choice(engine.running) if engine.running and chance.random() < 0.1 else None)
        engine.check_blocks()
        engine.side.cache.check_invariants()
        if engine.requests and chance.random() < 0.1:
            engine.finish(chance.choice(list(engine.requests.values())))
    engine.drain()
    assert all(block.ref_cnt == 0 for block in engine.pool.blocks)
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1
    for plan in engine.plans:  # a block that is read is not written
        for pairs in plan.moves.pages.values():
            written = [*plan.moves.pages.values(), *(copies[:, ::-1] for copies in plan.restores.pages.values())]
            assert not set(pairs[:, 0].tolist()) & set(np.concatenate(written)[:, 1].tolist())
    engine.close()
    return sum(len(plan.moves) for plan in engine.plans)
