# SPDX-License-Identifier: Apache-2.0
"""Prompts that wait for a request which computes their prefix, and prompts that are looked up again."""
from __future__ import annotations

import pytest

import stateport as sp
from combinations import LAYOUTS, PROMPT, make_small

SHARED = 32  # whole blocks of PROMPT
WAITS = sp.ShareRunning(least_tokens=8)


def start(cache: sp.RequestCache, answer: int, search: str = "everywhere") -> sp.StartedRequest:
    """Starts PROMPT with one more token."""
    started = cache.start([*PROMPT, 100 + answer], search=search)
    assert started is not None
    return started


def step(cache: sp.RequestCache, requests: list[int], budget: int = 64) -> int:
    """Runs one pass of each of these prompts that does not wait. Answers how many tokens it computed."""
    tokens = cache.chunk(requests, [budget] * len(requests))
    rows = [(request, int(count)) for request, count in zip(requests, tokens, strict=True) if count > 0]
    plan = cache.plan([request for request, _ in rows], [count for _, count in rows])
    ends = [int(cache.computed(request) + count == len(PROMPT) + 1) for request, count in rows]
    cache.commit(plan, ends, [7] * sum(ends))
    cache.check_invariants()
    return sum(count for _, count in rows)


def run(cache: sp.RequestCache, requests: list[int]) -> int:
    """Computes the prompts of all requests. Answers how many tokens the passes computed."""
    computed = 0
    while left := [request for request in requests if cache.computed(request) <= len(PROMPT)]:
        computed += step(cache, left)
    return computed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", ["hash", "tree"])
class TestWaits:
    def test_a_burst_computes_its_prefix_once(self, index: str, layout: str) -> None:
        for share in (None, WAITS):
            cache = make_small(index, layout, share_running=share)
            burst = [start(cache, answer) for answer in range(3)]
            first, *others = (started.request for started in burst)
            wait = None if share is None else sp.PrefixWait(first, SHARED)
            assert [started.waits_for for started in burst] == [None, wait, wait]
            assert [started.lost for started in burst[1:]] == ["never_stored" if share is None else "nothing"] * 2
            if share is not None:
                assert cache.chunk(others, [64, 64]).tolist() == cache.least_budgets(others).tolist() == [0, 0]
            assert run(cache, [first, *others]) == 3 * (len(PROMPT) + 1) - (0 if share is None else 2 * SHARED)
            stats = cache.stats()
            assert stats.awaited_tokens == stats.hit_tokens == (0 if share is None else 2 * SHARED)
            assert share is None or "awaited_tokens_total 64" in cache.prometheus()

    def test_a_wait_ends_after_some_commits(self, index: str, layout: str) -> None:
        cache = make_small(index, layout, share_running=sp.ShareRunning(8, longest_commits=1))
        first, second = start(cache, 0), start(cache, 1)
        assert second.waits_for == sp.PrefixWait(first.request, SHARED) and cache.chunk([second.request], [64])[0] == 0
        assert step(cache, [first.request], budget=16) == 16 and cache.chunk([second.request], [64])[0] > 0

    def test_a_search_of_the_device_alone_waits_for_nobody(self, index: str, layout: str) -> None:
        cache = make_small(index, layout, share_running=WAITS)
        start(cache, 0)
        second = start(cache, 1, search="device")
        assert second.waits_for is None and cache.chunk([second.request], [64])[0] > 0

    def test_a_prompt_is_looked_up_again_until_its_first_pass(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        first, second = start(cache, 0).request, start(cache, 1).request
        assert cache.refresh(second) is None
        run(cache, [first])
        more = cache.refresh(second)
        assert more is not None and (more.request, more.reused_tokens) == (second, SHARED)
        assert (more.waits_for, cache.computed(second), cache.places(second).tokens) == (None, SHARED, SHARED)
        assert cache.refresh(second) is None
        assert cache.stats().requests == 1  # the second one has not begun
        plan = cache.plan([second], [1])
        with pytest.raises(sp.InvalidState, match="is in an outstanding pass"):
            cache.refresh(second)
        cache.cancel(plan)
        assert run(cache, [second]) == len(PROMPT) + 1 - SHARED
        stats = cache.stats()
        assert (stats.requests, stats.hit_tokens, stats.awaited_tokens) == (2, SHARED, 0)
        with pytest.raises(sp.InvalidState, match="has committed a pass"):
            cache.refresh(second)
        cache.finish([first, second])
        for request in (first, second, -1, 77):
            with pytest.raises(sp.InvalidArgument, match="request"):
                cache.refresh(request)


def test_waits_that_cannot_be_kept_are_refused() -> None:
    for share, text in (
        (sp.ShareRunning(-1), "share_running.least_tokens = -1"),
        (sp.ShareRunning(2**63), "least_tokens is 9223372036854775808"),
        (sp.ShareRunning(1, longest_commits=0), "share_running.longest_commits is 0"),
        (sp.ShareRunning(1, longest_commits=2**31), "share_running.longest_commits is 2147483648"),
        (8, "share_running is 8, and must be of ShareRunning"),
    ):
        with pytest.raises(sp.InvalidArgument, match=text):
            make_small("tree", "slots", share_running=share)
    layout = sp.ColumnLayout([sp.StateGroup(16, 40, layout_fingerprint=4)], mode="none")
    sizes = {"max_requests": 3, "max_request_tokens": 64, "kv_tokens": 640}
    assert sp.RequestCache("hash", layout, **sizes, share_running=sp.ShareRunning()).groups == 1
    with pytest.raises(sp.InvalidArgument, match="least_tokens = 8 .*mode none"):
        sp.RequestCache("hash", layout, **sizes, share_running=WAITS)
