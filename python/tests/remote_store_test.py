# SPDX-License-Identifier: Apache-2.0
"""Stores that machines share, as far as no server is needed; that of Mooncake over a client that pretends."""

import collections
import contextlib
import gc
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest

import stateport as sp
from remote_store_conformance import CASES, answers, behaves_like_a_map, bytes_of_seed, exists, get, put, room_of
from stateport._library import calls

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


def test_memory_lives_though_the_lists_that_named_it_are_used_again() -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        for i in range(2):
            pieces = [bytes_of_seed(i, 1000)]
            seen = weakref.ref(pieces[0])
            batch: list[Any] = [pieces[0]] if i else [pieces]
            store.put([i], [f"key{i}"], batch)
            batch.clear()
            pieces.clear()
            gc.collect()
            assert seen() is not None
            assert answers(store, 1) == {i: ("done", 1000)}
            assert np.array_equal(get(store, f"key{i}", 1000)[1], bytes_of_seed(i, 1000))


def test_registered_memory_lives_until_it_is_unregistered() -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20), needs_registration=True) as store:
        memory = bytes_of_seed(1, 1000)
        seen, place = weakref.ref(memory), (memory.ctypes.data, memory.size)
        store.register(memory)
        del memory
        gc.collect()
        assert seen() is not None
        store.unregister(place)
        gc.collect()
        assert seen() is None


def test_memory_lives_though_an_interrupt_follows_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    real = calls.remote_store_put

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(calls, "remote_store_put", interrupted)
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        memory = bytes_of_seed(1, 1000)
        seen = weakref.ref(memory)
        with contextlib.suppress(KeyboardInterrupt):
            store.put([1], ["a"], [memory])
        del memory
        gc.collect()
        assert seen() is not None
        assert answers(store, 1) == {1: ("done", 1000)}
        assert seen() is None


def test_rows_of_a_matrix_are_objects() -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        rows = np.arange(20, dtype=np.uint8).reshape(2, 10)
        store.put(np.arange(2), ["a", "b"], rows)
        assert answers(store, 2) == {0: ("done", 10), 1: ("done", 10)}
        assert np.array_equal(get(store, "b", 10)[1], rows[1])
        place: Any = (np.int64(rows.ctypes.data), np.int64(20))
        store.put([1], ["c"], [place])
        assert answers(store, 1) == {1: ("done", 20)}
        store.exists([], [])
        assert not len(store.poll())


@pytest.mark.parametrize(("use", "text"), [
    (lambda store, memory: store.put([1], ["a"], None), "memory is a NoneType"),
    (lambda store, memory: store.get([1], ["a"], None), "memory is a NoneType"),
    (lambda store, memory: store.put([1], ["a"], [b"abc"]), "memory[0] is a bytes"),
    (lambda store, memory: store.put([1], ["a"], [[memory, None]]), "memory[0] is a NoneType"),
    (lambda store, memory: store.put([1], ["a"], [memory[::2]]), "memory[0] has the type uint8 and the shape [5]"),
    (lambda store, memory: store.put([1], ["a"], [(-1, 5)]), "memory[0] is (-1, 5)"),
    (lambda store, memory: store.put([1], ["a"], []), "memory has 0 elements, and tickets has 1"),
    (lambda store, memory: store.exists([1], ["a", "b"]), "keys has 2 elements, and tickets has 1"),
    (lambda store, memory: store.exists([1, -1], ["a", "b"]), "tickets[1] is -1"),
    (lambda store, memory: store.exists([1.5], ["a"]), "tickets[0] is 1.5"),
    (lambda store, memory: store.exists([[1]], ["a"]), "tickets[0] is [1]"),
    (lambda store, memory: store.exists([3, 3], ["a", "b"]), "tickets names one twice"),
    (lambda store, memory: store.exists([1], [None]), "keys[0] is a NoneType"),
    (lambda store, memory: store.exists([1, 2], ["a", "b\udc80"]), "keys[1] must be a text"),
    (lambda store, memory: store.exists([1], ["a b"]), "key"),
    (lambda store, memory: store.poll(-1), "capacity is -1"),
    (lambda store, memory: sp.InProcessObjects(-5), "capacity_bytes is -5"),
])
def test_bad_batches_are_refused_and_leave_no_ticket_behind(use: Any, text: str) -> None:
    with sp.InProcessStore(sp.InProcessObjects(1 << 20)) as store:
        with pytest.raises(sp.InvalidArgument) as raised:
            use(store, np.zeros(10, np.uint8))
        assert text in str(raised.value)
        store.exists([1, 2, 3], ["a", "b", "c"])
        assert len(answers(store, 3)) == 3


def test_an_exception_of_a_client_is_a_refusal_or_a_failure() -> None:
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
    """Does nothing right."""

    needs_registration = False

    def __init__(self) -> None:
        self.closed = threading.Event()

    def register(self, address: int, size: int) -> None:
        raise ValueError("no")

    def unregister(self, address: int, size: int) -> None: ...

    def put(self, requests: list[sp.RemoteRequest]) -> list[str]:
        raise ValueError("no")

    def get(self, requests: list[sp.RemoteRequest]) -> list[tuple[str, int]]:
        return []

    def exists(self, requests: list[sp.RemoteRequest]) -> Any:
        assert requests == [sp.RemoteRequest("a")]
        return ["no such status"]

    def remove(self, requests: list[sp.RemoteRequest]) -> list[str]:
        return ["done"] * (len(requests) + 1)

    def close(self) -> None:
        self.closed.set()


def test_a_client_that_does_nothing_right_does_no_harm() -> None:
    client = EndlessClient()
    store = sp.ClientStore(client)
    memory = np.zeros(10, np.uint8)
    with pytest.raises(sp.BackendError):
        store.register(memory)
    for call, arguments in ((store.put, [[memory]]), (store.get, [[memory]]), (store.exists, []), (store.remove, [])):
        call([7], ["a"], *arguments)
        assert answers(store, 1) == {7: ("failed", 0)}
    assert not client.closed.is_set()
    store.close()
    assert client.closed.is_set()


class TellingClient(EndlessClient):
    """Answers `told`."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: Any = []

    def get(self, requests: list[sp.RemoteRequest]) -> Any:
        return self.reported

    exists = get


@pytest.mark.parametrize(("reported", "found"), [
    ([("done",), ("done", 5)], [("failed", 0), ("done", 5)]),
    ([("done", 5, 5), ("done", 0)], [("failed", 0), ("done", 0)]),
    ([("done", None), ("gone", None)], [("failed", 0), ("gone", 0)]),
    ([("done", -8), ("gone", 7)], [("failed", 0), ("gone", 0)]),
    ([("done", 1 << 70), ("done", 5)], [("failed", 0), ("done", 5)]),
    ([("done", 5.0), ("done", np.int64(3))], [("failed", 0), ("done", 3)]),
    ([(["done"], 5), ("done", 5)], [("failed", 0), ("done", 5)]),
    ([None, "done"], [("failed", 0), ("failed", 0)]),
    ([("done", 5)], [("failed", 0), ("failed", 0)]),
    ([("done", 5)] * 3, [("failed", 0), ("failed", 0)]),
    (None, [("failed", 0), ("failed", 0)]),
])
def test_an_answer_that_is_none_fails_its_request_and_is_logged(
        reported: Any, found: list[tuple[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    client = TellingClient()
    with sp.ClientStore(client) as store:
        for _ in range(2):
            client.reported = reported
            memory = np.zeros(10, np.uint8)
            store.get([1, 2], ["a", "b"], [memory, memory])
            assert answers(store, 2) == dict(zip((1, 2), found, strict=True))
        mistakes = [record.getMessage() for record in caplog.records if record.name == "stateport.client_store"]
        assert len(mistakes) == 1 and mistakes[0].startswith("client TellingClient: get ")


def test_any_iterable_answers(caplog: pytest.LogCaptureFixture) -> None:
    client = TellingClient()
    with sp.ClientStore(client) as store:
        client.reported = (status for status in ("gone", "done", "failed"))
        store.exists([1, 2, 3], ["a", "b", "c"])
        assert answers(store, 3) == {1: ("gone", 0), 2: ("done", 0), 3: ("failed", 0)}

        def breaks() -> Any:
            yield "done"
            raise TimeoutError("no answer in time")

        client.reported = breaks()
        store.exists([1], ["a"])
        assert answers(store, 1) == {1: ("failed", 0)}
    assert "exists raised TimeoutError: no answer in time" in caplog.text


class Interrupted(BaseException):
    """No Exception, as asyncio.CancelledError is none."""


class InterruptedClient(EndlessClient):
    def __init__(self) -> None:
        super().__init__()
        for name in ("register", "put", "get", "exists", "remove", "close"):
            setattr(self, name, self._raise)

    def _raise(self, *_: Any) -> Any:
        raise Interrupted


def test_no_exception_of_a_client_becomes_an_answer() -> None:
    """ctypes leaves the result of a callback that raises to chance."""
    store, memory = sp.ClientStore(InterruptedClient()), np.zeros(10, np.uint8)
    with pytest.raises(sp.BackendError):
        store.register(memory)
    store.put([1], ["a"], [memory])
    store.remove([2], ["a"])
    assert answers(store, 2) == {1: ("failed", 0), 2: ("failed", 0)}
    store.close()


def test_a_client_has_all_functions() -> None:
    client: Any = EndlessClient()
    client.get = None
    with pytest.raises(sp.InvalidArgument, match="client is a EndlessClient, which has no function get"):
        sp.ClientStore(client)
    assert not client.closed.is_set()


class SlowlyClosed(EndlessClient):
    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def close(self) -> None:
        self.closed.set()
        assert self.may_end.wait(60)


def test_a_store_that_another_thread_closes_is_closed() -> None:
    client = SlowlyClosed()
    store = sp.ClientStore(client)
    thread = threading.Thread(target=store.close)
    thread.start()
    try:
        assert client.closed.wait(60)
        store.close()
        with pytest.raises(sp.ClosedError, match="this ClientStore is closed"):
            store.poll()
    finally:
        client.may_end.set()
        thread.join()


class OwnedMooncake(PretendedMooncake):
    """A client that was set up for a store. It must not be closed while one of its calls runs."""

    made: "list[OwnedMooncake]" = []

    def __init__(self) -> None:
        super().__init__({})
        self.made.append(self)
        self.closed = 0

    def setup(self, *_: Any) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> list[OwnedMooncake]:
    module: Any = types.ModuleType("mooncake.store")
    module.MooncakeDistributedStore = OwnedMooncake
    monkeypatch.setitem(sys.modules, "mooncake", types.ModuleType("mooncake"))
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    OwnedMooncake.made.clear()
    return OwnedMooncake.made


def test_a_client_of_the_store_ends_with_its_last_user(mooncake: list[OwnedMooncake]) -> None:
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (64,))])
    whole = sp.SharedLayout(sp.ModelLayout(spec, [sp.TensorSplit(0, (sp.SplitBand(64, 8),))]))
    store = sp.MooncakeStore.connect()
    tiers = sp.StateTiers(states=[sp.StateStore(spec, 2)], model="a",
                          remote=sp.RemoteOptions(store, [whole], staging_bytes=4 << 20))
    store.close()
    assert mooncake[0].closed == 0 and mooncake[0].buffers
    tiers.close()
    assert mooncake[0].closed == 1 and not mooncake[0].buffers


def test_a_client_is_closed_if_its_store_cannot_be_made(mooncake: list[OwnedMooncake]) -> None:
    with pytest.raises(sp.InvalidArgument, match="queue_bytes is -1"):
        sp.MooncakeStore.connect(queue_bytes=-1)
    assert mooncake[0].closed == 1


def test_a_client_of_the_engine_keeps_no_memory_of_a_closed_store() -> None:
    client = PretendedMooncake({})
    with sp.MooncakeStore(client) as store:
        room_of(store, 100)
        assert client.buffers
    assert not client.buffers


def test_a_client_that_answers_too_much_has_failed() -> None:
    client = PretendedMooncake({})
    with sp.MooncakeStore(client) as store:
        client.batch_is_exist = lambda keys: [1] * (len(keys) + 1)  # type: ignore[method-assign]
        assert exists(store, "a") == "failed"
        del client.batch_is_exist
        assert exists(store, "a") == "gone"


def test_no_text_of_a_valkey_store_shows_the_password() -> None:
    for arguments in ({"url": "valkey://:hunter2@"}, {"url": "valkey://:hunter2@host", "port": 70000},
                      {"password": "hunter2", "unix_socket": "/no/such/socket"}, {"password": "hunter2", "lanes": -1},
                      {"password": "hunter2\0", "host": "a"}, {"password": "hunter2\udc80"}, {"password": b"hunter2"},
                      {"url": "valkey://:hunter2@host", "ca_file": "x"}):
        with pytest.raises(sp.Error) as problem:
            sp.ValkeyStore(**arguments)  # type: ignore[arg-type]
        assert "hunter2" not in str(problem.value)


def test_connect_without_mooncake_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", None)
    with pytest.raises(sp.BackendError, match="needs the package mooncake-transfer-engine: .*mooncake"):
        sp.MooncakeStore.connect()
