# SPDX-License-Identifier: Apache-2.0
"""An arena of a request cache: memory moves between KV and states, and the test is its owner."""
from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import stateport as sp

BLOCK, BLOCKS, CHECKPOINTS = 4, 80, 80
ARENA = sp.Arena(2400, kv_extent_count=2, kv_extent_bytes=50, states_extent_count=3, states_extent_bytes=90)
INDEXES = ("hash", "tree")


def make(index: str, arena: sp.Arena | None = ARENA, **options: Any) -> sp.RequestCache:
    layout = sp.SlotLayout(3, CHECKPOINTS, separate_checkpoints=True, placement="last", arena=arena,
                           budget_bytes=options.pop("budget_bytes", 0))
    return sp.RequestCache(index, layout, max_requests=2, max_request_tokens=24, block_size_tokens=BLOCK,
                           kv_tokens=BLOCK * BLOCKS, **options)


class Owner:
    """Serves prompts of a cache whose memory it owns: it maps and unmaps extents as the moves say."""

    def __init__(self, cache: sp.RequestCache) -> None:
        self.cache, self.refusals, self.moves, self.late, self.copies, self.reused = cache, 0, 0, 0, 0, 0
        self.content: dict[int, tuple[int, int]] = {}  # by KV block: the prompt's name, and which block of it
        self.names: dict[int, int] = {}  # by request
        extents = {"kv": -(-cache.kv_blocks // ARENA.kv_extent_count),
                   "states": -(-CHECKPOINTS // ARENA.states_extent_count)}
        self.mapped = {(part, extent): cache.is_mapped(part, extent)
                       for part, count in extents.items() for extent in range(count)}
        self.check()

    def check(self) -> None:
        """The extents that have memory are those that the cache may name, and its count of bytes is theirs."""
        sums = {"kv": 0, "states": 0}
        for (part, extent), mapped in self.mapped.items():
            assert self.cache.is_mapped(part, extent) is mapped
            sums[part] += mapped * (ARENA.kv_extent_bytes if part == "kv" else ARENA.states_extent_bytes)
        usage = self.cache.arena_usage()
        assert (usage.kv_bytes, usage.state_bytes, usage.moves) == (sums["kv"], sums["states"], self.moves)
        assert usage.kv_bytes + usage.state_bytes <= ARENA.bytes

    def carry_out(self, answer: Any) -> None:
        for copy in answer.kv_copies:
            for block in (copy["src_slot"], copy["dst_slot"]):
                assert self.mapped["kv", int(block) // ARENA.kv_extent_count]
            self.content[int(copy["dst_slot"])] = self.content[int(copy["src_slot"])]
        self.copies += len(answer.kv_copies)
        for move in answer.moves:
            self.moves += 1
            assert move["id"] == self.moves
            place = sp.MEMORY_PARTS[move["part"]], int(move["extent"])
            maps = sp.MOVE_KINDS[move["kind"]] == "map"
            assert self.mapped[place] is not maps
            done = not maps or self.refusals == 0
            self.refusals -= not done
            self.mapped[place] = maps if done else not maps
            self.cache.settle_move(move["id"], done)
            with pytest.raises(sp.InvalidArgument, match=f"move = {self.moves}"):
                self.cache.settle_move(move["id"])
        late = self.cache.take_memory()  # maps that the others made possible
        self.late += len(late.moves)
        if len(late.moves):
            self.carry_out(late)
        self.check()

    def run(self, rows: dict[int, int]) -> int:
        """A pass of these requests and tokens. Answers how many moves its plans had."""
        moves = 0
        for _ in range(4):
            plan = self.cache.plan(list(rows), list(rows.values()))
            moves += len(plan.moves)
            self.carry_out(plan)
            if not plan.rows_without_room:
                break
            self.cache.cancel(plan)
        for row, (request, tokens) in enumerate(rows.items()):
            self.pass_over(plan, row, self.names[request], tokens)
        commit = self.cache.commit(plan, [0] * len(rows), [])
        for slot in commit.groups[0].copies["dst_slot"]:
            assert self.mapped["states", int(slot) // ARENA.states_extent_count]
        self.carry_out(commit)
        return moves

    def pass_over(self, plan: sp.PassPlan, row: int, name: int, tokens: int) -> None:
        """The pass reads blocks of its own prompt, and writes the rest."""
        start = int(plan.start[row])
        for at in range(0, start + tokens, BLOCK):
            block = int(plan.kv(row)[at // plan.kv_tokens_per_id]) * plan.kv_tokens_per_id // BLOCK
            assert self.mapped["kv", block // ARENA.kv_extent_count]
            if at < start:
                assert self.content[block] == (name, at)
                self.reused += 1
            self.content[block] = name, at

    def start(self, name: int, tokens: int) -> dict[int, int]:
        started = self.cache.start([name] * tokens)
        assert started is not None
        self.names[started.request] = name
        return {started.request: tokens - started.reused_tokens}

    def serve(self, names: range, tokens: int) -> sp.ArenaUsage:
        for name in names:
            rows = self.start(name, tokens)
            self.run(rows)
            self.cache.finish(list(rows))
        self.cache.check_invariants()
        return self.cache.arena_usage()


@pytest.mark.parametrize("index", INDEXES)
def test_memory_follows_the_content_and_a_refused_map_changes_nothing(index: str) -> None:
    owner = Owner(make(index))
    assert owner.cache.arena_usage() == sp.ArenaUsage(kv_bytes=24 * 50, state_bytes=13 * 90, moves=0, refused_moves=0)
    owner.refusals = 2
    of_long = owner.serve(range(1, 60), 5 * BLOCK + 1)
    assert of_long.kv_bytes > 24 * 50 and of_long.refused_moves == 2
    assert owner.serve(range(100, 200), BLOCK + 1).kv_bytes < of_long.kv_bytes
    owner.serve(range(180, 200), BLOCK + 1)
    assert owner.copies > 0 and owner.reused > 0 and owner.late > 0


@pytest.mark.parametrize("index", INDEXES)
def test_a_row_without_room_has_it_once_the_moves_of_its_plan_are_settled(index: str) -> None:
    owner = Owner(make(index, dataclasses.replace(ARENA, state_share=1)))
    usage = owner.cache.arena_usage()
    assert usage.kv_bytes < usage.state_bytes / 4
    rows = owner.start(1, 24) | owner.start(2, 24)
    assert owner.run(rows) > 0
    assert all(owner.cache.computed(request) == 24 for request in rows)


@pytest.mark.parametrize("share", [0, 0.0])
def test_states_may_have_no_share_at_the_start(share: float) -> None:
    usage = make("hash", dataclasses.replace(ARENA, state_share=share)).arena_usage()
    assert usage.state_bytes < usage.kv_bytes / 4


def test_a_plan_and_a_commit_have_no_moves_without_an_arena() -> None:
    cache = make("hash", None)
    request = cache.start([1, 2, 3]).request  # type: ignore[union-attr]
    plan = cache.plan([request], [3])
    commit = cache.commit(plan, [0], [])
    for answer in (plan, commit):
        assert len(answer.moves) == 0 and answer.moves.dtype == sp.MEMORY_MOVE
        assert len(answer.kv_copies) == 0 and answer.kv_copies.dtype == sp.SLOT_COPY


def test_an_inserted_prefix_has_the_moves_of_its_commit() -> None:
    owner = Owner(make("hash"))
    moves = 0
    for name in range(1, 60):
        (request, tokens), = owner.start(name, 5 * BLOCK).items()
        inserted = owner.cache.insert(request, tokens)
        assert inserted is not None
        assert len(inserted[0].moves) == 0
        owner.pass_over(inserted[0], 0, name, tokens)
        moves += len(inserted[1].moves)
        owner.carry_out(inserted[1])
        owner.cache.finish([request])
    assert moves > 0


@pytest.mark.parametrize("index", INDEXES)
def test_an_insert_without_room_has_it_once_the_moves_that_are_taken_are_settled(index: str) -> None:
    owner = Owner(make(index, dataclasses.replace(ARENA, state_share=1)))
    had_no_room, held = 0, []
    for name in (1, 2):
        (request, tokens), = owner.start(name, 24).items()
        for _ in range(4):
            inserted = owner.cache.insert(request, tokens)
            if inserted is not None:
                break
            had_no_room += 1
            for commit in held:
                owner.carry_out(commit)
            held = []
            owner.carry_out(owner.cache.take_memory())
            assert len(owner.cache.take_memory().moves) == 0
        assert inserted is not None
        owner.pass_over(inserted[0], 0, name, tokens)
        held.append(inserted[1])  # its moves are late
    assert had_no_room > 0 and owner.late > 0


@pytest.mark.parametrize(("arena", "text"), [
    ({"bytes": -1}, "arena.bytes = -1"), ({"bytes": 400}, "arena.bytes = 400"), ({"bytes": 1.5}, "bytes is 1.5"),
    ({"kv_extent_count": -1}, "arena.kv.count = -1"), ({"kv_extent_bytes": 0}, "arena.kv.bytes = 0"),
    ({"states_extent_count": -2}, "arena.states.count = -2"), ({"states_extent_bytes": -5}, "arena.states.bytes = -5"),
    ({"state_share": 1.5}, "state_share is 1.5"), ({"state_share": -1}, "state_share is -1"),
    ({"state_share": float("nan")}, "state_share is nan"), ({"state_share": "half"}, "state_share is 'half'"),
])
def test_a_bad_arena_is_refused_by_name(arena: dict[str, Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument) as raised:
        make("hash", dataclasses.replace(ARENA, **arena))
    assert text in str(raised.value)


def test_what_is_no_arena_and_a_budget_beside_one_are_refused() -> None:
    with pytest.raises(sp.InvalidArgument, match="arena is a int, and must be a Arena"):
        make("hash", 2400)  # type: ignore[arg-type]
    with pytest.raises(sp.InvalidArgument, match="budget_bytes = 7"):
        make("hash", budget_bytes=7, eviction=sp.Eviction("lru", state_bytes=40, kv_bytes_per_token=10))


def test_bad_calls_are_refused_by_name() -> None:
    cache = make("tree")
    for call, text in ((lambda: cache.settle_move(1), "move = 1"), (lambda: cache.settle_move(-1), "-1 is not"),
                       (lambda: cache.is_mapped("states", 27), "extent = 27"),
                       (lambda: cache.is_mapped("kv", -1), "extent = -1"),
                       (lambda: cache.is_mapped("disk", 0), "part is 'disk', and must be one of kv, states")):
        with pytest.raises(sp.InvalidArgument) as raised:
            call()
        assert text in str(raised.value)


@pytest.mark.parametrize("arena", [None, sp.Arena()])
def test_a_cache_without_an_arena_refuses_to_speak_of_one(arena: sp.Arena | None) -> None:
    cache = make("tree", arena)
    assert cache.arena_usage() == sp.ArenaUsage(0, 0, 0, 0)
    for call in (lambda: cache.settle_move(1), lambda: cache.is_mapped("kv", 0), lambda: cache.take_memory()):
        with pytest.raises(sp.InvalidState, match="has no arena"):
            call()
