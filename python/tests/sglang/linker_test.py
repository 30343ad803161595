# SPDX-License-Identifier: Apache-2.0
"""The linker under SGLang's own tree and pools. The engine checks every byte that was hit or loaded."""

from __future__ import annotations

import hashlib
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sglang.srt.mem_cache", reason="tests/engines/sglang/run.sh installs SGLang")

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.linker_factory import create_unified_cache_linker
from sglang_engine import Engine, LoadFailed

import stateport as sp
from conftest import open_images, seeds
from stateport.sglang import StateportLinker

MEBIBYTE = 1 << 20
IMAGE = 20480  # bytes of a page of KV or a state here
SEED = "STATEPORT_SEED_OF_A_TEST"
TIERS = ("host", "files", "both")
PROMPT = list(range(100, 116))


def config(folder: pathlib.Path, tiers: str = "files", room: int = 64 * MEBIBYTE, **more: Any) -> dict[str, Any]:
    host = {"host_bytes": room} if tiers != "files" else {}
    files = {"folder": str(folder / "images"), "file_bytes": room} if tiers != "host" else {}
    return {**host, **files, "revision": "r1", "keep_on_flush": True, **more}


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    engines: list[Engine] = []

    def new(*arguments: Any, **named: Any) -> Engine:
        engines.append(Engine(*arguments, **named))
        return engines[-1]

    yield new
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("tiers", TIERS)
def test_what_left_the_device_is_loaded(make: Any, tmp_path: pathlib.Path, tiers: str, core: str) -> None:
    engine = make(config(tmp_path, tiers), core=core)
    assert engine.request(PROMPT) == (0, 0)
    engine.settle()
    assert engine.request(PROMPT + [7] * 4) == (16, 0)
    engine.settle()
    engine.reset()
    assert engine.request(PROMPT + [7] * 4 + [8] * 8) == (0, 20)
    assert engine.request(PROMPT + [9] * 8) == (0, 16)
    assert engine.linker.counts()["load: done"] == 5 + 1 + 4 + 1


@pytest.mark.parametrize("page", [1, 16])
def test_pages_of_any_size(make: Any, tmp_path: pathlib.Path, page: int) -> None:
    engine = make(config(tmp_path, "both"), page=page, kv=16 * page)
    prompt = list(range(3 * page))
    engine.request(prompt)
    engine.settle()
    engine.reset()
    assert engine.request(prompt + [5] * page) == (0, 3 * page)


def test_a_partial_hit_ends_at_the_last_state(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path))
    engine.request(PROMPT[:8])
    engine.request(PROMPT)
    engine.settle()
    engine.reset()
    assert engine.request(PROMPT[:12] + [1] * 8) == (0, 8)
    assert engine.request(PROMPT[:4] + [2] * 8) == (0, 0)
    assert engine.request(PROMPT) == (0, 16)


def test_the_next_process_finds_what_is_in_files(make: Any, tmp_path: pathlib.Path) -> None:
    engine = Engine(config(tmp_path, "both"))
    engine.request(PROMPT)
    engine.close()
    assert make(config(tmp_path, "both")).request(PROMPT + [3] * 4) == (0, 16)
    other = make(config(tmp_path, "both", revision="another"))
    assert other.request(PROMPT) == (0, 0)


@pytest.mark.parametrize("tiers", TIERS)
def test_nothing_is_found_after_a_flush_unless_it_is_to_be_kept(make: Any, tmp_path: pathlib.Path, tiers: str) -> None:
    engine = Engine(config(tmp_path, tiers, keep_on_flush=False))
    for _ in range(2):
        assert engine.request(PROMPT) == (0, 0)
        engine.settle()
        assert engine.request(PROMPT + [7] * 4) == (16, 0)
        engine.settle()
        engine.reset()
    engine.close()
    if tiers == "host":
        return
    for flushes in (False, True):  # a trainer may give a new process other weights before its first prompt
        later = make(config(tmp_path, tiers, keep_on_flush=False))
        if flushes:
            later.reset()
        assert later.request(PROMPT + [7] * 4 + [8] * 8) == (0, 0 if flushes else 20)


@pytest.mark.parametrize("tiers", TIERS)
def test_namespaces_share_nothing(make: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                  tiers: str) -> None:
    monkeypatch.setenv(SEED, "71")
    engine = make(config(tmp_path, tiers, hash_seed_variable=SEED, scrub=True))
    engine.request(PROMPT, ("adapter", None))
    engine.settle()
    engine.reset()
    for space in ((None, None), (None, "salt"), ("adapter", "salt")):
        assert engine.request(PROMPT, space) == (0, 0)
    assert engine.request(PROMPT, ("adapter", None)) == (0, 16)


@pytest.mark.parametrize(("first", "second", "shares"), [
    ("", "", True), ("7", "7", True), ("7", "8", False), ("", "7", False), ("7", "", False)])
def test_processes_share_files_if_they_have_one_seed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                     first: str, second: str, shares: bool) -> None:
    for seed, loaded in ((first, 0), (second, 16 if shares else 0)):
        monkeypatch.setenv(SEED, seed)
        engine = Engine(config(tmp_path, hash_seed_variable=SEED if seed else ""))
        assert engine.request(PROMPT) == (0, loaded)
        engine.close()


@pytest.mark.parametrize("scrub", [False, True])
def test_files_that_go_hold_nothing_any_more(tmp_path: pathlib.Path, scrub: bool) -> None:
    engine = Engine(config(tmp_path, scrub=scrub))
    engine.request(PROMPT, (None, "tenant"))
    engine.settle()
    mover = engine.linker._mover
    with open_images(tmp_path / "images") as hold_bytes:
        mover.tiers.remove(mover.tiers.keys("file"))
        engine.close()
        assert not list((tmp_path / "images").rglob("*.img"))
        assert any(hold_bytes()) != scrub


@pytest.mark.parametrize("tiers", TIERS)
def test_a_full_tier_gives_up_the_longest_unused(make: Any, tmp_path: pathlib.Path, tiers: str) -> None:
    engine = make(config(tmp_path, tiers, room=MEBIBYTE))  # some 12 prompts
    prompts = [[1000 + i] * 16 for i in range(40)]
    for prompt in prompts:
        engine.request(prompt)
        engine.settle()
        engine.linker._mover.wait_for_files()  # what waits for a file is not given up, and newer images are refused
    engine.reset()
    hits = [engine.request(prompt)[1] for prompt in reversed(prompts)]
    assert hits[0] == 16 and hits[-1] == 0
    counts = engine.linker.counts()
    assert all(counts.get(f"dropped {where}", 0) > 0 for where in
               {"host": ("on the host",), "files": ("in files",), "both": ("on the host", "in files")}[tiers])
    info = engine.linker._mover.tiers.info()
    assert info["file_bytes"] <= MEBIBYTE and info["host_image_bytes"] <= info["host_bytes"]


def test_a_damaged_image_is_never_used(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path))
    engine.request(PROMPT)
    engine.settle()
    engine.reset()
    for file in (tmp_path / "images").rglob("*.img"):
        data = bytearray(file.read_bytes())
        for at in range(4096 + 5, len(data), 4096):  # behind the header
            data[at] ^= 1
        file.write_bytes(data)
    with pytest.raises(LoadFailed):
        engine.request(PROMPT)
    assert engine.linker.counts()["load: damaged"] == 5
    engine.reset()
    assert engine.request(PROMPT) == (0, 0)  # it is not offered again
    engine.settle()
    engine.reset()
    assert engine.request(PROMPT) == (0, 16)


def hashes_of(pages: range) -> list[str]:
    return [hashlib.sha256(str(page).encode()).hexdigest() for page in pages]


def transfers(engine: Engine, hashes: list[str], slots: bool = True) -> list[PoolTransfer]:
    import torch
    page = engine.shape.page
    rows = torch.arange(page, page + page * len(hashes))
    return [PoolTransfer(PoolName.KV, device_indices=rows if slots else None, keys=hashes),
            PoolTransfer(PoolName.MAMBA, device_indices=torch.tensor([1]) if slots else None, keys=hashes[-1:])]


def test_a_load_is_refused_once_an_image_is_gone_and_can_be_cancelled(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path))
    hashes = hashes_of(range(3))
    assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == []
    assert not engine.linker.load("a", transfers(engine, hashes))
    assert engine.linker.offload(transfers(engine, hashes))
    while engine.linker.num_completed_offloads() == 0:
        pass
    assert engine.linker.pop_completed_offload() and engine.linker.num_completed_offloads() == 0
    assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == [3]
    assert engine.linker.load("a", transfers(engine, hashes))
    with pytest.raises(sp.InvalidArgument, match="rid is 'a'"):
        engine.linker.load("a", transfers(engine, hashes))
    assert engine.linker.cancel_queued_load("a") and not engine.linker.cancel_queued_load("a")
    assert engine.linker.start_layer_wise_loading() == -1
    with pytest.raises(sp.InvalidArgument, match="no offload"):
        engine.linker.pop_completed_offload()
    with pytest.raises(sp.InvalidArgument, match="keys has the element 'xyz'"):
        engine.linker.lookup("a", transfers(engine, ["xyz"], slots=False))


@pytest.mark.parametrize("call", ["poll", "execute"])
def test_tiers_that_fail_end_what_is_under_way_and_keep_nothing(make: Any, tmp_path: pathlib.Path,
                                                                monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    engine, hashes = make(config(tmp_path, "both")), hashes_of(range(3))
    assert engine.linker.offload(transfers(engine, hashes))
    engine.linker._mover.wait_for_files()
    assert engine.linker.pop_completed_offload()

    def fail(*_: Any, **__: Any) -> Any:
        raise sp.BackendError("the device is gone")

    monkeypatch.setattr(engine.linker._mover.tiers, call, fail)
    assert engine.linker.load("a", transfers(engine, hashes))
    index = engine.linker.start_layer_wise_loading()
    assert not engine.linker.finish_layer_wise_loading(index)
    engine.linker._mover.wait()
    assert engine.linker.lookup("b", transfers(engine, hashes, slots=False)) == []
    assert not engine.linker.load("b", transfers(engine, hashes))
    assert engine.linker.offload(transfers(engine, hashes))
    engine.linker._mover.wait()
    assert not engine.linker.pop_completed_offload()


def test_transfers_that_cannot_begin_fail_alone(make: Any, tmp_path: pathlib.Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    engine, hashes = make(config(tmp_path, "host", room=8 * IMAGE)), hashes_of(range(3))
    offload(engine, hashes_of(range(10, 14)))
    tiers, execute = engine.linker._mover.tiers, engine.linker._mover.tiers.execute

    def refuse_stores(plan: Any, *arguments: Any) -> None:
        if (plan["kind"] == sp.TRANSFER_KINDS.index("store")).any():
            raise sp.InvalidArgument("place is 99")
        execute(plan, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tiers, "execute", refuse_stores)
        assert engine.linker.offload(transfers(engine, hashes))
        engine.linker._mover.wait()
        assert not engine.linker.pop_completed_offload()
    assert engine.linker.counts()["to host: failed"] == 4 and engine.linker.counts()["dropped on the host"] > 0
    assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == []
    offload(engine, hashes)
    assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == [3]
    assert tiers.info()["host_images"] == engine.linker._mover.cache.usage("host").images


def test_ranks_take_the_same_branch_when_one_has_lost_an_image(make: Any, tmp_path: pathlib.Path) -> None:
    """Another rank cannot know what this one gave up: all begin the load, and it fails."""
    engine = make(config(tmp_path))
    engine.linker._alone = False
    hashes = hashes_of(range(3))
    assert engine.linker.load("a", transfers(engine, hashes)) and engine.linker.load("b", transfers(engine, hashes))
    assert engine.linker.cancel_queued_load("b")
    index = engine.linker.start_layer_wise_loading()
    assert index >= 0 and not engine.linker.finish_layer_wise_loading(index)
    assert engine.linker.start_layer_wise_loading() == -1


def offload(engine: Engine, hashes: list[str]) -> None:
    assert engine.linker.offload(transfers(engine, hashes))
    engine.linker._mover.wait()
    assert engine.linker.pop_completed_offload()


def test_an_image_is_offered_once_it_is_there(make: Any, tmp_path: pathlib.Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(config(tmp_path))
    hashes, mover = hashes_of(range(3)), engine.linker._mover
    with monkeypatch.context() as patch:
        patch.setattr(mover.tiers, "poll", lambda stream: np.empty(0, sp.TRANSFER_RESULT))
        assert engine.linker.offload(transfers(engine, hashes))
        while not mover.cache.under_way():
            pass
        assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == []
        assert not engine.linker.load("a", transfers(engine, hashes))
    mover.wait()
    assert engine.linker.lookup("a", transfers(engine, hashes, slots=False)) == [3]


@pytest.mark.parametrize("tiers", ["host", "files"])
def test_what_a_load_was_promised_is_kept(make: Any, tmp_path: pathlib.Path, tiers: str) -> None:
    engine = make(config(tmp_path, tiers, room=12 * IMAGE))
    offload(engine, hashes_of(range(3)))
    assert engine.linker.load("a", transfers(engine, hashes_of(range(3))))
    for first in range(10, 100, 10):
        offload(engine, hashes_of(range(first, first + 5)))
    index = engine.linker.start_layer_wise_loading()
    assert engine.linker.finish_layer_wise_loading(index)
    for first in range(100, 140, 10):
        offload(engine, hashes_of(range(first, first + 5)))
    assert engine.linker.lookup("a", transfers(engine, hashes_of(range(3)), slots=False)) == []


@pytest.mark.parametrize("used_again", [False, True])
def test_the_last_pages_go_first(make: Any, tmp_path: pathlib.Path, used_again: bool) -> None:
    engine = make(config(tmp_path, "host", room=16 * IMAGE))
    pages = hashes_of(range(6))
    keys = engine.linker._keys(transfers(engine, pages)[0])
    offload(engine, pages)
    if used_again:
        assert engine.linker.lookup("a", transfers(engine, pages, slots=False)) == [6]
    more = 0
    while engine.linker._mover.cache.find(keys) == 6:
        assert more < 30
        more += 1
        offload(engine, hashes_of(range(100 * more, 100 * more + 1)))
    held = engine.linker._mover.held(keys)
    assert engine.linker._mover.cache.find(keys) == held.sum() > 0


def test_offloads_are_answered_in_their_order(make: Any, tmp_path: pathlib.Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(config(tmp_path))
    jobs: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(engine.linker._mover, "start", jobs.append)
        for page in range(3):
            assert engine.linker.offload(transfers(engine, hashes_of(range(page, page + 1))))
    jobs[2].done(True)
    assert engine.linker.num_completed_offloads() == 0
    jobs[0].done(True)
    assert engine.linker.num_completed_offloads() == 1
    jobs[1].done(False)
    assert engine.linker.num_completed_offloads() == 3
    assert [engine.linker.pop_completed_offload() for _ in range(3)] == [True, False, True]


def test_random_requests_never_get_a_wrong_byte(make: Any, tmp_path: pathlib.Path) -> None:
    loaded = 0
    for seed in seeds(6):
        rng = random.Random(seed)
        print("seed", seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        page, tiers = rng.choice([1, 4]), rng.choice(TIERS)
        options = config(folder, tiers, room=rng.choice([512 * 1024, 8 * MEBIBYTE]))
        engine = Engine(options, rng.choice(["rust", "python"]), page=page, kv=48 * page, slots=rng.choice([4, 8]))
        known: list[list[int]] = [[]]
        for _ in range(150):
            known = known[-20:]
            base = rng.choice(known)
            base = base[:rng.randrange(len(base) // page + 1) * page]
            tokens = (base + [rng.randrange(3) for _ in range(rng.randint(1, 4) * page)])[:16 * page]
            loaded += engine.request(tokens, rng.choice([(None, None), (None, None), ("a", None)]))[1]
            known.append(tokens)
            draw = rng.random()
            if draw < 0.05:
                engine.settle()
                engine.reset()
            elif draw < 0.08:
                engine.close()
                engine = Engine(options, page=page, kv=48 * page, slots=8)
            elif draw < 0.5:
                engine.cache.check_hicache_events()
        engine.linker._mover.tiers.check_invariants()
        engine.linker._mover.cache.check_invariants()
        engine.close()
        print("loaded", loaded, tiers, page, options, engine.linker.counts())
    assert loaded > 0


@pytest.mark.parametrize(("given", "text"), [
    ({}, "neither host_bytes nor folder"),
    ({"host_byte": 1}, "host_byte"),
    ({"host_bytes": -1}, "host_bytes is -1"),
    ({"host_bytes": "1"}, "host_bytes is '1'"),
    ({"host_bytes": True}, "host_bytes is True"),
    ({"folder": "x"}, "file_bytes is 0"),
    ({"file_bytes": 5}, "folder is ''"),
    ({"hash_seed": 7113}, "name an environment variable by 'hash_seed_variable' instead"),
    ({"host_bytes": 1 << 20, "hash_seed_variable": "STATEPORT_NO_SUCH"}, "which is no environment variable"),
    ({"scrub": 1}, "scrub is 1, and must be true or false"),
])
def test_a_mistaken_configuration_is_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=text) as refused:
        Engine(given)
    assert "7113" not in str(refused.value)


def test_an_offload_ends_where_files_hold_what_nobody_gives_up(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path, room=12 * IMAGE))
    offload(engine, hashes_of(range(9)))
    mover = engine.linker._mover
    mover.cache.remove(mover.tiers.keys("file"))
    assert engine.linker.offload(transfers(engine, hashes_of(range(100, 103))))
    mover.wait()
    assert engine.linker.num_completed_offloads() == 1


def test_a_model_without_states(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path))
    linker = StateportLinker(None, engine.cache_params(), components={ComponentType.FULL},
                             extra_config=config(tmp_path, "host"))
    pages = transfers(engine, hashes_of(range(3)))[:1]
    assert linker.offload(pages)
    linker._mover.wait()
    assert linker.pop_completed_offload() and linker.lookup("a", pages) == [1, 2, 3]
    linker.close()


def test_the_dynamic_door_makes_the_linker(make: Any, tmp_path: pathlib.Path) -> None:
    params = make(config(tmp_path)).cache_params()
    given = {"linker": "StateportLinker", "linker_module_path": "stateport.sglang",
             "linker_extra_config": config(tmp_path, "both")}
    linker = create_unified_cache_linker(None, params, backend="dynamic", config=given,
                                         components={ComponentType.FULL, ComponentType.MAMBA})
    assert isinstance(linker, StateportLinker) and set(linker.pools) == {PoolName.KV, PoolName.MAMBA}
    linker.close()


def test_what_cannot_be_kept_is_refused(make: Any, tmp_path: pathlib.Path) -> None:
    engine = make(config(tmp_path))
    params = engine.cache_params()
    with pytest.raises(sp.InvalidArgument, match="SWA"):
        StateportLinker(None, params, components={ComponentType.FULL, ComponentType.SWA},
                        extra_config=config(tmp_path))
    params.sidecar_draft_device_pools = (object(),)
    with pytest.raises(sp.InvalidArgument, match="draft"):
        StateportLinker(None, params, components={ComponentType.FULL}, extra_config=config(tmp_path))
