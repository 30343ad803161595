# SPDX-License-Identifier: Apache-2.0
"""AlignPlanner on the host and AlignContext on the device make the same states."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds

BLOCK, COLUMNS, REQUESTS, WINDOW = 4, 12, 3, 3


def group(blocks: int) -> sp.AlignGroup:
    return sp.AlignGroup(BLOCK, blocks, conv_window=WINDOW)


def table() -> np.ndarray[Any, np.dtype[np.int32]]:
    """Every request has blocks of its own; block 0 is null."""
    return np.arange(1, 1 + REQUESTS * COLUMNS, dtype=np.int32).reshape(REQUESTS, COLUMNS)


def batch_of(draw: random.Random, computed: list[int], drafts_max: int) -> list[np.ndarray[Any, Any]]:
    rows = draw.sample(range(REQUESTS), draw.randint(1, REQUESTS))
    drafts = [draw.randint(0, drafts_max) if computed[row] else 0 for row in rows]
    scheduled = [drafts[i] + 1 if computed[row] else draw.randint(1, 9) for i, row in enumerate(rows)]
    return [np.array(values, np.int32) for values in (rows, [computed[row] for row in rows], scheduled, drafts)]


def own_table() -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.zeros((REQUESTS, COLUMNS), np.int32)


def part_of_a_wider_table() -> np.ndarray[Any, np.dtype[np.int32]]:
    """Around it lie ids of other blocks."""
    wider = np.arange(1, 1 + REQUESTS * (COLUMNS + 7), dtype=np.int32).reshape(REQUESTS, -1) % (REQUESTS * COLUMNS) + 1
    return wider[:, 3:3 + COLUMNS]


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("make_table", [own_table, part_of_a_wider_table])
def test_host_and_device_decide_alike(make_table: Callable[[], Any]) -> None:
    copies = 0
    for seed in seeds(40):
        print("seed", seed)
        draw, drafts_max = random.Random(seed), seed % 3
        ids = table()
        spec = sp.StateSpec([sp.TensorSpec("conv", "float32", (WINDOW + drafts_max, 2)),
                             sp.TensorSpec("recurrent", "float32", (3,))])
        blocks = ids.size + 1
        stores = [sp.StateStore(spec, blocks) for _ in range(2)]
        for i in (0, 1):
            values = np.random.default_rng(seed).random(stores[0].tensor(i).shape, np.float32)
            stores[0].tensor(i)[...] = stores[1].tensor(i)[...] = values
        planner = sp.AlignPlanner([group(blocks)], max_requests=REQUESTS, drafts=drafts_max)
        context = sp.AlignContext([group(blocks)], max_requests=REQUESTS, drafts=drafts_max)
        rows_of_batch = make_table()
        context.bind([stores[1]], [rows_of_batch])
        copier, computed = sp.SlotCopier(stores[0], stores[0]), [0] * REQUESTS
        planner.add_requests(range(REQUESTS), computed)
        for request in range(REQUESTS):
            context.add_request(request, 0)
        for _ in range(12):
            rows, done, scheduled, drafts = batch = batch_of(draw, computed, drafts_max)
            if (done + scheduled).max() > BLOCK * (COLUMNS - 2):
                break
            rows_of_batch[:len(rows)] = ids[rows]
            planner.pre_step(*batch, [ids[rows]])
            copier.copy_shifted(planner.plan(0))
            context.pre_step(*batch)
            sampled = np.array([draw.randint(1, 1 + d) for d in drafts], np.int32)
            planner.accept(rows, sampled)
            context.scatter_accepted(rows, sampled)
            step = planner.post_step(*batch, [ids[rows]])
            copies += step.copies
            copier.copy_shifted(planner.plan(0))
            context.post_step(*batch)
            sp.synchronize()
            planner.check_invariants()
            for i in (0, 1):
                assert np.array_equal(stores[0].tensor(i), stores[1].tensor(i)), seed
            for row, d, tokens, kept in zip(rows, drafts, scheduled, sampled, strict=True):
                computed[row] += int(tokens) - int(d) - 1 + int(kept)
    assert copies > 50


@pytest.mark.usefixtures("runtime")
def test_a_row_of_a_wider_table_ends_with_its_columns() -> None:
    """Whether a copy goes to the last column, or would go behind it: to a block that a neighbour of the row names."""
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (3,))])
    wider = np.array([[9, 1, 2, 9], [9, 3, 4, 9]], np.int32)
    for columns, slots in ((2, [0, 1, 1]), (1, [0, 1, 2])):
        store = sp.StateStore(spec, 10)
        store.tensor(0)[:, 0] = np.arange(10)
        context = sp.AlignContext([sp.AlignGroup(BLOCK, 10)], max_requests=2)
        context.bind([store], [wider[:, 1:1 + columns]])
        context.add_request(1, BLOCK)
        row, computed, scheduled, none = (np.array([n], np.int32) for n in (1, BLOCK, 1, 0))
        context.pre_step(row, computed, scheduled, none)  # from column 0 to column 1
        sp.synchronize()
        assert list(store.tensor(0)[:3, 0]) == slots
        assert list(store.tensor(0)[3:, 0]) == list(range(3, 10))


def planner_of_two() -> sp.AlignPlanner:
    planner = sp.AlignPlanner([group(30), sp.AlignGroup(2 * BLOCK, 30, retention_tokens=16)], max_requests=REQUESTS)
    planner.add_requests([0, 2], [0, 0])
    return planner


def test_a_block_is_published_only_with_exactly_its_state() -> None:
    planner = planner_of_two()
    planner.wrote(0, [5, 6], [8, -1])
    assert list(planner.publish(0, [5, 5, 6], [8, 12, 4])) == [True, False, False]
    assert list(planner.columns(0)) == [-1, -2, -1]  # the empty state, no request, the empty state
    planner.forget([0])
    assert list(planner.columns(0)) == [-2, -2, -1]
    assert list(planner.gather_accepted(0, [2, -1])) == [1, 1]


def test_retention_and_checkpoints_follow_the_rules() -> None:
    planner = planner_of_two()
    assert list(planner.retention(1, 0, 6)) == [False, True, False, True, False, True]
    assert list(planner.retention(1, 0, 3, boundaries=[9])) == [True, True, False]
    column, offset = planner.checkpoint_in(0, start=0, end=32, position=16, hash_block=4, alignment=4)
    assert (column, offset) == (6, 16)  # two columns before the end of the chunk, whose own end has its state


@pytest.mark.parametrize(("use", "text"), [
    (lambda p: p.add_requests([0], []), "computed has 0 elements, and must have 1"),
    (lambda p: p.add_requests([9], [0]), "9"), (lambda p: p.plan(7), "7"),
    (lambda p: p.pre_step([0], [0], [1], [0], [table()[:1]]), "must have one entry per group"),
    (lambda p: p.pre_step([0], [0], [1], [0], [[1, 2], [3, 4]]), "tables[0] has 1 dimensions"),
    (lambda p: sp.AlignPlanner([], max_requests=1), "group"),
    (lambda p: sp.AlignPlanner([group(4)], max_requests=1, mode="some"), "mode is 'some'"),
])
def test_bad_calls_are_refused(use: Any, text: str) -> None:
    planner = planner_of_two()
    with pytest.raises(sp.InvalidArgument) as raised:
        use(planner)
    assert text in str(raised.value)
    planner.check_invariants()
