# SPDX-License-Identifier: Apache-2.0
"""SlotAllocator and CheckpointPlanner: their decisions are tested in C++; here, that each call works."""
from __future__ import annotations

import gc

import numpy as np
import pytest

import stateport
from stateport import InvalidArgument, InvalidState, NoCapacity
from stateport.checkpoints import CheckpointPlanner, scratch_slots_bound
from stateport.slot_allocator import FoundState, SlotAllocator, SlotVictim, StateTag


def tag(tokens: int, prefix: int = 1) -> StateTag:
    return StateTag(tokens, (prefix, 2), layout_fingerprint=7)


def test_blocks_of_an_own_pool_are_found_by_hash() -> None:
    with SlotAllocator(blocks=6, slots=2) as states:
        blocks = states.allocate_blocks(3)
        assert blocks.tolist() == [2, 3, 4]
        states.register_blocks(blocks, [10, 20, 30], [0, 10, 20])
        states.retain_blocks(blocks[:1])
        states.release_blocks(blocks)
        assert states.find_blocks([10, 20, 99]).tolist() == [2, 3]
        info = states.info()
        assert (info.free_blocks, info.cached_blocks, info.free_slots, info.external_blocks) == (2, 2, 2, 0)
        with pytest.raises(NoCapacity):
            states.allocate_blocks(5)
        assert states.allocate_blocks(4).tolist() == [0, 1, 4, 3]  # the leaf of the chain goes first
        assert states.find_blocks([10, 20]).tolist() == [2]
        states.check_invariants()
    assert states.closed and repr(states) == "<SlotAllocator, closed>"


def test_a_state_is_found_restored_withdrawn_and_evicted() -> None:
    reported: list[SlotVictim] = []
    states = SlotAllocator(blocks=8, slots=2, external_blocks=True, on_victim=reported.append)
    states.retain_blocks([0, 1, 2])
    states.register_blocks([0, 1, 2], [10, 20, 30], [0, 10, 20])
    assert states.allocate_slots([1, 0, 1]).tolist() == [0, 1, 0]
    assert [states.slot_of(block) for block in (0, 1, 2)] == [1, 0, -1]
    for block, tokens in ((0, 16), (1, 32)):
        states.set_tag(block, tag(tokens))
    states.register_states([0, 1], [10, 20])
    assert states.find_state([10, 20, 30]) == FoundState(index=1, block=1, slot=0)
    assert states.find_state([30]) is None
    check, copies = states.restore(1, 5, tag(32))
    assert check == "match" and copies.tolist() == [(0, 5, 0, 0)]
    assert [states.restore(1, 5, wanted)[0] for wanted in (tag(16), tag(32, 9), StateTag(32, (1, 2), 8))] == \
        ["token_count", "prefix", "layout"]
    assert len(states.restore(1, 5, tag(16))[1]) == 0
    with pytest.raises(NoCapacity):
        states.allocate_slots([2])  # the others are in use
    states.release_blocks([0, 1])
    victims = states.peek_victims(5)
    assert victims == [SlotVictim(0, 1, tag(16), 10), SlotVictim(1, 0, tag(32), 20)] and not reported
    with states.pinned(0) as slot:
        assert slot == 1 and states.evict(2) == 1
    assert reported == victims[1:] and states.slot_of(1) == -1
    states.withdraw(0)
    assert states.find_state([10]) is None and states.slot_of(0) == 1
    assert states.restore(0, 5, tag(16))[0] == "empty"
    states.invalidate([0, 0, 1])
    assert (states.info().free_slots, states.info().evictions) == (2, 1)
    states.check_invariants()


def test_states_go_with_the_content_of_external_blocks() -> None:
    states = SlotAllocator(blocks=4, slots=4, external_blocks=True)
    states.retain_blocks([0, 1, 2, 3])
    states.register_blocks([0, 1, 2], [10, 20, 30])
    states.allocate_slots([0, 1, 2, 3])
    states.release_blocks([0, 3])
    assert states.slot_of(3) == -1 and states.slot_of(0) >= 0  # 3 was not registered
    states.deregister_blocks([0])
    assert states.slot_of(0) == -1
    states.clear_blocks()
    assert states.info().free_slots == 4 and states.info().external_blocks == 0
    with pytest.raises(InvalidArgument, match="external"):
        states.allocate_blocks(1)
    states.check_invariants()


def test_the_least_recently_used_state_goes_first() -> None:
    states = SlotAllocator(blocks=4, slots=3, external_blocks=True)
    states.retain_blocks([0, 1, 2])
    states.register_blocks([0, 1, 2], [10, 20, 30])
    states.allocate_slots([0, 1, 2])
    states.release_blocks([0, 1, 2])
    states.advance_tick()
    states.retain_blocks([0])
    states.release_blocks([0])
    assert [victim.block for victim in states.peek_victims(3)] == [1, 2, 0]


def test_a_policy_learns_from_served_requests() -> None:
    eviction = stateport.Eviction(order="gdsf", state_bytes=100, kv_bytes_per_token=1)
    states = SlotAllocator(blocks=4, slots=2, external_blocks=True, eviction=eviction)
    states.retain_blocks([0, 1])
    states.register_blocks([0, 1], [10, 20], [0, 10])
    states.allocate_slots([0, 1])
    for block in (0, 1):
        states.set_tag(block, tag(16 * (block + 1)))
    states.register_states([0, 1], [10, 20])
    states.release_blocks([0, 1])
    states.note_served([10], usable_blocks=1, now_s=1.0, hint=stateport.ReuseHint(factor=2.0))
    assert states.peek_victims(1)[0].block == 1  # no request has reported it
    with pytest.raises(InvalidArgument):
        states.note_served([10], usable_blocks=1, now_s=0.5)


def test_bad_arguments_are_refused_and_change_nothing() -> None:
    states = SlotAllocator(blocks=4, slots=2, external_blocks=True)
    states.retain_blocks([0])
    before = states.info()
    for refused in (lambda: states.retain_blocks([4]), lambda: states.release_blocks([0, 0]),
                    lambda: states.register_blocks([0], [1, 2]), lambda: states.register_blocks([0], [1], [0, 0]),
                    lambda: states.allocate_slots([-1]), lambda: states.allocate_slots([1.5]),
                    lambda: states.allocate_slots([[1]]), lambda: states.slot_of(2**40), lambda: states.pin(0),
                    lambda: states.unpin(0), lambda: states.set_tag(0, tag(1)), lambda: states.withdraw(9),
                    lambda: states.register_states([0], []), lambda: states.register_states([0], [5]),
                    lambda: states.evict(-1), lambda: states.peek_victims(-1), lambda: states.allocate_blocks(-1),
                    lambda: SlotAllocator(4, 2, policy="mru"), lambda: SlotAllocator(0, 2)):
        with pytest.raises(InvalidArgument):
            refused()
        assert states.info() == before
    states.check_invariants()


def planner_of(slots: int) -> tuple[SlotAllocator, CheckpointPlanner]:
    states = SlotAllocator(blocks=8, slots=slots, external_blocks=True)
    states.retain_blocks(range(4))
    states.register_blocks(range(4), [10, 20, 30, 40], [0, 10, 20, 30])
    return states, CheckpointPlanner(states, block_size_tokens=16, alignment_tokens=8, max_rows=2, layout_fingerprint=7)


def plan(planner: CheckpointPlanner, row: int = 0) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    prefixes = np.array([[one, 2] for one in (1, 2, 3, 4)], np.uint64)
    planned = planner.plan(row, live_slot=5, prompt_tokens=64, chunk_tokens=64, matched_blocks=1, required_blocks=4,
                           blocks=[0, 1, 2, 3], prefixes=prefixes)
    return planned.offsets, planned.blocks, planned.end_block


def test_a_prefill_saves_where_it_was_planned() -> None:
    states, planner = planner_of(slots=4)
    assert planner.device_arrays(2) is None
    assert plan(planner, row=1) == ((16, 48), (0, 2), 3)
    arrays = planner.device_arrays(2)
    assert arrays is not None
    assert (arrays[0].tolist(), arrays[1].tolist()) == ([[0, 0, 0], [16, 48, 0]], [0, 2])
    commit = planner.commit()
    assert commit.from_scratch[["src_slot", "dst_slot"]].tolist() == [(0, states.slot_of(0)), (1, states.slot_of(2))]
    assert commit.from_live[["src_slot", "dst_slot"]].tolist() == [(5, states.slot_of(3))] and commit.dropped == 0
    assert states.find_state([10, 20, 30, 40]) is None
    with pytest.raises(InvalidState):
        planner.commit()
    planner.publish()
    assert states.find_state([10, 20, 30, 40]) == FoundState(3, 3, states.slot_of(3))
    assert states.restore(2, 0, StateTag(48, (3, 2), 7))[0] == "match"
    planner.check_invariants()
    states.check_invariants()


def test_a_commit_may_be_short_of_slots_or_be_abandoned() -> None:
    states, planner = planner_of(slots=1)
    plan(planner)
    assert planner.commit().dropped == 2
    planner.abandon()
    assert states.info().free_slots == 1
    plan(planner)
    planner.clear()
    commit = planner.commit()
    assert len(commit.from_scratch) == len(commit.from_live) == 0
    states.close()  # the planner keeps the allocator alive
    planner.publish()
    planner.close()


def test_a_planner_tells_of_victims_when_its_allocator_is_closed() -> None:
    reported: list[int] = []
    states = SlotAllocator(blocks=8, slots=1, external_blocks=True,
                           on_victim=lambda victim: reported.append(victim.block))
    states.retain_blocks(range(5))
    states.register_blocks(range(5), [10, 20, 30, 40, 50])
    states.allocate_slots([4])
    states.release_blocks([4])
    planner = CheckpointPlanner(states, block_size_tokens=16, alignment_tokens=8, max_rows=2, layout_fingerprint=7)
    states.close()
    del states
    gc.collect()
    plan(planner)
    assert planner.commit().dropped == 2
    assert reported == [4]


def test_a_chunk_outside_its_prompt_is_refused() -> None:
    _, planner = planner_of(slots=1)
    for change in ({"chunk_tokens": 65}, {"skip_tokens": 65}, {"blocks": [0]}, {"prefixes": [1, 2]}):
        chunk = {"live_slot": 5, "prompt_tokens": 64, "chunk_tokens": 64, "required_blocks": 4,
                 "blocks": [0, 1, 2, 3], "prefixes": np.ones((4, 2), np.uint64), **change}
        with pytest.raises(InvalidArgument):
            planner.plan(0, **chunk)
    with pytest.raises(InvalidArgument):
        plan(planner, row=2)
    assert len(planner.commit().from_scratch) == 0


def test_scratch_is_bounded_by_tokens_and_requests() -> None:
    assert scratch_slots_bound(2048, 256, 4) == 8
    assert scratch_slots_bound(2048, 256, 2) == 6
