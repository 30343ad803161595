# SPDX-License-Identifier: Apache-2.0
"""Requests that go on from the computed tokens of another one, and drafts that are trees."""
from __future__ import annotations

import numpy as np
import pytest

import stateport as sp
from combinations import LAYOUTS, PROMPT, make_small


def prefilled(cache: sp.RequestCache) -> int:
    """A request that has computed PROMPT and sampled one token."""
    started = cache.start(PROMPT)
    assert started is not None
    while (left := len(PROMPT) - cache.computed(started.request)) > 0:
        count = int(cache.chunk([started.request], [left])[0])
        ends = int(count == left)
        cache.commit(cache.plan([started.request], [count]), [ends], [7] * ends)
    return started.request


def step(cache: sp.RequestCache, requests: list[int]) -> sp.PassPlan:
    plan = cache.plan(requests, [1] * len(requests))
    copies = plan.fork_copies
    assert plan.rows_without_room == 0
    assert len(np.unique(copies["dst_slot"])) == len(copies)
    cache.commit(plan, [1] * len(requests), [9] * len(requests))
    cache.check_invariants()
    return plan


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", ["hash", "tree"])
class TestForks:
    def test_forks_go_on_from_a_request(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        request = prefilled(cache)
        forks = cache.fork(request, [11, 12])
        assert forks is not None and len({request, *forks}) == 3
        assert [cache.computed(fork) for fork in forks] == [len(PROMPT)] * 2
        assert [cache.tokens(fork).tolist() for fork in forks] == [[*PROMPT, 11], [*PROMPT, 12]]
        assert cache.chunk([request], [1]).tolist() == cache.least_budgets([request]).tolist() == [0]
        plan = cache.plan(forks, [1, 1])
        group = plan.groups[0]
        assert len(plan.fork_copies) == 2  # PROMPT ends inside a block
        if layout == "slots":
            assert group.read_column.tolist() == [1, 1] and len(group.copies) == 0
            assert len({*group.read_slot.tolist(), *group.write_slot.tolist()}) == 3
        else:
            assert sorted(group.copies["dst_slot"].tolist()) == sorted(group.write_slot.tolist())
        cache.commit(plan, [1, 1], [9, 9])
        assert cache.chunk([request], [1]).tolist() == [1]
        step(cache, [request, *forks])
        cache.finish([request, *forks])
        stats = cache.stats()
        assert (stats.requests, stats.forks) == (1, 2)
        assert "forks_total 2" in cache.prometheus()

    def test_a_request_that_was_forked_may_end(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        request = prefilled(cache)
        forks = cache.fork(request, np.array([[11, 12, 13], [14, 15, 16]]))
        assert forks is not None
        cache.finish([request])
        assert cache.running_requests == 3
        with pytest.raises(sp.InvalidArgument, match="request"):
            cache.tokens(request)
        assert cache.tokens(forks[1]).tolist() == [*PROMPT, 14, 15, 16]
        for count in (2, 1):
            tokens = cache.chunk(forks, [count] * 2)
            if not tokens.all():
                break
            parts = zip(forks, tokens, strict=True)
            done = [int(cache.computed(fork) + part == len(PROMPT) + 3) for fork, part in parts]
            cache.commit(cache.plan(forks, tokens), done, [9] * sum(done))
            assert cache.running_requests == 2
        cache.finish(forks)
        cache.check_invariants()
        assert cache.running_requests == 0

    def test_forks_that_cannot_be_are_refused(self, index: str, layout: str) -> None:
        cache = make_small(index, layout)
        started = cache.start(PROMPT)
        assert started is not None
        with pytest.raises(sp.InvalidState, match="has not computed its prompt"):
            cache.fork(started.request, [1])
        cache.abort([started.request])
        request = prefilled(cache)
        with pytest.raises(sp.InvalidArgument, match="forks = 0"):
            cache.fork(request, [])
        with pytest.raises(sp.InvalidArgument, match="tokens has 3 dimensions"):
            cache.fork(request, np.zeros((1, 1, 1), np.int32))
        with pytest.raises(sp.InvalidArgument, match="request"):
            cache.fork(request + 1, [1])
        assert cache.fork(request, [1] * 1000) is None
        forks = cache.fork(request, [1])
        assert forks is not None
        with pytest.raises(sp.InvalidState, match="is a fork that has not begun"):
            cache.fork(forks[0], [1])
        cache.check_invariants()


@pytest.mark.parametrize("index", ["hash", "tree"])
class TestDraftTrees:
    def test_any_path_of_a_tree_is_kept(self, index: str) -> None:
        for step, sampled, moves in ((0, [9], 0), (1, [51, 9], 0), (2, [52, 9], 1), (4, [52, 54, 9], 2)):
            cache = make_small(index, "slots", drafts=4)
            request = prefilled(cache)
            plan = cache.plan([request], [5], [4], parents=[0, 0, 1, 2])
            start, per_id = int(plan.start[0]), plan.kv_tokens_per_id
            places = [int(plan.kv(0)[at // per_id]) * per_id + at % per_id for at in range(start, start + 5)]
            commit = cache.commit(plan, [len(sampled)], sampled, steps=[step])
            assert commit.groups[0].steps["live_step"].tolist() == [step]
            assert len(commit.kv_moves) == moves
            if moves > 0:
                assert commit.kv_moves[-1].tolist() == (places[step], places[len(sampled) - 1])
            assert cache.tokens(request).tolist() == [*PROMPT, 7, *sampled]
            cache.check_invariants()

    def test_trees_that_cannot_be_are_refused(self, index: str) -> None:
        cache = make_small(index, "slots", drafts=2)
        request = prefilled(cache)
        for parents in ([0], [0, 2], [-1, 0], [0, 0, 0]):
            with pytest.raises(sp.InvalidArgument, match="parents"):
                cache.plan([request], [3], [2], parents=parents)
        plan = cache.plan([request], [3], [2], parents=[0, 0])
        for steps in (None, [3], [0], [1, 1]):
            with pytest.raises(sp.InvalidArgument, match="steps"):
                cache.commit(plan, [2], [8, 9], steps)
        cache.commit(plan, [2], [8, 9], [2])
        columns = make_small(index, "columns", drafts=2)
        with pytest.raises(sp.InvalidArgument, match="chains in columns"):
            columns.plan([prefilled(columns)], [2], [1], parents=[0])
