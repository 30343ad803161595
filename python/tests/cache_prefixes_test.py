# SPDX-License-Identifier: Apache-2.0
"""Pins, prefetches and sessions of a request cache."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stateport as sp
from combinations import LAYOUTS, PROMPT, make_small, serve
from stateport._arrays import TRANSFER_RESULT

MEMORY = sp.Eviction("lru", state_bytes=64, kv_bytes_per_token=1)
DROP = 3  # a kind of transfer that has no result
HELD = 32 + 64  # bytes of the prompt's whole blocks and of their state


def make(index: str, layout: str, **options: Any) -> sp.RequestCache:
    options = {"eviction": MEMORY, "prefixes": sp.PrefixOptions(pins=2, pinned_bytes=200),
               "sessions": sp.SessionOptions(remembered=8), **options}
    return make_small(index, layout, **options)


def serve_session(cache: sp.RequestCache, session: int, first: int) -> int:
    prompt = [first + token for token in PROMPT]
    started = cache.start(prompt, hint=sp.ReuseHint(session=session))
    assert started is not None
    while cache.computed(started.request) < len(prompt):
        cache.commit(cache.plan([started.request], cache.chunk([started.request], [64])), [0], [])
    cache.finish(started.request)
    cache.check_invariants()
    return started.reused_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", ["hash", "tree"])
class TestHeld:
    def test_a_flood_takes_nothing_that_is_pinned(self, index: str, layout: str) -> None:
        cache = make(index, layout)
        assert cache.pin(PROMPT) == sp.PinnedPrefix(0, 0, False)
        serve(cache)
        assert cache.pin(PROMPT) == sp.PinnedPrefix(1, 32, False)
        assert cache.pin(PROMPT, namespace=sp.Namespace(salt=b"other")).tokens == 0
        for prompt in range(1, 60):
            serve(cache, first=1000 * prompt)
        assert serve(cache) == 32
        usage = cache.prefix_usage
        assert (usage.pins, usage.made_pins, usage.pinned_kv_tokens, usage.pinned_bytes) == (1, 1, 32, HELD)
        assert cache.unpin(1)
        assert not cache.unpin(1)
        for prompt in range(1, 100):
            serve(cache, first=1000 * prompt)
        assert serve(cache) == 0

    def test_leases_limits_and_epochs_end_pins(self, index: str, layout: str) -> None:
        cache = make(index, layout, prefixes=sp.PrefixOptions(pins=2, pinned_bytes=HELD))
        serve(cache)
        serve(cache, first=1000)
        assert cache.pin(PROMPT, lease_s=5, now_s=10).pin == 1
        other = [1000 + token for token in PROMPT]
        assert cache.pin(other, now_s=14) == sp.PinnedPrefix(0, 32, True)
        assert cache.pin(other, now_s=15).pin == 2
        assert not cache.unpin(1)
        assert cache.prefix_usage.ended_leases == 1
        cache.advance_epoch()
        assert cache.prefix_usage.pins == 0
        assert not cache.unpin(2)

    def test_contents_of_a_closed_session_go_first(self, index: str, layout: str) -> None:
        cache = make(index, layout)
        assert serve_session(cache, 1, 0) == 0
        assert serve_session(cache, 2, 1000) == 0
        assert cache.session_usage(2) == sp.SessionUsage(True, 32, 1, HELD)
        assert cache.close_session(2)
        assert not cache.close_session(2)
        assert cache.session_usage(2) == sp.SessionUsage(False, 32, 1, HELD)
        prompt = 2
        while cache.session_usage(2).bytes == HELD:
            serve(cache, first=1000 * (prompt := prompt + 1))
        assert cache.session_usage(1).bytes == HELD
        assert serve_session(cache, 1, 0) == 32

    def test_a_prefetch_brings_a_prefix_up(self, index: str, layout: str) -> None:
        tiers = sp.TierOptions(host_bytes=100_000)
        cache = make(index, layout, tiers=tiers,
                     prefixes=sp.PrefixOptions(prefetches=1, prefetched_bytes=1000))

        def settle(named: Any) -> None:
            """All transfers are done, and those that follow."""
            while len(named):
                moved = named[named["kind"] != DROP]
                results = np.zeros(len(moved), TRANSFER_RESULT)
                results["id"] = moved["id"]
                named = cache.settle(results).transfers

        def serve_tiered(first: int) -> None:
            prompt = [first + token for token in PROMPT]
            request = cache.start(prompt, search="device")
            assert request is not None
            settle(request.transfers)
            while cache.computed(request.request) < len(prompt):
                plan = cache.plan([request.request], cache.chunk([request.request], [64]))
                settle(plan.transfers)
                settle(cache.commit(plan, [0], []).transfers)
            settle(cache.finish(request.request).transfers)

        for prompt in range(60):
            serve_tiered(1000 * prompt)
        started = cache.prefetch(PROMPT)
        assert (started.prefetch, started.cached_tokens, started.load_tokens, started.load_medium) == (1, 0, 32, "host")
        assert cache.prefetching(1)
        assert cache.prefetch(PROMPT).refused
        settle(started.transfers)
        assert not cache.prefetching(1)
        assert cache.prefix_usage.prefetched_tokens == 32
        assert serve(cache) == 32


def test_what_cannot_be_is_refused() -> None:
    cache = make("tree", "slots")
    for call, text in ((lambda: cache.pin(PROMPT, lease_s=-1), "lease_s = -1"),
                       (lambda: cache.pin(list(range(64))), "max_request_tokens"),
                       (lambda: cache.unpin(1), "pin = 1"),
                       (lambda: cache.prefetching(1), "prefetch = 1"),
                       (lambda: cache.prefetch(PROMPT, search="device"), "search = 2"),
                       (lambda: cache.prefetch(PROMPT, search="no"), "search is 'no'"),
                       (lambda: cache.close_session(0), "session = 0"),
                       (lambda: cache.session_usage(0), "session = 0"),
                       (lambda: make("tree", "slots", prefixes=7), "prefixes is 7"),
                       (lambda: make("tree", "slots", prefixes=sp.PrefixOptions(pins=-1)), "prefixes.pins = -1"),
                       (lambda: make("tree", "slots", prefixes=sp.PrefixOptions(prefetches=1)), "need tiers"),
                       (lambda: make("tree", "slots", sessions=sp.SessionOptions(-1)), "sessions.remembered = -1")):
        with pytest.raises(sp.InvalidArgument, match=text):
            call()
    without = make("tree", "slots", prefixes=None, sessions=None)
    for call, text in ((lambda: without.pin(PROMPT), "prefixes"), (lambda: without.unpin(1), "prefixes"),
                       (lambda: without.prefetch(PROMPT), "prefixes"), (lambda: without.prefetching(1), "prefixes"),
                       (lambda: without.prefix_usage, "prefixes"), (lambda: without.close_session(1), "sessions"),
                       (lambda: without.session_usage(1), "sessions")):
        with pytest.raises(sp.InvalidState, match=text):
            call()
