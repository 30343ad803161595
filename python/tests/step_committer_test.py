# SPDX-License-Identifier: Apache-2.0
"""StepCommitter against numpy."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds

pytestmark = pytest.mark.usefixtures("runtime")

WINDOW, DIM, STEPS, REQUESTS = 3, 5, 4, 6


def specs(layout: str) -> sp.StateSpec:
    return sp.StateSpec([sp.TensorSpec("conv", "float32", (WINDOW, DIM), conv_layout=layout),
                         sp.TensorSpec("recurrent", "float32", (2, 4))])


def scratch(layout: str, seed: int) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(seed)
    strip = draw.random((REQUESTS, WINDOW + STEPS + 1, DIM), np.float32)
    return [strip if layout == "sd" else np.ascontiguousarray(strip.transpose(0, 2, 1)),
            draw.random((REQUESTS, STEPS, 2, 4), np.float32)]


@pytest.mark.parametrize("layout", ["sd", "ds"])
def test_random_commits_match_numpy(layout: str) -> None:
    for seed in seeds(60):
        print("seed", seed)
        draw, source = random.Random(seed), scratch(layout, seed)
        store = sp.StateStore(specs(layout), 2 * REQUESTS + 2)
        store.clear(range(store.slots))
        sp.synchronize()
        committer = sp.StepCommitter(source, store, steps=STEPS)
        rows = draw.randint(0, REQUESTS)
        slots = draw.sample(range(store.slots), 2 * rows)
        steps = [[draw.randint(-1, STEPS - 1) for _ in range(rows)] for _ in range(2)]
        arrays = [np.array(row, np.int32) for row in (steps[0], slots[:rows], steps[1], slots[rows:])]
        committer.commit(arrays[0], arrays[1], track_step=arrays[2], track_slot=arrays[3])
        sp.synchronize()
        conv, state = store.tensor(0), store.tensor(1)
        for part in (0, 1):
            for row in range(rows):
                step, slot = steps[part][row], slots[part * rows + row]
                window = np.zeros((WINDOW, DIM), np.float32)
                if step >= 0:
                    strip = source[0][row] if layout == "sd" else source[0][row].T
                    window = strip[step:step + WINDOW]
                assert np.array_equal(conv[slot] if layout == "sd" else conv[slot].T, window), (seed, row)
                assert np.array_equal(state[slot], source[1][row, step] if step >= 0 else np.zeros((2, 4))), seed


@pytest.mark.parametrize(("change", "text"), [
    (lambda rows: rows[:1], "scratch has 1 elements"),
    (lambda rows: [rows[0], rows[1][:, :2]], "scratch[1] has the shape"),
    (lambda rows: [rows[0][:, :4], rows[1]], "scratch[0] has the shape [6, 4, 5], and must have [6, 6, 5]"),
    (lambda rows: [rows[0].astype("f8"), rows[1]], "scratch[0] has elements of type float64"),
    (lambda rows: [rows[0], rows[1].transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)], "must be dense there"),
    (lambda rows: [rows[0], rows[1][:5]], "scratch[1] has the shape [5,"),
])
def test_scratch_that_does_not_fit_is_refused(change: Any, text: str) -> None:
    store = sp.StateStore(specs("sd"), 4)
    with pytest.raises(sp.InvalidArgument) as raised:
        sp.StepCommitter(change(scratch("sd", 1)), store, steps=STEPS)
    assert text in str(raised.value)


def test_targets_that_do_not_fit_are_refused() -> None:
    committer = sp.StepCommitter(scratch("sd", 1), sp.StateStore(specs("sd"), 4), steps=STEPS)
    ones = np.ones(3, np.int32)
    for arguments, text in (((ones, ones[:2]), "live_slot has the shape [2]"), ((ones.astype("i8"), ones), "int64"),
                            ((np.ones(7, np.int32), np.ones(7, np.int32)), "7"), ((ones, [1, 2, 3]), "live_slot is a")):
        with pytest.raises(sp.InvalidArgument) as raised:
            committer.commit(*arguments)
        assert text in str(raised.value)
