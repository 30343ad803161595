# SPDX-License-Identifier: Apache-2.0
"""The two sides of the connector for vLLM, under a stand-in for vLLM whose pages name the tokens that made them."""
from __future__ import annotations

import dataclasses
import pathlib
import random
import types
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport._arrays import IMAGE_KEY, TRANSFER_RESULT
from stateport.vllm.metadata import PageCopies, ResultCount, StepBuilder, StepPlan, WorkerInfo, agreed_images
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.scheduler import SchedulerSide
from stateport.vllm.worker import WorkerSide

torch = pytest.importorskip("torch")
from vllm_stand_in import BLOCK, WINDOWS, Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

LARGE = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, decode_checkpoint_tokens=4)


def request(name: str, tokens: list[int], output: int = 0, salt: str | None = None) -> Request:
    return Request(f"{name} {output}", list(tokens), len(tokens), salt)


def serve(engine: Engine, *requests: Request) -> list[int]:
    """Tokens that each request restored."""
    for one in requests:
        engine.add(one)
    engine.drain()
    engine.side.cache.check_invariants()
    assert engine.side._waiting == 0 and not engine.side._loads._loads
    return [one.restored for one in requests]


def begin(engine: Engine, steps: int) -> Request:
    """A prompt of 42 tokens after `steps` steps of 8 tokens."""
    engine.budget = 8
    one = request("a", prompt(42))
    engine.add(one)
    for _ in range(steps):
        engine.step()
    return one


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000) for _ in range(length)]


def engine_of(options: ConnectorOptions = LARGE, **more: Any) -> Engine:
    return Engine(options, chance=random.Random(1), **more)


def test_a_prompt_restores_the_states_of_the_same_prompt() -> None:
    engine = engine_of()
    tokens = prompt(42)
    assert serve(engine, request("a", tokens)) == [0]
    assert serve(engine, request("b", tokens)) == [40]
    assert engine.side.counters.values["hit_tokens:host"] == 40
    engine.close()


def test_a_prompt_that_leaves_another_one_on_its_way_restores_a_checkpoint() -> None:
    engine = engine_of()
    tokens = prompt(60)
    first = request("a", tokens)
    serve(engine, first)
    assert first.stops == [8, 16, 24, 32, 40, 48, 56, 60]
    assert serve(engine, request("b", tokens[:30] + prompt(20, 1))) == [24]
    engine.close()


def test_without_checkpoints_a_branch_is_kept_once_a_prompt_took_it() -> None:
    engine = engine_of(ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=0))
    tokens = prompt(60)
    second = request("b", tokens[:30] + prompt(20, 1))
    assert serve(engine, request("a", tokens)) == [0]
    assert serve(engine, second) == [0]
    assert second.stops == [28, 48, 50]
    assert engine.side.counters.values["lost_tokens:no_checkpoint"] == 28
    assert serve(engine, request("c", tokens[:30] + prompt(20, 2))) == [28]
    engine.close()


def test_decoding_leaves_states_unless_that_is_switched_off() -> None:
    for grid, wanted in ((7, 32), (4, 36), (0, 20)):
        engine = engine_of(ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, decode_checkpoint_tokens=grid))
        first = request("a", prompt(22), output=16)
        serve(engine, first)
        assert serve(engine, request("b", [*first.all_token_ids, 5])) == [wanted]
        engine.close()


def test_states_of_decoding_with_drafts_are_not_kept() -> None:
    engine = engine_of(drafts=2)
    first = request("a", prompt(22), output=16)
    serve(engine, first)
    assert serve(engine, request("b", [*first.all_token_ids, 5])) == [20]
    # Nor those that vLLM offers by itself, of a prefix that no prompt has left a state of.
    saved = engine.side.counters.values["saved_states"]
    first.num_computed_tokens = 27
    engine.side.plan_step({"a 16": first}, scheduled={"a 16": 1}, offers={"a 16": [(0, 5, 28), (2, 6, 28)]},
                          block_ids=lambda name: [[5] * 9, [7] * 9, [6] * 9, [8] * 9])
    assert engine.side.counters.values["saved_states"] == saved
    engine.close()


def test_prompts_of_another_salt_share_nothing() -> None:
    engine = engine_of()
    tokens = prompt(42)
    serve(engine, request("a", tokens, salt="x"))
    assert serve(engine, request("b", tokens, salt="y"), request("c", tokens)) == [0, 0]
    assert serve(engine, request("d", tokens, salt="x")) == [40]
    engine.close()


def test_prompts_of_other_images_share_the_prefix_before_them() -> None:
    engine = engine_of()
    tokens = prompt(42)

    def with_image(name: str, identifier: str) -> Request:
        feature = types.SimpleNamespace(identifier=identifier, mm_position=types.SimpleNamespace(offset=18))
        one = request(name, tokens)
        one.mm_features = [feature]
        return one

    serve(engine, with_image("a", "cat"))
    assert serve(engine, with_image("b", "cat"), with_image("c", "dog")) == [40, 16]
    engine.close()


def test_a_state_before_an_image_is_kept_of_a_prompt_that_the_cache_did_not_take() -> None:
    engine = engine_of()
    one = request("a", prompt(42))
    one.mm_features = [types.SimpleNamespace(identifier="cat", mm_position=types.SimpleNamespace(offset=18))]
    engine.side.plan_step({"a 0": one}, scheduled={"a 0": 8}, offers={"a 0": [(0, 5, 8), (2, 6, 8)]},
                          block_ids=lambda name: [[0, 5], [1, 2], [0, 6], [3, 4]])
    assert engine.side.cache.stats().states == 1
    engine.close()


def test_prompts_with_embeddings_or_too_many_tokens_are_not_taken() -> None:
    engine = engine_of()
    embedded = request("a", prompt(42))
    embedded.prompt_embeds = np.zeros(3)
    assert serve(engine, embedded) == [0]
    assert engine.side.match(request("b", prompt(201)), 0) == 0
    values = engine.side.counters.values
    assert values["refused:not_tokens"] > 0 and values["refused:too_long"] == 1
    assert engine.side.cache.stats().states == 0
    engine.close()


def test_a_prompt_that_must_not_read_the_cache_still_fills_it() -> None:
    engine = engine_of()
    first, second = request("a", prompt(42)), request("b", prompt(42))
    first.skip_reading_prefix_cache = second.skip_reading_prefix_cache = True
    assert serve(engine, first) == [0]
    assert serve(engine, second) == [0]
    assert serve(engine, request("c", prompt(42))) == [40]
    engine.close()


def test_a_reset_forgets_everything_though_a_request_runs() -> None:
    engine = engine_of()
    serve(engine, request("a", prompt(42)))
    engine.budget = 8
    engine.add(request("b", prompt(42, 1)))
    engine.step()
    engine.side.reset()
    assert engine.side.cache.stats().states == 0
    engine.drain()
    assert serve(engine, request("c", prompt(42))) == [0]
    engine.close()


def test_prompts_that_began_before_a_reset_leave_nothing() -> None:
    engine = engine_of()
    begin(engine, 3)
    engine.side.reset(["a 0"])
    engine.drain()
    assert serve(engine, request("b", prompt(42))) == [0]
    assert serve(engine, request("c", prompt(42))) == [40]
    engine.close()


def test_a_prompt_that_is_preempted_after_a_reset_is_computed_anew_and_kept() -> None:
    engine = engine_of()
    one = begin(engine, 1)
    engine.side.reset(["a 0"])
    engine.step()
    engine.step(preempt=one)
    engine.drain()
    assert serve(engine, request("b", prompt(42))) == [40]
    engine.close()


@pytest.mark.parametrize(("taken", "left", "counted"), [(40, 0, 1), (0, 40, 0)], ids=["ours", "another connector's"])
def test_restores_of_ours_that_failed_are_computed_and_counted(taken: int, left: int, counted: int) -> None:
    engine = engine_of()
    serve(engine, request("a", prompt(42)))
    again = request("b", prompt(42))
    assert engine.side.match(again, 0) == 40
    engine.side.admit(again, [[0] * 11] * 4, taken)
    engine.side.failed({"b 0"})
    assert engine.side.match(again, 0) == left
    assert engine.side.counters.values.get("failed_restores", 0) == counted
    engine.side.end("b 0")
    engine.close()


def test_a_worker_names_the_requests_whose_pages_it_could_not_restore() -> None:
    engine = engine_of()
    good, bad = (PageCopies({1: np.array([[5, place]], np.int32)}) for place in (0, 1 << 20))
    side = engine.ranks[0].side
    assert side.restore(StepPlan(good, ["x"])) == ({"x"}, set())
    assert side.restore(StepPlan(bad, ["x", "y"])) == (set(), {"x", "y"})
    assert side.restore(StepPlan()) == (set(), set())
    engine.close()


def test_nothing_is_restored_where_vllm_takes_another_number_of_tokens() -> None:
    engine = engine_of()
    serve(engine, request("a", prompt(42)))
    again = request("b", prompt(42))
    assert engine.side.match(again, 8) == 32
    engine.side.counters.take()
    engine.side.admit(again, [[0] * 11] * 4, 28)
    plan = engine.side.plan_step({"b 0": again}, scheduled={}, offers={}, block_ids=lambda _: None)
    assert (plan.restored, plan.refused, len(plan.restores)) == ([], ["b 0"], 0)
    assert engine.ranks[0].side.restore(plan) == (set(), {"b 0"})
    engine.side.failed({"b 0"})
    assert engine.side.match(again, 8) == 0
    engine.side.admit(again, [[0] * 11] * 4, 0)
    assert engine.side.counters.values == {"prompts": 1, "lost_hits:engine_cut": 1, "lost_tokens:engine_cut": 32}
    engine.side.end("b 0")
    assert serve(engine, request("c", prompt(42))) == [40]
    engine.close()


def test_a_prompt_that_found_no_room_restores_states_that_came_meanwhile() -> None:
    engine = engine_of()
    late = request("b", prompt(42))
    assert engine.side.match(late, 0) == 0
    serve(engine, request("a", prompt(42)))
    assert engine.side.match(late, 0) == 40
    assert engine.side.match(late, 8) == 32
    assert serve(engine, late) == [40]
    assert engine.side.counters.values["hit_tokens:host"] == 40
    engine.close()


def test_workers_that_tell_of_their_pools_again_change_nothing() -> None:
    engine = engine_of(ranks=2)
    serve(engine, request("a", prompt(42)))
    cache, infos = engine.side.cache, [rank.info for rank in engine.ranks]
    engine.side.open(infos)
    assert engine.side.cache is cache
    for others in (infos[:1], [infos[0], dataclasses.replace(infos[1], states=3)]):
        with pytest.raises(sp.InvalidArgument, match="the workers have the pools"):
            engine.side.open(others)
    assert serve(engine, request("b", prompt(42))) == [40]
    engine.close()


@pytest.mark.parametrize("keep", [False, True])
def test_sleep_forgets_all_unless_a_reset_keeps_it(keep: bool, tmp_path: pathlib.Path) -> None:
    options = dataclasses.replace(LARGE, folder=str(tmp_path / "images"), file_bytes=1 << 22, keep_on_reset=keep)
    engine = engine_of(options, ranks=2)
    serve(engine, request("a", prompt(42)))
    engine.side.reset()  # as vLLM does before it sleeps
    engine.sleep()
    assert serve(engine, request("b", prompt(42))) == [40 if keep else 0]
    engine.step()  # removes images
    engine.close()
    again = engine_of(options, ranks=2)
    assert serve(again, request("c", prompt(42))) == [40 if keep else 0]
    again.close()


def test_a_prompt_that_is_under_way_at_a_reset_that_keeps_is_looked_up_again() -> None:
    engine = engine_of(dataclasses.replace(LARGE, keep_on_reset=True))
    one = begin(engine, 3)
    engine.side.reset(["a 0"])
    assert engine.side.cache.running_requests == 0
    engine.step(preempt=one)
    engine.drain()
    assert one.restored == 24
    engine.close()


def test_one_connector_serves_the_pages_of_an_engine() -> None:
    engine = engine_of()
    rank = engine.ranks[0]
    second = WorkerSide(rank.side.layout, LARGE, model="another")
    with pytest.raises(sp.InvalidArgument, match="another StateportConnector serves this engine"):
        second.register(rank.caches)
    rank.side.close()
    assert second.register(rank.caches).pools == rank.info.pools
    second.close()
    engine.side.cache.close()


def test_offers_that_are_incomplete_are_not_kept() -> None:
    engine = engine_of()
    one = request("a", prompt(8))
    for offer, tables, reason in (([(0, 5, 8)], [[0, 5], [1, 2], [0, 6], [3, 4]], "incomplete_offer"),
                                  ([(0, 5, 6), (2, 6, 6)], [[0, 5], [1, 2], [0, 6], [3, 4]], "partial_block"),
                                  ([(0, 5, 8), (2, 0, 8)], [[0, 5], [1, 2], [0, 0], [3, 4]], "incomplete_offer"),
                                  ([(0, 5, 8), (2, 6, 8)], [[0, 5], [0, 2], [0, 6], [3, 4]], "no_kv"),
                                  ([(0, 5, 8), (2, 6, 8)], [[0, 5], [1, 0], [0, 6], [3, 4]], "no_kv")):
        engine.side.counters.take()
        plan = engine.side.plan_step({"a 0": one}, scheduled={"a 0": 8}, offers={"a 0": offer},
                                     block_ids=lambda name, tables=tables: tables)
        assert not plan.saves and engine.side.counters.values == {f"unsaved:{reason}": 1}
    engine.close()


def test_offers_of_requests_that_do_not_run_are_not_kept() -> None:
    """vLLM may have given their blocks to others in the same step."""
    engine = engine_of()
    one, offers = request("a", prompt(8)), {"a 0": [(0, 5, 8), (2, 6, 8)]}
    for requests, scheduled, saves in (({"a 0": one}, {}, 0), ({}, {"a 0": 8}, 0), ({"a 0": one}, {"a 0": 8}, 1)):
        engine.side.counters.take()
        plan = engine.side.plan_step(requests, scheduled=scheduled, offers=offers,
                                     block_ids=lambda name: [[0, 5], [1, 2], [0, 6], [3, 4]])
        assert len(plan.saves) == saves
        assert engine.side.counters.values.get("unsaved:not_scheduled", 0) == 1 - saves
    engine.close()


def test_a_second_engine_restores_the_files_of_the_first_one(tmp_path: pathlib.Path) -> None:
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(tmp_path / "images"),
                               file_bytes=1 << 22)
    first = engine_of(options, ranks=2)
    serve(first, request("a", prompt(42)), request("b", prompt(42, 1)))
    first.close()
    second = engine_of(options, ranks=2)
    third = request("c", prompt(42)[:26] + prompt(20, 3))
    assert serve(second, request("a", prompt(42)), third) == [40, 24]
    assert second.side.counters.values["hit_tokens:file"] == 64
    second.side.reset()
    assert serve(second, request("d", prompt(42))) == [0]
    second.close()


def test_a_second_engine_uses_only_images_that_all_workers_have(tmp_path: pathlib.Path) -> None:
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(tmp_path / "images"),
                               file_bytes=1 << 22)
    first = engine_of(options, ranks=1)
    serve(first, request("a", prompt(42)))
    first.close()
    second = engine_of(options, ranks=2)
    assert len(second.ranks[0].info.images) > 0 and len(second.ranks[1].info.images) == 0
    second.step()
    assert len(second.ranks[0].side.images()) == 0  # an image that only one worker has is of no use
    assert serve(second, request("a", prompt(42))) == [0]
    second.close()


def test_a_request_that_decodes_takes_nothing_of_the_cache() -> None:
    engine, one = engine_of(), request("a", prompt(42), 20)
    engine.add(one)
    while one.num_computed_tokens < one.num_prompt_tokens:
        engine.step()
    engine.step()
    assert one.num_computed_tokens < one.num_prompt_tokens + 20
    assert engine.side.cache.running_requests == 0
    engine.drain()
    engine.close()


def test_a_reset_waits_for_no_prompt_that_runs() -> None:
    engine = engine_of()
    side = engine.side
    serve(engine, request("a", prompt(42)))
    running = side.cache.start(np.arange(5), now_s=side._now_s())
    assert running is not None
    side.reset()
    assert side.cache.is_stale(running.request)
    assert serve(engine, request("b", prompt(42))) == [0]
    assert serve(engine, request("c", prompt(42))) == [40]
    side.cache.abort(running.request)
    assert serve(engine, request("d", prompt(42))) == [40]
    engine.close()


def test_pages_that_lie_otherwise_have_images_of_another_name() -> None:
    engine = engine_of()
    side = engine.ranks[0].side
    pages = {layer: torch.zeros((4, 2, 3)) for group in side.layout.groups for layer in group.layers}
    others = [torch.zeros((4, 3, 2)).transpose(1, 2), torch.zeros((4, 3, 2)), torch.zeros((4, 2, 3)).int()]
    first = next(iter(pages))
    names = {side._name({**pages, first: memory}) for memory in (pages[first], *others)}
    assert len(names) == 4
    assert side._name({**pages, first: torch.zeros((8, 2, 3))}) in names  # of another number of blocks
    engine.close()


def test_the_largest_images_of_the_workers_are_those_of_all(tmp_path: pathlib.Path) -> None:
    engine = engine_of()
    options = dataclasses.replace(LARGE, folder=str(tmp_path), file_bytes=1 << 20)
    side = SchedulerSide(engine.side.layout, options, max_requests=1, max_request_tokens=1000)
    info = dataclasses.replace(engine.ranks[0].info, images=np.empty(0, IMAGE_KEY))
    side.open([dataclasses.replace(info, kv_image_bytes=kv, state_image_bytes=state)
               for kv, state in ((8192, 4096), (4096, 12288))])
    tiers = side.cache.options.tiers
    assert tiers is not None and (tiers.kv_image_bytes, tiers.state_image_bytes) == (8192, 12288)
    side.cache.close()
    engine.close()


def test_the_smallest_pool_of_the_workers_is_that_of_all() -> None:
    engine = engine_of()
    side = SchedulerSide(engine.side.layout, LARGE, max_requests=1, max_request_tokens=1000)
    info = engine.ranks[0].info
    side.open([dataclasses.replace(info, kv_blocks=9), dataclasses.replace(info, kv_blocks=7, states=3)])
    assert (side.cache.kv_blocks, side.cache.checkpoint_slots()) == (7, 3)  # as stores must have them
    assert side.match(request("a", prompt(25)), 0) == 0 and side.counters.values == {"refused:too_long": 1}
    with pytest.raises(sp.InvalidArgument, match="no worker has reported"):
        side.open([])
    side.cache.close()
    engine.close()


OPTIONS = (LARGE, ConnectorOptions(host_bytes=24_000, checkpoint_tokens=8, decode_checkpoint_tokens=8),
           ConnectorOptions(host_bytes=9_000, checkpoint_tokens=0),
           ConnectorOptions(host_bytes=40_000, state_share=0.5),
           ConnectorOptions(host_bytes=16_000, checkpoint_tokens=8, folder="images", file_bytes=1 << 19),
           ConnectorOptions(host_bytes=60_000, checkpoint_tokens=16, folder="images", file_bytes=1 << 22),
           ConnectorOptions(host_bytes=60_000, checkpoint_tokens=8, keep_on_reset=True, pinned_bytes=30_000))


@pytest.mark.parametrize("seed", seeds(8))
def test_random_conversations_never_restore_a_wrong_page(seed: int, tmp_path: pathlib.Path) -> None:
    chance = random.Random(seed)
    options = OPTIONS[seed % len(OPTIONS)]
    if options.folder is not None:
        options = ConnectorOptions(**{**vars(options), "folder": str(tmp_path / "images")})
    print(f"seed {seed}: {options}")
    shared = [[chance.randrange(3) for _ in range(chance.randrange(4, 50))] for _ in range(3)]
    restored, windows = 0, chance.choice(WINDOWS)
    for _ in range(3 if options.folder is not None else 1):  # engines one after the other over the same files
        restored += converse(Engine(options, ranks=chance.choice((1, 2)), chance=chance,
                                    budget=chance.choice((8, 20, 64)), windows=windows), chance, shared)
    assert restored > 0 or options.host_bytes < 10_000


def converse(engine: Engine, chance: random.Random, shared: list[list[int]]) -> int:
    engine.local_hits, engine.late_saves = chance.random() < 0.5, chance.random() < 0.5
    engine.cuts = chance.choice((0.0, 0.1))
    for turn in range(40):
        if len(engine.waiting) + len(engine.running) < 4:
            tokens = chance.choice(shared)[:chance.randrange(2, 60)]
            if chance.random() < 0.5 and engine.finished:
                tokens = list(chance.choice(engine.finished).all_token_ids)[:chance.randrange(1, 70)]
            tokens = tokens + [chance.randrange(3) for _ in range(chance.randrange(12))]
            one = request(f"r{turn}", tokens, chance.randrange(10), chance.choice((None, None, "salt")))
            one.session_id = chance.choice((None, "one", "two"))
            one.kv_hints = {"actions": [{"action_type": chance.choice(("kv.pin", "kv.demote", "kv.prefetch", "kv.x")),
                                         "payload": {"token_ids": chance.choice(shared)}}]}
            engine.add(one)
        preempt = chance.choice(engine.running) if engine.running and chance.random() < 0.1 else None
        engine.step(preempt)
        engine.side.cache.check_invariants()
        ready = [one for one in engine.waiting + engine.running if not one.waits]
        if ready and chance.random() < 0.08:
            engine.finish(chance.choice(ready))
        if chance.random() < 0.02:
            engine.side.reset()
        if chance.random() < 0.03:
            engine.drain()
            engine.sleep()
    engine.drain()
    restored = sum(one.restored for one in engine.finished)
    engine.close()
    return restored


# --- Plain data ------------------------------------------------------------------------------------------------------


def test_saves_keep_their_order_and_join_only_if_they_write_other_places() -> None:
    step = StepBuilder()
    transfers = np.zeros(1, sp.TRANSFER)
    step.save(1, [4, 5], [0, 1])
    step.save(2, [6], [0])
    step.save(1, [7], [1])
    step.transfer(transfers)
    step.transfer(transfers[:0])
    step.save(1, [8], [2])
    step.save(1, [], [])
    plan = step.build()
    copies = [{group: pairs.tolist() for group, pairs in save.pages.items()} if isinstance(save, PageCopies)
              else len(save) for save in plan.saves]
    assert copies == [{1: [[4, 0], [5, 1]], 2: [[6, 0]]}, {1: [[7, 1]]}, 1, {1: [[8, 2]]}]


def test_a_transfer_ended_when_all_workers_say_so_with_the_worst_of_their_answers() -> None:
    def results(*rows: tuple[int, int]) -> Any:
        return np.array([(*row, 0) for row in rows], TRANSFER_RESULT)

    count = ResultCount(2)
    assert len(count.add(results((1, 0), (2, 0), (4, 5)))) == 0
    assert count.add(results((2, 3), (3, 0), (4, 0))).tolist() == [(2, 3, 0), (4, 5, 0)]
    assert count.add(results((1, 0), (3, 0))).tolist() == [(1, 0, 0), (3, 0, 0)]


def test_images_are_used_that_all_workers_have_and_that_are_whole_blocks() -> None:
    def info(*tokens: int) -> WorkerInfo:
        images = np.zeros(len(tokens), IMAGE_KEY)
        images["tokens"] = tokens
        return WorkerInfo(1, 1, 1, 1, 1, 1, 1, images)

    used, removed = agreed_images([info(12, 4, 6, 8), info(8, 6, 12)], BLOCK)
    assert (used["tokens"].tolist(), sorted(removed["tokens"].tolist())) == ([8, 12], [4, 6])
    assert [len(part) for part in agreed_images([info()], BLOCK)] == [0, 0]
