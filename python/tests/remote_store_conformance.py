# SPDX-License-Identifier: Apache-2.0
"""Rules of every remote store, seen from Python."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stateport as sp

MakeStore = Callable[[], sp.RemoteStore]


def bytes_of_seed(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def answers(store: sp.RemoteStore, count: int) -> dict[int, tuple[str, int]]:
    """Waits for `count` answers; there are no more."""
    found: dict[int, tuple[str, int]] = {}
    while len(found) < count:
        for ticket, status, _, size in store.poll().tolist():
            assert ticket not in found
            found[ticket] = sp.TRANSFER_STATUSES[status], size
        time.sleep(0.0002)
    assert not len(store.poll())
    return found


def room_of(store: sp.RemoteStore, count: int) -> np.ndarray:
    memory = np.zeros(count, np.uint8)
    store.register(memory)
    return memory


def put(store: sp.RemoteStore, key: str, data: np.ndarray) -> str:
    memory = room_of(store, len(data))
    memory[:] = data
    store.put([1], [key], [memory])
    status, size = answers(store, 1)[1]
    store.unregister(memory)
    assert size == (len(data) if status == "done" else 0)
    return status


def get(store: sp.RemoteStore, key: str, count: int) -> tuple[str, np.ndarray]:
    memory = room_of(store, count)
    store.get([2], [key], [memory])
    status, size = answers(store, 1)[2]
    store.unregister(memory)
    return status, memory[:size]


def exists(store: sp.RemoteStore, key: str) -> str:
    store.exists([3], [key])
    return answers(store, 1)[3][0]


def remove(store: sp.RemoteStore, key: str) -> str:
    store.remove([4], [key])
    return answers(store, 1)[4][0]


def an_object_lives_from_its_put_to_its_removal(store: sp.RemoteStore, other: sp.RemoteStore) -> None:
    data = bytes_of_seed(1, 5000)
    assert (exists(store, "life"), remove(store, "life"), get(store, "life", 10)[0]) == ("gone", "gone", "gone")
    assert put(store, "life", data) == "done"
    assert exists(other, "life") == "done"
    status, found = get(other, "life", 9000)
    assert status == "done" and np.array_equal(found, data)
    assert get(other, "life", 4999)[0] == "foreign_layout"
    assert remove(other, "life") == "done"
    assert (exists(store, "life"), get(store, "life", 5000)[0]) == ("gone", "gone")


def a_put_leaves_what_is_there(store: sp.RemoteStore, other: sp.RemoteStore) -> None:
    first = bytes_of_seed(2, 900)
    assert put(store, "once", first) == "done"
    assert put(other, "once", bytes_of_seed(3, 900)) == "done"
    assert np.array_equal(get(other, "once", 900)[1], first)
    assert remove(store, "once") == "done"


def pieces_are_gathered_and_scattered(store: sp.RemoteStore, _: sp.RemoteStore) -> None:
    memory, data = room_of(store, 100_000), bytes_of_seed(4, 100_000)
    memory[:] = data
    where = memory.ctypes.data
    store.put([7], ["pieces"], [[memory[50_000:], memory[:10], (where + 10, 49_990), memory[:0]]])
    assert answers(store, 1) == {7: ("done", 100_000)}
    memory[:] = 0
    store.get([8], ["pieces"], [[(where + 50_000, 50_000), memory[:1], memory[1:50_000]]])
    assert answers(store, 1) == {8: ("done", 100_000)}
    assert np.array_equal(memory, data)
    store.unregister(memory)
    assert remove(store, "pieces") == "done"


def every_request_of_a_batch_is_answered_once(store: sp.RemoteStore, _: sp.RemoteStore) -> None:
    count, size = 30, 3000
    memory, data = room_of(store, count * size), bytes_of_seed(5, count * size)
    memory[:] = data
    rows, names = list(memory.reshape(count, size)), [f"batch{i}" for i in range(count)]
    tickets = list(range(100, 100 + count))
    store.put(tickets, names, rows)
    assert answers(store, count) == dict.fromkeys(tickets, ("done", size))
    memory[:] = 0
    asked = [ticket + count for ticket in tickets]
    store.get(tickets, names, rows)
    store.exists(asked, names)
    assert answers(store, 2 * count) == {**dict.fromkeys(tickets, ("done", size)), **dict.fromkeys(asked, ("done", 0))}
    assert np.array_equal(memory, data)
    store.remove(tickets, names)
    assert answers(store, count) == dict.fromkeys(tickets, ("done", 0))
    store.exists(tickets, names)
    assert answers(store, count) == dict.fromkeys(tickets, ("gone", 0))
    store.unregister(memory)


def large_objects_come_back(store: sp.RemoteStore, _: sp.RemoteStore) -> None:
    for size in (1, (1 << 20) + 1, 17 << 20):
        data = bytes_of_seed(size, size)
        assert put(store, "large", data) == "done"
        status, found = get(store, "large", size)
        assert status == "done" and np.array_equal(found, data)
        assert remove(store, "large") == "done"


def bad_arguments_are_refused(store: sp.RemoteStore, _: sp.RemoteStore) -> None:
    memory = room_of(store, 100)
    wrong: list[tuple[Any, ...]] = [
        ([1], [""], [memory]), ([1], ["two words"], [memory]), ([1], ["k" * 1025], [memory]),
        ([1], ["key"], [memory[:0]]), ([1], ["key"], [[]]), ([1], ["key"], [(0, 5)]), ([1], ["key"], ["text"]),
        ([1], ["key"], []),
        ([1, 1], ["a", "b"], [memory, memory]), ([-1], ["key"], [memory]), ([1], [b"key"], [memory]),
        ([1], ["caf\u00e9"], [memory]), ([1], ["key"], [memory.view(np.int8)]), ([1], ["key"], [memory[::2]])]
    for arguments in wrong:
        for call in (store.put, store.get):
            with pytest.raises(sp.InvalidArgument):
                call(*arguments)
    if store.info()["needs_registration"]:
        with pytest.raises(sp.InvalidArgument, match="registered"):
            store.put([1], ["key"], [np.zeros(10, np.uint8)])
    with pytest.raises(sp.InvalidArgument, match="registered"):
        store.register(memory[10:20])
    memory.flags.writeable = False
    with pytest.raises(sp.InvalidArgument, match="read-only"):
        store.get([1], ["key"], [memory])
    memory.flags.writeable = True
    assert not len(store.poll())
    assert exists(store, "key") == "gone"
    store.unregister(memory)


CASES = [an_object_lives_from_its_put_to_its_removal, a_put_leaves_what_is_there, pieces_are_gathered_and_scattered,
         every_request_of_a_batch_is_answered_once, large_objects_come_back, bad_arguments_are_refused]


def behaves_like_a_map(make: MakeStore, seed: int, steps: int) -> None:
    """Random batches of two clients against a dictionary."""
    random = np.random.default_rng(seed)
    model: dict[str, np.ndarray] = {}
    with make() as one, make() as two:
        for _ in range(steps):
            store = (one, two)[random.integers(2)]
            keys = [f"map{i}" for i in random.choice(12, random.integers(1, 6), replace=False)]
            tickets = list(range(len(keys)))
            sizes = random.integers(1, 50_000, len(keys))
            what = random.integers(10)
            if what < 7:
                memory = room_of(store, int(sizes.sum()))
                memory[:] = random.integers(0, 256, len(memory), np.uint8)
                parts = np.split(memory, np.cumsum(sizes)[:-1])
                copies = [part.copy() for part in parts]
                (store.put if what < 3 else store.get)(tickets, keys, parts)
                for ticket, (status, size) in answers(store, len(keys)).items():
                    key, held = keys[ticket], model.get(keys[ticket])
                    if what < 3:
                        assert (status, size) == ("done", sizes[ticket])
                        model.setdefault(key, copies[ticket])
                    elif held is None or len(held) > sizes[ticket]:
                        assert (status, size) == ("gone" if held is None else "foreign_layout", 0)
                    else:
                        assert (status, size) == ("done", len(held))
                        assert np.array_equal(parts[ticket][:size], held)
                store.unregister(memory)
                continue
            (store.remove if what == 9 else store.exists)(tickets, keys)
            for ticket, (status, _) in answers(store, len(keys)).items():
                assert status == ("done" if keys[ticket] in model else "gone")
                if what == 9:
                    model.pop(keys[ticket], None)
        for key in model:
            assert remove(one, key) == "done"
