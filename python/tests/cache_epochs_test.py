# SPDX-License-Identifier: Apache-2.0
"""Weights that change while requests run, and namespaces that are forgotten."""
from __future__ import annotations

import numpy as np
import pytest

import stateport as sp
from combinations import LAYOUTS, PROMPT, make_small, serve

TENANT, ADAPTER = sp.Namespace(salt=b"tenant"), sp.Namespace(extra_key=b"adapter")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", ["hash", "tree"])
class TestEpochs:
    def test_new_weights_find_nothing_of_old_ones(self, index: str, layout: str) -> None:
        cache = make_small(index, layout, epoch=5)
        assert (serve(cache), serve(cache), cache.epoch) == (0, 32, 5)
        running = cache.start(PROMPT)
        assert running is not None and running.reused_tokens == 32 and not cache.is_stale(running.request)
        assert cache.advance_epoch() == cache.epoch == 6
        assert cache.is_stale(running.request) and cache.computed(running.request) == 32
        assert serve(cache) == 0
        cache.finish(running.request)
        assert serve(cache) == 32

    def test_forgetting_compares_the_names_that_it_is_told_to(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        for namespace in (None, TENANT, ADAPTER):
            assert (serve(cache, namespace), serve(cache, namespace)) == (0, 32)
        cache.forget(TENANT)
        assert [serve(cache, name) for name in (None, ADAPTER, TENANT)] == [32, 32, 0]
        cache.forget(sp.Namespace(extra_key=b"adapter", salt=b"whoever"), by="extra_key")
        assert [serve(cache, name) for name in (None, ADAPTER, TENANT)] == [32, 0, 32]
        cache.forget(by="salt")
        assert [serve(cache, name) for name in (None, ADAPTER, TENANT)] == [0, 0, 32]
        assert cache.epoch == 0
        cache.forget(TENANT, by="all")
        assert [serve(cache, name) for name in (None, ADAPTER, TENANT)] == [0, 0, 0]

    def test_another_cache_adopts_what_one_has_forgotten(self, index: str, layout: str) -> None:
        cache, other = make_small(index, layout), make_small(index, layout)
        assert len(cache.forgotten()) == 0
        cache.forget(TENANT)
        cache.forget(ADAPTER, by="extra_key")
        records = cache.forgotten()
        assert [int(record["by"]) for record in records] == [0, 1] and records["call"].tolist() == [1, 2]
        for namespace in (None, TENANT, ADAPTER):
            assert serve(other, namespace) == 0
        kept = np.frombuffer(records[:1].tobytes(), sp.FORGET_RECORD)  # as a later process reads it
        assert other.adopt_forgotten(kept)
        assert [serve(other, name) for name in (None, ADAPTER, TENANT)] == [32, 32, 0]
        assert other.adopt_forgotten(records) and other.adopt_forgotten(records[:0])
        assert [serve(other, name) for name in (None, ADAPTER, TENANT)] == [32, 0, 32]
        assert (other.forgotten() == records).all()

    def test_a_reset_while_a_request_runs_forgets_everything(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        assert serve(cache) == 0
        with cache.serving(PROMPT) as running:
            cache.reset()
            assert cache.epoch == 0 and cache.is_stale(running.request)
        assert serve(cache) == 0
        cache.reset()
        assert (cache.epoch, serve(cache)) == (0, 0)


def test_names_of_equal_epochs_are_equal() -> None:
    def names(cache: sp.RequestCache) -> set[tuple[int, ...]]:
        serve(cache)
        return {tuple(event["prefix"]) for event in cache.take_events() if event["kind"] == 0}

    old, changed = make_small("hash", "slots", events=True), make_small("hash", "slots", events=True)
    changed.advance_epoch()
    later = make_small("hash", "slots", events=True, epoch=1)
    assert names(changed) == names(later) and not names(old) & names(make_small("hash", "slots", events=True, epoch=1))


def test_bad_arguments_are_refused_and_change_nothing() -> None:
    cache = make_small("hash", "slots")
    serve(cache)
    with pytest.raises(sp.InvalidArgument, match="by is 'tenant'"):
        cache.forget(TENANT, by="tenant")
    with pytest.raises(sp.InvalidArgument, match="namespace is a str"):
        cache.forget("tenant")  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="request"):
        cache.is_stale(7)
    bad = np.zeros(1025, sp.FORGET_RECORD)
    with pytest.raises(sp.InvalidArgument, match="call must not be 0"):
        cache.adopt_forgotten(bad)
    with pytest.raises(sp.InvalidArgument, match="forgotten has the type int64"):
        cache.adopt_forgotten([1, 2])
    assert serve(cache) == 32 and len(cache.forgotten()) == 0
    bad["cache"], bad["by"], bad["names"], bad["call"] = 7, 2, range(1, 1026), 1
    assert cache.adopt_forgotten(bad[:1024]) and serve(cache) == 32
    assert not cache.adopt_forgotten(bad) and serve(cache) == 0 and len(cache.forgotten()) == 1
    cache = make_small("hash", "slots")
    serve(cache)
    for epoch in (-1, 2**64, True, "1"):
        with pytest.raises(sp.InvalidArgument, match="epoch is"):
            make_small("hash", "slots", epoch=epoch)
    assert cache.advance_epoch(7) == 7
    with pytest.raises(sp.InvalidArgument, match="epoch = 7"):
        cache.advance_epoch(7)
    with pytest.raises(sp.InvalidArgument, match="epoch is -1"):
        cache.advance_epoch(-1)
    assert (cache.epoch, serve(cache), serve(cache)) == (7, 0, 32)
