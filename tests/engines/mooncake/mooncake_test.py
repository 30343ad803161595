# SPDX-License-Identifier: Apache-2.0
"""MooncakeStore over Mooncake's own client and master."""

import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from master import SEGMENT_BYTES, Master

import stateport as sp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python" / "tests"))
from remote_store_conformance import (  # noqa: E402
    CASES,
    answers,
    behaves_like_a_map,
    bytes_of_seed,
    exists,
    get,
    put,
    remove,
    room_of,
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with Master(tmp_path_factory.mktemp("mooncake") / "log") as started:
        yield started


@pytest.fixture(scope="module")
def lender(master: Master) -> Iterator[sp.MooncakeStore]:
    with master.lender() as store:
        yield store


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(master: Master, lender: sp.MooncakeStore, case: Any) -> None:
    with master.client() as store:
        case(store, lender)


def test_it_behaves_like_a_map(master: Master, lender: sp.MooncakeStore) -> None:
    behaves_like_a_map(master.client, 1, 60)


def test_a_full_store_answers_no_room(master: Master, lender: sp.MooncakeStore) -> None:
    with master.client(queue_bytes=1 << 32) as store:
        memory = room_of(store, SEGMENT_BYTES + (64 << 20))
        store.put([1], ["too-large"], [memory])
        assert answers(store, 1) == {1: ("no_room", 0)}
        assert exists(store, "too-large") == "gone"
        store.unregister(memory)


def test_an_object_that_is_removed_while_it_is_got_is_whole_or_gone(master: Master, lender: sp.MooncakeStore) -> None:
    data = bytes_of_seed(1, 8 << 20)
    with master.client() as store:
        memory = room_of(store, len(data))
        for _ in range(10):
            assert put(lender, "race", data) == "done"
            store.get([1], ["race"], [memory])
            assert remove(lender, "race") == "done"
            status, _ = answers(store, 1)[1]
            assert status in ("gone", "failed") or (status == "done" and np.array_equal(memory, data))
        store.unregister(memory)


def test_closing_leaves_no_thread_that_touches_memory(master: Master, lender: sp.MooncakeStore) -> None:
    data = bytes_of_seed(2, 16 << 20)
    assert put(lender, "left", data) == "done"
    store = master.client()
    memory = room_of(store, len(data))
    store.get(list(range(10)), ["left"] * 10, [memory] * 10)
    store.close()
    memory[:] = 7
    time.sleep(0.05)
    assert (memory == 7).all()
    assert remove(lender, "left") == "done"


def test_a_master_that_is_killed_in_the_middle_of_puts(tmp_path: pathlib.Path) -> None:
    """Nothing that is answered done is wrong, every request is answered, and the next master serves again."""
    data = [bytes_of_seed(seed, 24 << 20) for seed in range(6)]
    with Master(tmp_path / "log") as master:
        with master.lender(), master.client() as store:
            memory = room_of(store, len(data) * len(data[0]))
            rows = list(memory.reshape(len(data), -1))
            for row, values in zip(rows, data, strict=True):
                row[:] = values
            store.put(list(range(len(data))), [f"killed{i}" for i in range(len(data))], rows)
            killer = threading.Timer(0.1, master.kill)
            killer.start()
            statuses = {status for status, _ in answers(store, len(data)).values()}
            killer.join()
            assert statuses <= {"done", "failed", "no_room"}
            assert exists(store, "killed0") == "failed"
            for i, row in enumerate(rows):
                store.get([i], [f"killed{i}"], [row])
                status, _ = answers(store, 1)[i]
                assert status in ("failed", "gone") or np.array_equal(row, data[i])
        master.start()
        with master.lender(), master.client() as store:
            assert put(store, "after", data[0]) == "done"
            status, found = get(store, "after", len(data[0]))
            assert status == "done" and np.array_equal(found, data[0])


def test_a_master_that_is_away_is_refused() -> None:
    with pytest.raises(sp.BackendError, match="code"):
        sp.MooncakeStore.connect("127.0.0.1:1")
