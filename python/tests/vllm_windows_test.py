# SPDX-License-Identifier: Apache-2.0
"""Sliding windows as a part of the state, under the stand-in for vLLM."""
from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import pytest

from stateport.vllm.options import ConnectorOptions

torch = pytest.importorskip("torch")
from vllm_connector_test import LARGE, prompt, request, serve  # noqa: E402
from vllm_stand_in import FIRST_WINDOW, STATE_GROUPS, Engine  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

BLOCKS_OF = {2: 1, 5: 1, 6: 2, 18: 5, (11, 3): 4}  # by window: of a state


def engine_of(*windows: int | tuple[int, int], options: ConnectorOptions = LARGE, **more: Any) -> Engine:
    return Engine(options, windows=windows, chance=random.Random(1), **more)


def taken(engine: Engine) -> tuple[int, int]:
    """Bytes that were restored from the host and on the device since the last call."""
    counted = engine.side.counters.take()
    return counted.get("restored_bytes", 0), counted.get("device_bytes", 0)


@pytest.mark.parametrize("window", BLOCKS_OF)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_restores_the_last_blocks_of_its_windows(window: int | tuple[int, int], ranks: int) -> None:
    engine = engine_of(window, ranks=ranks)
    info = engine.ranks[0].info
    assert engine.side.layout.windows[0].blocks == BLOCKS_OF[window]
    tokens = prompt(60)
    assert serve(engine, request("a", tokens), request("b", tokens)) == [0, 0]
    taken(engine)
    assert serve(engine, request("c", tokens)) == [56]
    assert taken(engine) == (14 * info.kv_block_bytes + info.state_bytes, 0)
    assert serve(engine, request("d", tokens[:30] + prompt(20, 1))) == [24]
    lacks = max(BLOCKS_OF[window] - 6, 0)
    assert taken(engine)[0] == 6 * info.kv_block_bytes + info.state_bytes - lacks * info.window_block_bytes[0]
    engine.close()


def test_states_of_decoding_have_their_windows() -> None:
    engine = engine_of(9, 18)
    first = request("a", prompt(22), output=16)
    serve(engine, first)
    assert serve(engine, request("b", [*first.all_token_ids, 5])) == [36]
    engine.close()


def test_a_second_engine_restores_windows_from_files(tmp_path: pathlib.Path) -> None:
    options = dataclasses.replace(LARGE, folder=str(tmp_path / "images"), file_bytes=1 << 22)
    for restored in (0, 40):
        engine = engine_of(9, 18, options=options, ranks=2)
        assert serve(engine, request("a", prompt(42))) == [restored]
        engine.close()
    engine = engine_of(9, 22, options=options, ranks=2)  # a model with another window
    assert serve(engine, request("a", prompt(42))) == [0]
    engine.close()


def test_windows_that_vllm_still_has_are_copied_on_the_device() -> None:
    engine = engine_of(9, 18, caching=True)
    info = engine.ranks[0].info
    lone = info.state_bytes - 2 * info.window_block_bytes[0] - 5 * info.window_block_bytes[1]
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(STATE_GROUPS)
    taken(engine)
    assert serve(engine, request("b", prompt(42))) == [40]
    assert taken(engine) == (lone, 10 * info.kv_block_bytes + info.state_bytes - lone)
    engine.pool.forget_groups([*STATE_GROUPS, FIRST_WINDOW])
    while found := engine.pool.get_cached_block(request("c", prompt(42)).hash_at(28), [FIRST_WINDOW + 1]):
        engine.pool.forget(found[0])
    assert serve(engine, request("c", prompt(42))) == [40]
    gone = 2 * info.window_block_bytes[0] + info.window_block_bytes[1]
    assert taken(engine) == (lone + gone, 10 * info.kv_block_bytes + info.state_bytes - lone - gone)
    engine.close()


@pytest.mark.parametrize("bound", [True, False])
def test_a_hit_of_vllm_keeps_its_own_blocks_of_a_window(bound: bool) -> None:
    engine = engine_of(18, caching=True, bound=bound)
    info = engine.ranks[0].info
    serve(engine, request("a", prompt(42)))
    for group in STATE_GROUPS:
        (block,) = engine.pool.get_cached_block(request("b", prompt(42)).hash_at(40), [group]) or ()
        engine.pool.forget(block)
    taken(engine)
    again = request("b", prompt(42))
    assert serve(engine, again) == [40 - again.local] and again.local == 32
    whole = 2 * info.kv_block_bytes + info.state_bytes - 3 * info.window_block_bytes[0]
    device = 2 * info.kv_block_bytes + 2 * info.window_block_bytes[0] if bound else 0
    assert taken(engine) == (whole - device, device)
    engine.close()


def test_windows_that_the_same_step_computes_come_from_the_host() -> None:
    engine = engine_of(18, caching=True, budget=8)
    serve(engine, request("a", prompt(42)))
    engine.pool.forget_groups(engine.groups)
    again = request("b", prompt(42))
    again.skip_reading_prefix_cache = True
    engine.add(again)
    engine.step()
    engine.pool.forget_groups([*STATE_GROUPS, 1, 3])
    engine.add(request("c", prompt(18)))
    engine.step()  # computes the tokens 8 to 16 of "b"
    moves = engine.plans[-1].moves.pages
    assert sum(map(len, moves.values())) == 2 and set(moves) == {FIRST_WINDOW}
    engine.drain()
    engine.check_blocks()
    engine.close()


def test_a_window_longer_than_its_prefix_has_nothing_of_an_earlier_state() -> None:
    engine = engine_of(18, options=ConnectorOptions(host_bytes=9_000, state_share=0.1, checkpoint_tokens=0))
    assert engine.ranks[0].info.states == 1
    serve(engine, request("a", prompt(42), salt="x"))
    serve(engine, request("b", prompt(9, 1), salt="y"))
    host = engine.ranks[0].side._host["state"][-1][0].view(torch.uint8).numpy()
    assert not host[:3 * host.size // 5].any() and host[3 * host.size // 5:].any()
    assert serve(engine, request("c", prompt(9, 1), salt="y")) == [8]
    engine.close()


@pytest.mark.parametrize(("row", "saved"), [([0, 0, 5, 6], 1), ([0, 0, 0, 6], 0), ([0, 0, 5, 0], 0)])
def test_a_state_is_kept_with_all_blocks_that_its_window_needs(row: list[int], saved: int) -> None:
    engine = engine_of(6)
    one = request("a", prompt(18))
    tables = [[0, 0, 0, 7], [1, 2, 3, 4], [0, 0, 0, 8], [9, 10, 11, 12], row]
    engine.side.plan_step({"a 0": one}, scheduled={"a 0": 16}, offers={"a 0": [(0, 7, 16), (2, 8, 16)]},
                          block_ids=lambda _: tables)
    assert engine.side.cache.stats().states == saved
    assert engine.side.counters.values.get("unsaved:no_kv", 0) == 1 - saved
    engine.close()


def test_pages_of_other_windows_have_images_of_another_name() -> None:
    names = set()
    for window in (5, 9, 10):
        engine = engine_of(window)
        side = engine.ranks[0].side
        names.add(side._name(engine.ranks[0].caches))
        engine.close()
    assert len(names) == 3
