# SPDX-License-Identifier: Apache-2.0
"""RequestCache: requests of random prompts whose states are numbers that only their own tokens give."""
from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import Any

import pytest

import stateport as sp
from combinations import COMBINATIONS, make_cache
from conftest import seeds

PRIME = (1 << 31) - 1


def after(state: int, tokens: Any) -> int:
    """The state of a model that a test can compute: it depends on every token and their order."""
    for token in tokens:
        state = (state * 31 + int(token) + 7) % PRIME
    return state


@dataclasses.dataclass
class Engine:
    """Runs requests as an engine does, over stores that are lists. A wrong state is an assertion."""

    cache: sp.RequestCache
    draw: random.Random

    def __post_init__(self) -> None:
        self.states = [{} for _ in range(self.cache.groups)]  # type: list[dict[int, int]]
        self.kv: dict[tuple[int, int], int] = {}  # (id, offset in its block): token
        self.running: dict[int, int] = {}  # request, tokens that it answers

    def start(self, prompt: list[int], answer: int, **options: Any) -> sp.StartedRequest | None:
        started = self.cache.start(prompt, **options)
        if started is not None:
            self.running[started.request] = len(prompt) + answer
            assert 0 <= started.reused_tokens < len(prompt)
            self._check_places(started, prompt)
            assert started.lost in sp.cache_options.LOST_REASONS
        return started

    def _check_places(self, started: sp.StartedRequest, prompt: list[int]) -> None:
        for group, states in enumerate(self.states):
            places = self.cache.places(started.request, group)
            assert places.tokens == started.reused_tokens
            if places.tokens:
                assert states[places.state] == after(0, prompt[:places.tokens])
            for position, token in enumerate(prompt[:places.tokens]):
                unit = places.kv_tokens_per_id
                assert self.kv[int(places.kv[position // unit]), position % unit] == token

    def insert(self) -> int:
        """Another engine has computed a part of a prompt. Answers how many tokens."""
        request = self.draw.choice(list(self.running))
        if not self._in_prompt(request):
            return 0
        tokens, first = self.cache.tokens(request), self.cache.computed(request)
        wanted = self.draw.randint(first + 1, len(tokens) - 1)
        inserted = self.cache.insert(request, wanted)
        if inserted is None:
            assert self.cache.computed(request) == first
            return 0
        plan, commit = inserted
        self._before(plan)
        ids, unit = plan.kv(0), plan.kv_tokens_per_id
        for position in range(int(plan.start[0]), wanted):
            self.kv[int(ids[position // unit]), position % unit] = int(tokens[position])
        for states, group in zip(self.states, plan.groups, strict=True):
            states[int(group.write_slot[0])] = after(0, tokens[:wanted])
        self._after(commit)
        assert self.cache.computed(request) == wanted
        return wanted - first

    def step(self) -> None:
        requests = list(self.running)
        self.draw.shuffle(requests)
        budgets = [self.draw.randint(1, 40) if self._in_prompt(request) else 1 for request in requests]
        chunks = self.cache.chunk(requests, budgets)
        rows = [(request, int(tokens)) for request, tokens in zip(requests, chunks, strict=True) if tokens]
        if not rows:
            return
        plan = self.cache.plan([request for request, _ in rows], [tokens for _, tokens in rows])
        assert plan.rows_without_room == int((~plan.room).sum())
        self._run(plan, rows)

    def _in_prompt(self, request: int) -> bool:
        return self.cache.computed(request) < len(self.cache.tokens(request)) - 1

    def _before(self, plan: sp.PassPlan) -> None:
        for states, group in zip(self.states, plan.groups, strict=True):
            for slot in group.clear:
                states[int(slot)] = 0
            before = dict(states)
            for copy in group.copies:
                states[int(copy["dst_slot"])] = before[int(copy["recurrent_src_slot"])]

    def _after(self, commit: sp.PassCommit) -> None:
        for states, group in zip(self.states, commit.groups, strict=True):
            assert not len(group.steps) and not len(group.from_scratch)
            before = dict(states)
            for copy in group.copies:
                states[int(copy["dst_slot"])] = before[int(copy["recurrent_src_slot"])]

    def _run(self, plan: sp.PassPlan, rows: list[tuple[int, int]]) -> None:
        self._before(plan)
        counts, sampled = [], []
        for row, (request, count) in enumerate(rows):
            if not plan.room[row]:
                counts.append(0)
                continue
            tokens, start = self.cache.tokens(request), int(plan.start[row])
            self._forward(plan, row, tokens, start, count)
            ends = start + count == len(tokens)
            counts.append(int(ends))
            if ends:
                sampled.append(self.draw.randint(0, 3))
        self._after(self.cache.commit(plan, counts, sampled))
        for row, (request, _) in enumerate(rows):
            if plan_room(plan, row) and len(self.cache.tokens(request)) >= self.running[request]:
                self.end(request)

    def _forward(self, plan: sp.PassPlan, row: int, tokens: Any, start: int, count: int) -> None:
        ids, unit = plan.kv(row), plan.kv_tokens_per_id
        for position in range(start):  # KV that was computed before, by whomever
            found = self.kv[int(ids[position // unit]), position % unit]
            assert found == tokens[position], f"the KV at position {position} is of another token"
        for position in range(start, start + count):
            self.kv[int(ids[position // unit]), position % unit] = int(tokens[position])
        for states, group in zip(self.states, plan.groups, strict=True):
            read, write = int(group.read_recurrent_slot[row]), int(group.write_slot[row])
            state = states[read] if read >= 0 else 0
            assert state == after(0, tokens[:start]), f"the state after {start} tokens is wrong"
            for save in group.saves:
                if save["row"] == row:
                    states[int(save["slot"])] = after(0, tokens[:start + int(save["offset"])])
            states[write] = after(0, tokens[:start + count])

    def end(self, request: int) -> None:
        del self.running[request]
        how = self.draw.choice([self.cache.finish, self.cache.finish, self.cache.preempt, self.cache.abort])
        assert len(how(request).copies) == 0


def plan_room(plan: sp.PassPlan, row: int) -> bool:
    return bool(plan.room[row])


def options_of(combination: str, draw: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_requests": 4, "max_request_tokens": 256, "block_size_tokens": draw.choice([4, 16]),
                               "kv_tokens": draw.choice([512, 1536]), "events": True}
    if combination.endswith("columns"):
        size = options["block_size_tokens"]
        options["groups"] = [sp.StateGroup(size, 40, layout_fingerprint=7), sp.StateGroup(2 * size, 30,
                                                                                          layout_fingerprint=8)]
    else:
        options |= {"checkpoints": draw.randint(1, 12), "layout_fingerprint": 9, "scan_alignment_tokens": -1,
                    "placement": draw.choice(["passes", "branch"]),
                    "eviction": sp.Eviction(draw.choice(["hix", "lru"]), state_bytes=4096, kv_bytes_per_token=16)}
    return options


def prompt_of(draw: random.Random, earlier: list[list[int]]) -> list[int]:
    """Often continues an earlier one, or branches from it."""
    shared: list[int] = []
    if earlier and draw.random() < 0.8:
        shared = draw.choice(earlier)
        shared = shared[:draw.randint(0, len(shared))]
    return shared + [draw.randint(0, 3) for _ in range(draw.randint(1, 60))]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_random_requests_never_read_a_wrong_state(combination: str) -> None:
    hits = inserted = kept = 0
    for seed in seeds(25):
        print("combination", combination, "seed", seed)
        draw = random.Random(seed)
        with make_cache(combination, **options_of(combination, draw)) as cache:
            engine, earlier = Engine(cache, draw), list[list[int]]()
            for now in range(40):
                prompt = prompt_of(draw, earlier)[:180]
                named = sorted(draw.sample(range(1, len(prompt) + 1), min(draw.choice([0, 0, 1, 8]), len(prompt))))
                if engine.start(prompt, draw.randint(1, 5), now_s=float(now), breakpoints=named) is not None:
                    earlier.append(prompt)
                for _ in range(draw.randint(0, 4)):
                    engine.step()
                    cache.check_invariants()
                if engine.running and draw.random() < 0.2:
                    inserted += engine.insert()
                    cache.check_invariants()
            for request in list(engine.running):
                engine.end(request)
            cache.check_invariants()
            stats = cache.stats()
            hits += stats.hit_tokens
            assert stats.requests == len(earlier)
            kept += stats.breakpoints_kept
            events = cache.take_events(1 << 16)
            assert list(events["sequence"]) == list(range(1, len(events) + 1))
            assert sum(stats.lost_tokens.values()) + stats.hit_tokens == stats.prompt_tokens
    assert hits > 1000, "the prompts share too little to prove anything"
    assert inserted > 1000 and kept > 200


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_prompt_continues_where_it_leaves_another_one_at_a_named_position(combination: str) -> None:
    layout = {"groups": [sp.StateGroup(16, 40, layout_fingerprint=7)]} if combination.endswith("columns") else {
        "checkpoints": 8, "layout_fingerprint": 3, "scan_alignment_tokens": -1}
    cache = make_cache(combination, max_requests=2, max_request_tokens=256, kv_tokens=512, **layout)
    prompt = list(range(100))
    started = cache.start(prompt, breakpoints=[5, 40, 99])
    assert started is not None and started.breakpoints == (0, 32, 96)
    computed = 0
    while computed < len(prompt):
        tokens = int(cache.chunk([started.request], [100])[0])
        computed += tokens
        plan = cache.plan([started.request], [tokens])
        commit = cache.commit(plan, [int(computed == len(prompt))], [7] if computed == len(prompt) else [])
        assert len(commit.refused_breakpoints) == 0
    other = cache.start([*prompt[:40], 200, 201])
    assert other is not None and other.reused_tokens == 32
    stats = cache.stats()
    assert (stats.breakpoints_kept, stats.breakpoints_refused) == (2, 0)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_prompt_that_leaves_another_one_in_its_tail_continues_from_before_it(combination: str) -> None:
    layout = {"groups": [sp.StateGroup(16, 40, layout_fingerprint=7)]} if combination.endswith("columns") else {
        "checkpoints": 8, "layout_fingerprint": 3, "scan_alignment_tokens": -1}
    cache = make_cache(combination, max_requests=2, max_request_tokens=256, kv_tokens=512, tail_tokens=20, **layout)
    prompt = list(range(100))
    started = cache.start(prompt)
    assert started is not None
    assert cache.chunk([started.request], [100])[0] == 80
    cache.commit(cache.plan([started.request], [80]), [0], [])
    cache.commit(cache.plan([started.request], [20]), [1], [7])
    other = cache.start([*prompt[:90], 200, 201])
    assert other is not None and other.reused_tokens == 80


def test_a_named_position_without_a_checkpoint_is_named() -> None:
    cache = make()
    started = cache.start(list(range(100)), breakpoints=[32])
    assert started is not None
    commit = cache.commit(cache.plan([started.request], [64]), [0], [])
    assert commit.refused_breakpoints.tolist() == [(started.request, 32)]
    assert cache.stats().breakpoints_refused == 1


def make(combination: str = "tree_slots", **options: Any) -> sp.RequestCache:
    return make_cache(combination, **{"max_requests": 2, "max_request_tokens": 256, "kv_tokens": 512, "checkpoints": 4,
                                      "layout_fingerprint": 3, "scan_alignment_tokens": -1, **options})


@pytest.mark.parametrize(("options", "text"), [
    ({"max_requests": 0}, "max_requests"), ({"kv_tokens": -1}, "kv_tokens"), ({"layout_fingerprint": 0}, "layout"),
    ({"placement": "somewhere"}, "placement is 'somewhere'"), ({"color": 3}, "color"),
    ({"tail_tokens": 64, "placement": "every"}, "tail_tokens = 64"), ({"breakpoint_saves": 9}, "breakpoint_saves = 9"),
    ({"hash": "md5"}, "hash is 'md5'"),
])
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument) as raised:
        make(**options)
    assert text in str(raised.value)


@pytest.mark.parametrize(("layout", "text"), [
    (sp.ColumnLayout(), "groups"), (sp.ColumnLayout([sp.StateGroup(16, 4)], mode="none"), "mode = none"),
    (sp.ColumnLayout([sp.StateGroup(16, 4)], mode="some"), "mode is 'some'"), ({"checkpoints": 3}, "layout is {"),
    (sp.ColumnLayout([(16, 4)]), "groups[0] is a tuple"),  # type: ignore[list-item]
    (sp.ColumnLayout(None), "groups is None"),  # type: ignore[arg-type]
])
def test_bad_layouts_are_refused(layout: Any, text: str) -> None:
    with pytest.raises(sp.InvalidArgument) as raised:
        sp.RequestCache("tree", layout, max_requests=1, max_request_tokens=16, kv_tokens=16)
    assert text in str(raised.value)


def test_no_index_of_another_name_exists() -> None:
    with pytest.raises(sp.InvalidArgument, match="index is 'trie', and must be one of hash, tree"):
        sp.RequestCache("trie", sp.SlotLayout(), max_requests=1, max_request_tokens=16, kv_tokens=16)


def test_bad_calls_are_refused_and_change_nothing() -> None:
    cache = make()
    request = cache.start([1, 2, 3]).request  # type: ignore[union-attr]
    for use, text in [
        (lambda: cache.start([]), "prompt = 0"), (lambda: cache.start([1, 2**40]), "1099511627776"),
        (lambda: cache.start([[1, 2], [3, 4]]), "tokens has 2 dimensions"), (lambda: cache.start([1.5]), "float64"),
        (lambda: cache.start(list(range(300))), "300"),
        (lambda: cache.start([1, 2, 3], breakpoints=[0]), "breakpoints = 0"),
        (lambda: cache.start([1, 2, 3], breakpoints=[4]), "breakpoints = 4"),
        (lambda: cache.start([1, 2, 3], breakpoints=["a"]), "breakpoints has elements"),
        (lambda: cache.chunk([request], []), "budgets has 0 elements, and requests 1"),
        (lambda: cache.chunk([99], [1]), "99"), (lambda: cache.plan([request], [4]), "4"),
        (lambda: cache.plan([request, request], [1, 1]), str(request)), (lambda: cache.plan([request], [1, 2]), "2"),
        (lambda: cache.finish([request, request]), str(request)), (lambda: cache.tokens(17), "17"),
        (lambda: cache.places(17), "17"), (lambda: cache.places(request, 1), "group = 1"),
        (lambda: cache.insert(request, 4), "tokens = 4"), (lambda: cache.insert(17, 1), "17"),
        (lambda: cache.finish(request, hints=[]), "hints has 0 elements"),
        (lambda: cache.finish(request, hints=[sp.ReuseHint(factor=-1.0)]), "factor"),
    ]:
        with pytest.raises(sp.InvalidArgument) as raised:
            use()
        assert text in str(raised.value), str(raised.value)
        cache.check_invariants()
    assert list(cache.tokens(request)) == [1, 2, 3] and cache.running_requests == 1


def test_no_room_takes_nothing() -> None:
    cache = make(max_requests=1)
    with cache.serving([1, 2, 3]):
        assert cache.start([4, 5]) is None
        with pytest.raises(sp.NoCapacity), cache.serving([4, 5]):
            pass
    assert cache.running_requests == 0


def test_an_insert_without_room_and_calls_at_a_wrong_time_change_nothing() -> None:
    cache = make("hash_slots", kv_tokens=256)
    one, two = (cache.start([first, *range(200)]).request for first in (1, 2))  # type: ignore[union-attr]
    assert cache.insert(one, 192) is not None
    assert cache.insert(two, 96) is None
    assert cache.computed(two) == 0
    with pytest.raises(sp.InvalidState, match="has committed a pass"):
        cache.places(one)
    cache.plan([one], [1])
    with pytest.raises(sp.InvalidState, match="outstanding passes"):
        cache.insert(one, 195)
    assert cache.computed(one) == 192
    cache.check_invariants()


def test_a_request_is_aborted_when_its_statement_raises() -> None:
    cache = make()
    with pytest.raises(KeyError), cache.serving([1, 2, 3]):
        raise KeyError
    assert cache.running_requests == 0
    cache.check_invariants()


@pytest.mark.parametrize("combination", ["hash_slots", "tree_slots"])
def test_the_number_of_a_request_that_ended_ends_no_other_one(combination: str) -> None:
    cache = make(combination, max_requests=1)
    with pytest.raises(sp.InvalidArgument, match="request = 0"), cache.serving([1, 2, 3]) as first:
        cache.abort(first.request)
        second = cache.start([4, 5, 6])
        assert second is not None
    assert second.request != first.request and second.request & 0xFFFFFFFF == first.request
    for call in (cache.finish, cache.preempt, cache.abort, cache.tokens, cache.kv, cache.computed):
        with pytest.raises(sp.InvalidArgument, match="request = 0"):
            call(first.request)
    with pytest.raises(sp.InvalidArgument, match="request = 0"):
        cache.plan([first.request], [3])
    with pytest.raises(sp.InvalidArgument, match="request = 0"):
        cache.chunk([first.request], [3])
    assert cache.running_requests == 1
    cache.commit(cache.plan([second.request], [3]), [1], [7])
    cache.finish(second.request)
    assert cache.running_requests == 0


def test_a_budget_that_runs_nothing_is_answered_with_the_one_that_does() -> None:
    cache = make_cache("hash_columns", max_requests=2, max_request_tokens=256, kv_tokens=512,
                       groups=[sp.StateGroup(16, 20, layout_fingerprint=3)])
    request = cache.start(list(range(40)))
    assert request is not None
    assert cache.least_budgets([request.request]).tolist() == [16]
    assert cache.chunk([request.request] * 2, [15, 16]).tolist() == [0, 16]
    cache.abort(request.request)
    other = make()
    request = other.start(list(range(40)))
    assert request is not None
    assert other.least_budgets([request.request]).tolist() == [1]


def answer(cache: sp.RequestCache, request: int) -> None:
    """The prompt and one token of decoding, whose state is published at the end of the request alone."""
    cache.commit(cache.plan([request], [len(cache.tokens(request))]), [1], [5])
    cache.commit(cache.plan([request], [1]), [1], [6])


@pytest.mark.parametrize("how", ["finish", "preempt", "abort", "a statement", "a statement that raises"])
def test_the_tokens_of_a_request_are_kept_unless_it_is_aborted(how: str) -> None:
    cache, prompt = make(block_size_tokens=1), list(range(40))
    if how.startswith("a statement"):
        with contextlib.suppress(KeyError), cache.serving(prompt) as started:
            answer(cache, started.request)
            if how.endswith("raises"):
                raise KeyError
    else:
        request = cache.start(prompt).request  # type: ignore[union-attr]
        answer(cache, request)
        getattr(cache, how)(request)
    kept = how in ("finish", "preempt", "a statement")
    again = cache.start([*prompt, 5, 6])
    assert again is not None and again.reused_tokens == (41 if kept else 40)


def test_a_plan_is_not_read_behind_the_end_of_its_cache() -> None:
    cache = make()
    plan = cache.plan([cache.start([1, 2, 3]).request], [3])  # type: ignore[union-attr]
    cache.close()
    with pytest.raises(sp.ClosedError):
        plan.kv(0)


def test_a_plan_is_read_before_the_next_call_or_never() -> None:
    cache = make()
    request = cache.start([1, 2, 3]).request  # type: ignore[union-attr]
    plan = cache.plan([request], [3])
    read = plan.kv(0)
    cache.cancel(plan)
    assert len(read) >= 3
    with pytest.raises(sp.ClosedError, match="older than the newest call"):
        plan.start  # noqa: B018
    with pytest.raises(sp.InvalidState):
        cache.commit(plan, [1], [5])


def test_a_plan_is_read_after_another_one_was_refused() -> None:
    reported = []
    for refused in (False, True):
        cache = make("hash_slots", block_size_tokens=4, checkpoints=20, scan_alignment_tokens=4, placement="every")
        requests = [cache.start(range(n, n + 200)).request for n in (0, 1000)]  # type: ignore[union-attr]
        plan = cache.plan(requests[:1], [5])
        if refused:
            with pytest.raises(sp.InvalidArgument, match="twice"):
                cache.plan([requests[0], requests[0]], [200, 200])
            with pytest.raises(sp.InvalidArgument, match="tokens = 201"):
                cache.plan(requests, [200, 201])
        group = plan.groups[0]
        reported.append([list(plan.start), list(plan.kv(0)), list(group.slots(0)), group.saves.tolist()])
    assert reported[0] == reported[1] and len(reported[0][3]) == 1


def test_ids_of_kv_are_read_from_any_one_on() -> None:
    cache = make()
    requests = [cache.start(range(n, n + 7)).request for n in (0, 100)]  # type: ignore[union-attr]
    plan = cache.plan(requests, [7, 4])
    counts = [int(count) for count in plan.kv_count]
    assert plan.kv_tokens_per_id == 1 and counts[0] >= 7 and counts[1] >= 4
    for row in (0, 1, -1):
        ids, count = list(plan.kv(row)), counts[row]
        assert len(ids) == len(set(ids)) == count
        for first in range(count + 3):
            assert list(plan.kv(row, first)) == ids[first:]
    assert not set(plan.kv(0)) & set(plan.kv(1))
    for row in (2, -3):
        with pytest.raises(IndexError):
            plan.kv(row)
    with pytest.raises(sp.InvalidArgument, match="first is -1, and must not be negative"):
        plan.kv(0, -1)


def test_a_plan_is_forgotten_when_a_newer_one_is_made() -> None:
    cache = make(overlap=True)
    request = cache.start(list(range(20))).request  # type: ignore[union-attr]
    first = cache.plan([request], [20])
    group, ids, start = first.groups[0], list(first.kv(0)), first.start
    ahead = cache.plan([request], [1])
    uses: list[Any] = [lambda: first.kv(0), lambda: first.room, lambda: group.read_slot, lambda: group.slots(0)]
    for use in uses:
        with pytest.raises(sp.ClosedError, match="the plan is older than the newest call of its cache"):
            use()
    assert list(start) == [0] and list(first.start) == [0] and len(ids) >= 20  # arrays that were read stay
    assert ahead.rows == 1 and len(ahead.room) == 1
    commit = cache.commit(first, [1], [7])
    with pytest.raises(sp.ClosedError, match="older"):
        ahead.kv(0)
    cache.commit(commit.next or ahead, [1], [8])


def test_namespaces_and_media_keep_prompts_apart() -> None:
    cache, prompt = make(max_requests=1), list(range(40))

    def hit(**options: Any) -> int:
        started = cache.start(prompt, **options)
        assert started is not None
        plan = cache.plan([started.request], [40 - started.reused_tokens])
        cache.commit(plan, [1], [1])
        cache.finish(started.request)
        return started.reused_tokens

    picture = {"media": [sp.MediaKey(b"picture", 3)]}
    for options in ({}, {"namespace": sp.Namespace(salt=b"tenant")}, {"namespace": sp.Namespace(salt=b"")}, picture,
                    {"namespace": sp.Namespace(extra_key=b"tenant")}):
        assert hit(**options) == 0, options
    cache.check_invariants()


def test_a_pass_is_planned_ahead() -> None:
    cache = make(overlap=True)
    request = cache.start(list(range(20))).request  # type: ignore[union-attr]
    first = cache.plan([request], [20])
    ahead = cache.plan([request], [1])
    assert first.ready
    commit = cache.commit(first, [1], [7])
    done = commit.next if commit.next is not None else ahead
    assert done.pass_id == ahead.pass_id and done.ready and list(done.start) == [20]
    cache.commit(done, [1], [8])
    assert list(cache.tokens(request)[-2:]) == [7, 8]


def test_statistics_have_a_text_for_people_and_one_for_prometheus() -> None:
    cache = make()
    with cache.serving([1, 2, 3]):
        pass
    assert "1 of" not in repr(cache) and "by tree" in repr(cache)
    text = cache.prometheus("engine")
    assert "engine_requests_total 1\n" in text and text.endswith("\n")
    cache.reset()
    assert cache.stats().kv_tokens == 0
