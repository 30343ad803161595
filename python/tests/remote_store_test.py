# SPDX-License-Identifier: Apache-2.0
"""Stores that machines share, as far as no server is needed; that of Mooncake over a client that pretends."""

import collections
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import stateport as sp
from remote_store_conformance import CASES, answers, behaves_like_a_map, bytes_of_seed, exists, get, put, room_of

pytestmark = pytest.mark.skipif(not sp.has_device(), reason="a core-only build has no tiers")


class PretendedMooncake:
    """The calls of mooncake.store.MooncakeDistributedStore that MooncakeStore makes, over a dictionary that its clients
    share."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.buffers: dict[int, int] = {}
        self.failing: Any = None
        self.calls: collections.Counter[str] = collections.Counter()

    def register_buffer(self, address: int, size: int) -> int:
        self.buffers[address] = size
        return 0

    def unregister_buffer(self, address: int) -> int:
        return 0 if self.buffers.pop(address, None) else -600

    def _bytes(self, address: int, size: int) -> Any:
        assert any(begin <= address and address + size <= begin + room for begin, room in self.buffers.items())
        return (np.ctypeslib.ctypes.c_ubyte * size).from_address(address)

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if self.failing:
            raise self.failing

    def batch_put_from(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        self._count("put")
        return self._put(keys, [[address] for address in addresses], [[size] for size in sizes])

    def batch_put_from_multi_buffers(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        self._count("put in pieces")
        return self._put(keys, addresses, sizes)

    def _put(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            pieces = [bytes(self._bytes(*place)) for place in zip(places, lengths, strict=True)]
            self.objects.setdefault(key, b"".join(pieces))
        return [0] * len(keys)

    def batch_get_into(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        self._count("get")
        return self._get(keys, [[address] for address in addresses], [[size] for size in sizes])

    def batch_get_into_multi_buffers(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        self._count("get in pieces")
        return self._get(keys, addresses, sizes)

    def _get(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
        codes = []
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            data = self.objects.get(key)
            codes.append(-704 if data is None else -600 if len(data) > sum(lengths) else len(data))
            if codes[-1] > 0:
                for place in zip(places, lengths, strict=True):
                    part = data[:place[1]]
                    self._bytes(*place)[:len(part)] = part
                    data = data[len(part):]
        return codes

    def get_size(self, key: str) -> int:
        return len(self.objects[key]) if key in self.objects else -704

    def batch_is_exist(self, keys: Any) -> list[int]:
        self._count("exist")
        return [int(key in self.objects) for key in keys]

    def remove(self, key: str, force: bool) -> int:
        assert force
        return 0 if self.objects.pop(key, None) is not None else -704


def makers(kind: str) -> Any:
    if kind == "mooncake":
        objects: dict[str, bytes] = {}
        return lambda: sp.MooncakeStore(PretendedMooncake(objects))
    shared = sp.InProcessObjects(1 << 30)
    return lambda: sp.InProcessStore(shared, needs_registration=kind == "registered")


KINDS = ["in process", "registered", "mooncake"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(kind: str, case: Any) -> None:
    make = makers(kind)
    with make() as store, make() as other:
        case(store, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_behaves_like_a_map(kind: str) -> None:
    for seed in range(20):
        behaves_like_a_map(makers(kind), seed, 40)


def test_a_full_queue_raises_and_leaves_no_ticket_behind() -> None:
    for store in (sp.InProcessStore(sp.InProcessObjects(1 << 20), queue_bytes=100, queue_requests=2),
                  sp.MooncakeStore(PretendedMooncake({}), queue_bytes=100, queue_requests=2)):
        with store:
            memory = room_of(store, 101)
            with pytest.raises(sp.NoCapacity):
                store.put([1], ["a"], [memory])
            with pytest.raises(sp.NoCapacity):
                store.exists([1, 2, 3], ["a", "b", "c"])
            assert not len(store.poll())
            store.put([1], ["a"], [memory[:100]])
            assert answers(store, 1) == {1: ("done", 100)}
            assert store.info()["refused_requests"] == 4


def test_a_ticket_names_one_request_until_its_answer() -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        store.exists([1], ["a"])
        with pytest.raises(sp.InvalidArgument, match="tickets"):
            store.exists([2, 1], ["a", "b"])
        assert answers(store, 1) == {1: ("gone", 0)}
        assert exists(store, "a") == "gone"


def test_memory_lives_until_the_answer() -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        memory = bytes_of_seed(1, 1000)
        copy, gone = memory.copy(), weakref.ref(memory)
        store.put([1], ["a"], [memory])
        del memory
        gc.collect()
        assert gone() is not None
        assert answers(store, 1) == {1: ("done", 1000)}
        assert gone() is None
        assert np.array_equal(get(store, "a", 1000)[1], copy)


def test_what_a_client_raises_is_a_refusal_or_a_failure() -> None:
    client = PretendedMooncake({})
    with sp.MooncakeStore(client) as store:
        client.failing = RuntimeError("the master is gone")
        assert put(store, "a", bytes_of_seed(1, 10)) == "failed"
        assert get(store, "a", 10)[0] == "failed"
        assert exists(store, "a") == "failed"
        client.failing = None
        assert put(store, "a", bytes_of_seed(1, 10)) == "done"
    with pytest.raises(sp.ClosedError):
        store.poll()


def test_codes_of_mooncake_become_answers() -> None:
    client = PretendedMooncake({})
    with sp.MooncakeStore(client) as store:
        for code, status in ((0, "done"), (-705, "done"), (-200, "no_room"), (-800, "failed"), (-900, "failed")):
            client._put = lambda keys, *_, code=code: [code] * len(keys)  # type: ignore[method-assign]
            assert put(store, "a", bytes_of_seed(1, 10)) == status
        for code, status in ((-704, "gone"), (-703, "gone"), (-801, "damaged"), (-600, "failed"), (0, "failed")):
            client._get = lambda keys, *_, code=code: [code] * len(keys)  # type: ignore[method-assign]
            assert get(store, "a", 10)[0] == status


def test_pieces_go_without_a_copy() -> None:
    client = PretendedMooncake({})
    with sp.MooncakeStore(client) as store:
        memory = room_of(store, 100)
        store.put([1, 2], ["a", "b"], [memory, [memory[:50], memory[50:]]])
        assert answers(store, 2) == {1: ("done", 100), 2: ("done", 100)}
        assert client.calls == {"put": 1, "put in pieces": 1}


class EndlessClient:
    """Answers nothing."""

    needs_registration = False

    def __init__(self) -> None:
        self.closed = threading.Event()

    def register(self, address: int, size: int) -> None:
        raise ValueError("no")

    def unregister(self, address: int, size: int) -> None: ...

    def put(self, requests: list[sp.RemoteRequest]) -> bool:
        raise ValueError("no")

    def get(self, requests: list[sp.RemoteRequest]) -> bool:
        return False

    def exists(self, requests: list[sp.RemoteRequest]) -> bool:
        assert requests == [sp.RemoteRequest(7, "a")]
        return True

    def remove(self, requests: list[sp.RemoteRequest]) -> bool:
        return True

    def poll(self, capacity: int) -> list[tuple[int, str, int]]:
        return [(1, "no such status", 0)]

    def close(self) -> None:
        self.closed.set()


def test_a_client_that_does_nothing_right_harms_nobody() -> None:
    client = EndlessClient()
    store = sp.ClientStore(client)
    memory = np.zeros(10, np.uint8)
    with pytest.raises(sp.BackendError):
        store.register(memory)
    for call in (store.put, store.get):
        with pytest.raises(sp.NoCapacity):
            call([1], ["a"], [memory])
    store.exists([7], ["a"])
    assert not len(store.poll())
    assert not client.closed.is_set()
    store.close()
    assert client.closed.is_set()


def test_no_text_of_a_valkey_store_shows_the_password() -> None:
    for arguments in ({"url": "valkey://:hunter2@"}, {"url": "valkey://:hunter2@host", "port": 70000},
                      {"password": "hunter2", "unix_socket": "/no/such/socket"}, {"password": "hunter2", "lanes": -1},
                      {"password": "hunter2\0", "host": "a"}, {"url": "valkey://:hunter2@host", "ca_file": "x"}):
        with pytest.raises(sp.Error) as problem:
            sp.ValkeyStore(**arguments)  # type: ignore[arg-type]
        assert "hunter2" not in str(problem.value)
