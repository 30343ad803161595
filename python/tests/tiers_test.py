# SPDX-License-Identifier: Apache-2.0
"""StateTiers, alone and under a RequestCache."""
from __future__ import annotations

import ctypes
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import open_images
from served import STATE, Served

pytestmark = pytest.mark.usefixtures("runtime")

DONE = sp.TRANSFER_STATUSES.index("done")


def images(*rows: tuple[int, int]) -> Any:
    """SLOT_IMAGE of states: (prefix and position, slot)."""
    out = np.zeros(len(rows), sp.SLOT_IMAGE)
    for row, (name, slot) in zip(out, rows, strict=True):
        row["key"]["prefix"], row["key"]["tokens"], row["key"]["content"] = (name, name), 16 * name, 1
        row["slot"] = slot
    return out


def wait(tiers: sp.StateTiers, count: int) -> dict[int, int]:
    answers: dict[int, int] = {}
    give_up = time.monotonic() + 60
    while len(answers) < count and time.monotonic() < give_up:
        for row in tiers.poll():
            answers[int(row["id"])] = int(row["status"])
    sp.synchronize()
    assert len(answers) == count
    return answers


def make(folder: pathlib.Path | None = None, **options: Any) -> tuple[sp.StateStore, sp.StateTiers]:
    store = sp.StateStore(sp.StateSpec([STATE]), 4)
    store.tensor(0)[...] = np.arange(256, dtype=np.float32).reshape(4, 64)
    if folder is not None:
        options |= {"folder": folder, "file_bytes": 1 << 24}
    return store, sp.StateTiers(states=[store], **{"model": "m", "host_bytes": 1 << 20, **options})


@pytest.mark.parametrize("medium", ["host", "file"])
def test_an_image_comes_back_bit_by_bit(medium: str, tmp_path: pathlib.Path) -> None:
    store, tiers = make(tmp_path)
    wanted = store.tensor(0)[1].copy()
    first = tiers.put(images((1, 1), (2, 2)), medium)
    assert wait(tiers, 2) == {first: DONE, first + 1: DONE}
    keys = images((1, 0), (3, 0))["key"]
    assert list(tiers.lookup(keys)) == [sp.MEDIA.index(medium), -1]
    store.clear([1])
    first = tiers.get(images((1, 3)))
    assert wait(tiers, 1) == {first: DONE}
    assert np.array_equal(store.tensor(0)[3], wanted)
    assert sorted(tiers.keys(medium)["tokens"]) == [16, 32]
    tiers.remove(keys[:1])
    assert sorted(tiers.keys(medium)["tokens"]) == [32]
    tiers.check_invariants()
    assert "images" in repr(tiers)


@pytest.mark.parametrize("scrub", [False, True])
def test_bytes_of_files_that_go_are_overwritten_with_scrub(tmp_path: pathlib.Path, scrub: bool) -> None:
    _, tiers = make(tmp_path, scrub=scrub)
    tiers.put(images((1, 1)), "file")
    wait(tiers, 1)
    with open_images(tmp_path) as hold_bytes:
        tiers.remove(images((1, 1))["key"])
        tiers.close()
        assert not list(tmp_path.glob("*.img"))
        assert any(hold_bytes()) != scrub


def test_files_are_found_by_another_object_and_refused_by_another_model(tmp_path: pathlib.Path) -> None:
    store, tiers = make(tmp_path)
    tiers.put(images((1, 1)), "file")
    wait(tiers, 1)
    tiers.close()
    _, other = make(tmp_path, model="another")
    assert list(other.lookup(images((1, 0))["key"])) == [-1]
    other.close()
    store, again = make(tmp_path)
    wanted = store.tensor(0)[1].copy()
    store.clear([1])
    again.get(images((1, 0)))
    assert set(wait(again, 1).values()) == {DONE}
    assert np.array_equal(store.tensor(0)[0], wanted)
    assert again.info()["found_images"] == 1


def test_a_missing_image_is_answered_as_gone() -> None:
    _, tiers = make()
    tiers.get(images((5, 0)))
    assert [sp.TRANSFER_STATUSES[status] for status in wait(tiers, 1).values()] == ["gone"]


def later_images() -> Any:
    """Of a later version, with a member that this one does not know."""
    out = images((1, 1))
    out["reserved"] = 7
    return out


@pytest.mark.parametrize(("use", "text"), [
    (lambda tiers: tiers.put(images((1, 9)), "host"), "9"),
    (lambda tiers: tiers.put(later_images(), "host"), "images.reserved = 7 (must be 0)"),
    (lambda tiers: tiers.put(images((1, 1)), "tape"), "medium is 'tape'"),
    (lambda tiers: tiers.put(np.zeros(3), "host"), "images has the type float64"),
    (lambda tiers: tiers.lookup(images((1, 1))), "images has the type"),
    (lambda tiers: sp.StateTiers(host_bytes=1 << 20), ""),
    (lambda tiers: sp.StateTiers(states=tiers._stores[:1], host_bytes=-5), "host_bytes is -5"),
    (lambda tiers: sp.StateTiers(states=tiers._stores[:1], folder="x", file_bytes=1 << 20), "model"),
])
def test_bad_calls_are_refused(use: Callable[[sp.StateTiers], Any], text: str) -> None:
    _, tiers = make()
    with pytest.raises(sp.InvalidArgument) as raised:
        use(tiers)
    assert text in str(raised.value)


def test_a_cache_hits_prefixes_that_left_the_device() -> None:
    served, draw = Served(), np.random.default_rng(4)
    prompts = [draw.integers(0, 9, 100).astype(np.int32) for _ in range(4)]
    media = [served.serve(prompt).load_medium for _ in range(2) for prompt in prompts]
    assert media[:4] == ["device"] * 4
    assert "host" in media[4:]
    usage = served.cache.tier_usage("host")
    assert usage.loads > 0 and usage.hit_tokens > 0 and usage.bytes_written > 0
    assert served.cache.stats().hit_tokens > 200


def test_a_restart_hits_prefixes_in_files(tmp_path: pathlib.Path) -> None:
    draw = np.random.default_rng(5)
    prompt = draw.integers(0, 9, 100).astype(np.int32)
    first = Served(tmp_path)
    first.serve(prompt)
    first.drain()
    second = Served(tmp_path)
    attached = second.tiers.attach(second.cache)
    assert attached.attached > 0 and attached.removed == attached.skipped == 0
    started = second.serve(prompt)
    assert started.load_medium == "file" and started.load_tokens >= 64


def test_kv_that_lies_elsewhere_is_asked_for() -> None:
    asked: list[Any] = []

    def leading_blocks(prefixes: Any) -> int:
        asked.append(prefixes)
        return 0

    served, draw = Served(leading_blocks=leading_blocks), np.random.default_rng(6)
    prompts = [draw.integers(0, 9, 100).astype(np.int32) for _ in range(4)]
    media = [served.serve(prompt).load_medium for _ in range(2) for prompt in prompts]
    assert set(media) == {"device"}, "there is no KV to load"
    prefixes = np.concatenate([sp.hash_blocks(prompt, 16)[1] for prompt in prompts])
    assert asked and all(row.shape[1] == 2 and (prefixes == row[0]).all(axis=1).any() for row in asked)


def test_a_callback_that_raises_knows_of_no_kv(capfd: pytest.CaptureFixture[str]) -> None:
    """ctypes leaves the result of a callback that raises to chance."""

    def leading_blocks(prefixes: Any) -> int:
        raise KeyError("no such directory")

    struct = sp.TierOptions(leading_blocks=leading_blocks).struct()
    prefixes = np.zeros((3, 2), np.uint64)
    assert struct.leading_blocks(prefixes.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)), 3, None) == 0
    assert "no such directory" in capfd.readouterr().err
