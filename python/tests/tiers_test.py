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

pytestmark = pytest.mark.usefixtures("runtime")

DONE = sp.TRANSFER_STATUSES.index("done")
STATE, KV = (sp.TensorSpec("recurrent", "float32", (64,)), sp.TensorSpec("recurrent", "float32", (16,)))


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
def test_what_is_put_is_got_bit_by_bit(medium: str, tmp_path: pathlib.Path) -> None:
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


def test_what_is_not_there_is_answered_as_gone() -> None:
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


class Served:
    """One request at a time over real stores: the state after n tokens is their sum, KV is the tokens."""

    def __init__(self, folder: pathlib.Path | None = None, **options: Any) -> None:
        states, kv = sp.StateSpec([STATE]), sp.StateSpec([KV])
        bytes_below = {"state_image_bytes": states.image_bytes, "kv_image_bytes": kv.image_bytes}
        room = {"host_bytes": 1 << 20, "file_bytes": 1 << 22 if folder else 0}
        self.cache = sp.RequestCache(
            "slots", max_requests=1, max_request_tokens=128, kv_tokens=192, block_size_tokens=16, checkpoints=2,
            layout_fingerprint=states.fingerprint, scan_alignment_tokens=-1,
            tiers=sp.TierOptions(**room, **bytes_below, **options))
        self.states = sp.StateStore(states, self.cache.state_slots())
        self.kv = sp.StateStore(kv, self.cache.kv_blocks)
        self.tiers = sp.StateTiers(states=[self.states], kv=self.kv, model="sum", host_bytes=1 << 20, folder=folder,
                                   file_bytes=room["file_bytes"])

    def serve(self, prompt: Any) -> sp.StartedRequest:
        started = self.cache.start(prompt)
        assert started is not None
        request, give_up = started.request, time.monotonic() + 60
        while self.cache.computed(request) < len(prompt):
            self.tiers.end_transfers(self.cache)
            tokens = self.cache.chunk([request], [64])
            if not tokens[0]:
                assert self.cache.loading([request])[0] and time.monotonic() < give_up
                self.tiers.begin_transfers(self.cache)
                continue
            self._pass(request, prompt, tokens)
        self.cache.finish(request)
        self.cache.check_invariants()
        self.tiers.check_invariants()
        return started

    def _pass(self, request: int, prompt: Any, tokens: Any) -> None:
        plan = self.cache.plan([request], tokens)
        group, start, kv = plan.groups[0], int(plan.start[0]), plan.kv(0)
        end = start + int(tokens[0])
        self.tiers.begin_transfers(self.cache)
        self.states.clear(group.clear)
        self.states.copy(group.copies)
        sp.synchronize()
        state = self.states.tensor(0)
        assert state[group.read_recurrent_slot[0], 0] == prompt[:start].sum() if start else True
        for block in range(start // 16):
            assert np.array_equal(self.kv.tensor(0)[kv[block]], prompt[16 * block:16 * block + 16])
        for block in range(start // 16, -(-end // 16)):
            part = prompt[16 * block:min(16 * block + 16, end)]
            self.kv.tensor(0)[kv[block], :len(part)] = part
        state[group.write_slot[0]] = prompt[:end].sum()
        assert not len(group.saves)
        last = end == len(prompt)
        commit = self.cache.commit(plan, [int(last)], [1] if last else [])
        self.tiers.begin_transfers(self.cache)
        self.states.copy(commit.groups[0].copies)
        sp.synchronize()
        self.tiers.end_transfers(self.cache)

    def drain(self) -> None:
        self.cache.drain()
        give_up = time.monotonic() + 60
        while self.tiers.begin_transfers(self.cache) or self.cache.transfers_under_way:
            self.tiers.end_transfers(self.cache)
            self.cache.drain()
            assert time.monotonic() < give_up
        self.cache.close()
        self.tiers.close()


def test_a_cache_hits_what_left_the_device() -> None:
    served, draw = Served(), np.random.default_rng(4)
    prompts = [draw.integers(0, 9, 100).astype(np.int32) for _ in range(4)]
    media = [served.serve(prompt).load_medium for _ in range(2) for prompt in prompts]
    assert media[:4] == ["device"] * 4
    assert "host" in media[4:]
    usage = served.cache.tier_usage("host")
    assert usage.loads > 0 and usage.hit_tokens > 0 and usage.bytes_written > 0
    assert served.cache.stats().hit_tokens > 200


def test_a_restart_hits_what_lies_in_files(tmp_path: pathlib.Path) -> None:
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
