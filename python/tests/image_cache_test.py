# SPDX-License-Identifier: Apache-2.0
"""ImageCache, alone and over StateTiers: an engine in small with a cache of its own on the device."""
from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from served import STATE

SLOTS = 6


def keys(*names: int) -> Any:
    """IMAGE_KEY [n] of states."""
    return sp.image_keys([[name, 1] for name in names] or np.empty((0, 2), np.uint64), 16, "state")


def moves(plan: sp.ImagePlan) -> list[tuple[str, int, str, str]]:
    """Kind, image, from and to of each transfer."""
    return [(sp.TRANSFER_KINDS[row["kind"]], int(row["image"]["prefix"][0]), sp.MEDIA[row["from"]], sp.MEDIA[row["to"]])
            for row in plan.transfers]


def done(*numbers: int, status: str = "done") -> Any:
    results = np.zeros(len(numbers), sp.TRANSFER_RESULT)
    results["id"], results["status"] = numbers, sp.TRANSFER_STATUSES.index(status)
    return results


def test_images_go_down_and_come_back() -> None:
    with sp.ImageCache(host_bytes=20, file_bytes=20, state_image_bytes=[10]) as cache:
        plan = cache.put(keys(1, 2), [4, 5])
        assert moves(plan) == [("store", 2, "device", "host"), ("store", 1, "device", "host")]
        assert plan.transfers["place"].tolist() == [5, 4] and plan.request >= 0 and plan.ended == {}
        assert cache.find(keys(1)) == 0 and cache.under_way() == 2
        assert cache.settle(done(1, 2)).ended == {plan.request: 0}
        assert cache.pin(keys(1)) and not cache.pin(keys(1, 9))
        assert moves(cache.put(keys(3), [0])) == [("copy", 2, "host", "file")]
        assert moves(cache.settle(done(3))) == [("drop", 2, "host", "host"), ("store", 3, "device", "host")]
        cache.unpin(keys(1))
        assert cache.lookup(keys(1, 2, 3, 4)).tolist() == [1, 2, -1, -1] and cache.find(keys(1, 2, 3)) == 2
        plan = cache.get(keys(2, 3), [7, 8])
        assert moves(plan) == [("load", 2, "file", "device")]
        assert cache.settle(done(5, status="damaged")).ended == {plan.request: 2}
        assert cache.lookup(keys(2)).tolist() == [-1] and cache.usage("file").lost_images == 1
        cache.settle(done(4))
        assert cache.attach("file", keys(5, 6, 7)).tolist() == [True, True, False]
        assert moves(cache.drain()) == []  # files have newer images
        cache.touch(keys(1, 3))
        assert [kind for kind, *_ in moves(cache.drain())] == ["drop", "copy", "drop", "copy"]
        cache.settle(done(6, 7))
        assert {row[:2] for row in moves(cache.remove(keys(1, 3, 4)))} == {("drop", 1), ("drop", 3)}
        cache.check_invariants()
        assert repr(cache) == "<ImageCache: 0 images host, 0 images file, 0 images remote>"
    assert repr(cache) == "<ImageCache, closed>"


@pytest.mark.parametrize(("call", "text"), [
    (lambda: sp.ImageCache(host_bytes=9, state_image_bytes=[10]), "host_bytes = 9"),
    (lambda: sp.ImageCache(host_bytes=90), "kv_image_bytes = 0"),
    (lambda: sp.ImageCache(host_bytes=90, state_image_bytes=[1.5]), "state_image_bytes has elements of type float64"),
    (lambda: sp.ImageCache(host_bytes=90, kv_image_bytes=1, eviction="hix"), "eviction is 'hix'"),
    (lambda: sp.ImageCache(host_bytes=90, kv_image_bytes=1, eviction="gdsf"), "eviction = gdsf"),
    (lambda: sp.ImageCache(host_bytes=90, kv_image_bytes=1, eviction="best"), "eviction is 'best'"),
    (lambda: sp.ImageCache(host_bytes=90, kv_image_bytes=1, queue_bytes=-1), "queue_bytes = -1"),
])
def test_options_that_do_not_fit_are_named(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=text):
        call()


def test_mistakes_are_named() -> None:
    cache = sp.ImageCache(host_bytes=20, state_image_bytes=[10])
    for call, text in ((lambda: cache.put(keys(1, 2), [0]), "places has 1 elements, and images has 2"),
                       (lambda: cache.get(keys(1), [-1]), "places = -1"),
                       (lambda: cache.touch([1, 2]), "images has the type int64"),
                       (lambda: cache.put(sp.image_keys([[1, 1]], 16, "kv_block"), [0]), "kv_block"),
                       (lambda: cache.pin(sp.image_keys([[1, 1]], 16, "state", 3)), "images.group = 3"),
                       (lambda: cache.unpin(keys(1)), "not pinned"),
                       (lambda: cache.settle(done(4)), "results"),
                       (lambda: cache.attach("file", keys(1)), "medium = 2"),
                       (lambda: cache.usage("tape"), "medium is 'tape'")):
        with pytest.raises(sp.InvalidArgument, match=text):
            call()
    with pytest.raises(sp.InvalidState, match="no remote tier"):
        cache.ask(keys(1))


class Engine:
    """States by name in a few slots of the device. All others are below it, or are made again."""

    def __init__(self, rng: random.Random, **options: Any) -> None:
        self.rng = rng
        self.store = sp.StateStore(sp.StateSpec([STATE]), SLOTS)
        self.tiers = sp.StateTiers(states=[self.store], **options)
        host_bytes = int(self.tiers.info()["host_bytes"]) if options.get("host_bytes") else 0
        self.cache = sp.ImageCache(
            host_bytes=host_bytes, file_bytes=options.get("file_bytes", 0), write_through=rng.random() < 0.5,
            remote_bytes=1 << 20 if "remote" in options else 0, state_image_bytes=[self.store.spec.image_bytes],
            queue_bytes=1 << 20)
        if "folder" in options:
            assert self.cache.attach("file", self.tiers.keys("file")).all()
        self.ended: dict[int, int] = {}

    def take(self, plan: sp.ImagePlan) -> int:
        self.tiers.execute(plan.transfers)
        self.ended |= plan.ended
        return plan.request

    def wait(self, ready: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < give_up
            self.take(self.cache.settle(self.tiers.poll()))

    def run(self, call: Callable[..., sp.ImagePlan], *arguments: Any) -> int:
        """Answers how many images are missing."""
        request = self.take(call(*arguments))
        self.wait(lambda: request in self.ended)
        sp.synchronize()
        return self.ended.pop(request)

    def step(self, names: int) -> int:
        """Loads some states, checks them, and makes and stores those that are missing. Answers how many were loaded."""
        first = self.rng.randrange(names)
        wanted = [(first + i) % names for i in range(self.rng.randint(1, SLOTS))]
        slots = self.rng.sample(range(SLOTS), len(wanted))
        loaded = self.cache.find(keys(*wanted))
        missing = self.run(self.cache.get, keys(*wanted), slots)
        assert missing == len(wanted) - loaded
        for name, slot in zip(wanted[:loaded], slots, strict=False):
            assert (self.store.tensor(0)[slot] == name + 1).all()
        for name, slot in zip(wanted[loaded:], slots[loaded:], strict=True):
            self.store.tensor(0)[slot] = name + 1
        self.run(self.cache.put, keys(*wanted[loaded:]), slots[loaded:])
        self.cache.check_invariants()
        return loaded

    def close(self) -> None:
        self.wait(lambda: self.cache.under_way() == 0)
        while len((plan := self.cache.drain()).transfers):
            self.take(plan)
            self.wait(lambda: self.cache.under_way() == 0)
        self.tiers.check_invariants()
        for medium in ("host", "file"):
            known = self.tiers.keys(medium) if medium != "file" or self.tiers.info()["file_bytes"] else keys()
            assert len(known) == self.cache.usage(medium).images
        self.tiers.close()
        self.cache.close()


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("tiers", ["host", "files", "both"])
def test_an_engine_gets_its_own_bytes_back(tmp_path: pathlib.Path, tiers: str) -> None:
    for seed in seeds(3):
        print("seed", seed)
        rng = random.Random(seed)
        options: dict[str, Any] = {"model": "m"}
        if tiers != "files":
            options["host_bytes"] = 10 * (8 << 10)
        if tiers != "host":
            options |= {"folder": tmp_path / str(seed), "file_bytes": 40 * (8 << 10)}
        loaded = 0
        for _ in range(2):  # the second one finds the files of the first
            engine = Engine(rng, **options)
            loaded += sum(engine.step(30) for _ in range(60))
            engine.close()
        assert loaded > 0


@pytest.mark.usefixtures("runtime")
def test_another_engine_finds_states_in_a_shared_store() -> None:
    shared = sp.InProcessObjects(1 << 24)
    split = sp.TensorSplit(0, (sp.SplitBand(STATE.shape[0]),))
    layout = sp.SharedLayout(sp.ModelLayout(sp.StateSpec([STATE]), [split]))

    def make() -> Engine:
        remote = sp.RemoteOptions(sp.InProcessStore(shared), states=[layout])
        return Engine(random.Random(1), model="m", remote=remote)

    first, second = make(), make()
    first.store.tensor(0)[2] = 41
    assert first.run(first.cache.put, keys(7), [2]) == 0
    assert second.cache.find(keys(7)) == 0
    assert second.run(second.cache.ask, keys(7, 8)) == 1
    assert second.cache.lookup(keys(7, 8)).tolist() == [sp.MEDIA.index("remote"), -1]
    assert second.run(second.cache.get, keys(7), [3]) == 0
    assert (second.store.tensor(0)[3] == 41).all()
    first.close()
    second.close()
