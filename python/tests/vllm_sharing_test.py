# SPDX-License-Identifier: Apache-2.0
"""Engines with the connector for vLLM that share a store, under the stand-in for vLLM."""
from __future__ import annotations

import ctypes
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport._arrays import TRANSFER, TRANSFER_RESULT
from stateport.client_store import ClientStore, RemoteRequest
from stateport.vllm import loads as loads_module
from stateport.vllm import scheduler, worker
from stateport.vllm.loads import Answers, Load, Loads
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.sharing import check_store, open_store

pytest.importorskip("torch")
from vllm_connector_test import converse, prompt, request, serve  # noqa: E402
from vllm_stand_in import WINDOWS, Engine  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

SHARING = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, decode_checkpoint_tokens=4,
                           remote={"store": "mooncake"})


class SlowClient:
    """Objects in a dictionary. While `status` is None no find is answered; "failed": all fail. It counts its
    requests."""

    needs_registration = False

    def __init__(self) -> None:
        self.status: str | None = "done"
        self.finds = 0
        self._objects: dict[str, bytes] = {}

    def register(self, address: int, size: int) -> None:
        pass

    def unregister(self, address: int, size: int) -> None:
        pass

    def put(self, requests: list[RemoteRequest]) -> list[str]:
        for one in requests:
            self._objects[one.key] = b"".join(ctypes.string_at(*piece) for piece in one.pieces)
        return ["done"] * len(requests)

    def get(self, requests: list[RemoteRequest]) -> list[tuple[str, int]]:
        return [("gone", 0)] * len(requests)

    def exists(self, requests: list[RemoteRequest]) -> list[str]:
        self.finds += len(requests)
        until = time.monotonic() + 30
        while self.status is None and time.monotonic() < until:
            time.sleep(0.0005)
        return ["failed" if self.status == "failed" else "done" if one.key in self._objects else "gone"
                for one in requests]

    def remove(self, requests: list[RemoteRequest]) -> list[str]:
        return ["gone"] * len(requests)

    def close(self) -> None:
        pass


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[sp.InProcessObjects]:
    """All stores that engines open are of these objects."""
    objects = sp.InProcessObjects(1 << 26)
    monkeypatch.setattr(worker, "open_store", lambda remote: sp.InProcessStore(objects))
    yield objects
    objects.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowClient:
    client = SlowClient()
    monkeypatch.setattr(worker, "open_store", lambda remote: ClientStore(client))
    return client


def engine_of(options: ConnectorOptions = SHARING, **more: Any) -> Engine:
    return Engine(options, chance=random.Random(1), **more)


def settled(engine: Engine) -> dict[str, int]:
    """The engine's counters once nothing is under way."""
    engine.step()
    while engine.side.cache.transfers_under_way:
        engine.step()
    engine.side.cache.check_invariants()
    return engine.side.counters.values


def test_an_engine_restores_states_of_another_one_and_the_other_way_round(shared: sp.InProcessObjects) -> None:
    first, second = engine_of(ranks=2), engine_of(ranks=2)
    assert serve(first, request("a", prompt(42))) == [0]
    settled(first)
    branch = prompt(42)[:26] + prompt(20, 3)
    assert serve(second, request("a", prompt(42)), request("b", branch)) == [40, 24]
    values = settled(second)
    assert values["hit_tokens:remote"] == 64 and values["hits:remote"] == 2 and "hit_tokens:host" not in values
    assert values["asked_images"] > values["found_images"] > 0 and "failed_transfers" not in values
    assert values["loaded_bytes:remote"] > 0 and "late_loads" not in values
    assert serve(first, request("b", branch)) == [44]
    # These requests of the cache have the numbers of the requests that loaded before.
    assert serve(second, request("c", prompt(42)), request("d", prompt(42))) == [40, 40]
    assert values["hits:host"] == 2 and values["hits:remote"] == 2
    for engine in (first, second):
        engine.close()


def test_engines_of_another_number_of_ranks_or_another_model_share_nothing(shared: sp.InProcessObjects) -> None:
    first = engine_of()
    serve(first, request("a", prompt(42)))
    settled(first)
    second = engine_of(ranks=2)  # its second rank finds nothing, and so no rank restores anything
    assert serve(second, request("a", prompt(42))) == [0]
    assert settled(second)["asked_images"] > 0 and "found_images" not in second.side.counters.values
    for engine in (first, second):
        engine.close()


def test_states_of_decoding_are_kept_without_asking(shared: sp.InProcessObjects) -> None:
    first, second = engine_of(), engine_of()
    one = request("a", prompt(22), output=16)
    serve(first, one)
    values = settled(first)
    assert values["asked_images"] == 5  # of the prompt alone; decoded tokens are not asked for
    assert serve(second, request("b", [*one.all_token_ids, 5])) == [36]
    for engine in (first, second):
        engine.close()


def test_a_prompt_that_must_not_read_the_cache_asks_for_nothing(shared: sp.InProcessObjects) -> None:
    engine = engine_of()
    one = request("a", prompt(42))
    one.skip_reading_prefix_cache = True
    assert serve(engine, one) == [0]
    assert "asked_images" not in settled(engine)
    engine.close()


def test_after_a_reset_nothing_is_shared_with_earlier_states_or_with_others(
        shared: sp.InProcessObjects) -> None:
    first, second = engine_of(), engine_of()
    serve(first, request("a", prompt(42)))
    settled(first)
    first.side.reset()
    settled(first)
    assert serve(first, request("b", prompt(42))) == [0]
    assert serve(first, request("c", prompt(42))) == [40]  # its states from after the reset
    assert serve(first, request("d", prompt(30, 7))) == [0]
    settled(first)
    assert serve(second, request("e", prompt(30, 7))) == [0]
    assert serve(second, request("f", prompt(42))) == [40]  # from before the reset: this engine's weights are those
    first.side.reset()
    settled(first)
    assert serve(first, request("g", prompt(42))) == [0]
    for engine in (first, second):
        engine.close()


def test_a_store_that_does_not_answer_keeps_one_prompt_waiting_and_no_other(slow: SlowClient) -> None:
    engine = engine_of(dataclasses.replace(SHARING, load_wait_s=0.05))
    slow.status = None
    assert serve(engine, request("a", prompt(42), output=8)) == [0]
    values = engine.side.counters.values
    assert values["late_loads"] == 1 and slow.finds > 0
    finds = slow.finds
    assert serve(engine, request("b", prompt(42)), request("c", prompt(30, 2))) == [40, 0]  # b hits the pools
    assert values["late_loads"] == 1 and slow.finds == finds
    slow.status = "done"
    settled(engine)
    assert serve(engine, request("d", prompt(34, 4))) == [0]
    assert slow.finds > finds and values["late_loads"] == 1
    engine.close()


def test_a_branch_is_seen_by_a_prompt_that_waited_for_the_store(shared: sp.InProcessObjects) -> None:
    engine = engine_of(dataclasses.replace(SHARING, checkpoint_tokens=0))
    tokens = prompt(60)
    assert serve(engine, request("a", tokens)) == [0]
    second = request("b", tokens[:30] + prompt(20, 1))
    assert serve(engine, second) == [0]
    assert second.stops == [28, 48, 50]
    assert settled(engine)["lost_tokens:no_checkpoint"] == 28
    assert serve(engine, request("c", tokens[:30] + prompt(20, 2))) == [28]
    engine.close()


def test_more_prompts_than_the_cache_has_requests_all_restore_their_states(shared: sp.InProcessObjects) -> None:
    first, second = engine_of(), engine_of()
    serve(first, request("a", prompt(42)))
    settled(first)
    burst = [request(f"b{i}", prompt(42)[:26] + prompt(5, i)) for i in range(20)]
    assert serve(second, *burst) == [24] * 20
    assert "refused:no_room" not in settled(second)
    for engine in (first, second):
        engine.close()


def test_many_prompts_at_a_store_that_hangs_leave_the_host_in_use(slow: SlowClient) -> None:
    engine = engine_of(dataclasses.replace(SHARING, load_wait_s=0.05))
    serve(engine, request("a", prompt(42)))
    settled(engine)
    slow.status = None
    assert serve(engine, *(request(f"b{i}", prompt(30, i)) for i in range(1, 12))) == [0] * 11
    values = engine.side.counters.values
    assert 1 <= values["late_loads"] <= 3 and "refused:no_room" not in values
    saved = values["saved_states"]
    later = [request("c", prompt(42)), request("d", prompt(30, 5)), request("e", prompt(30, 20))]
    assert serve(engine, *later) == [40, 28, 0]
    assert values["saved_states"] > saved
    slow.status = "done"
    settled(engine)
    engine.close()


def test_prompts_that_are_aborted_show_that_a_store_hangs(slow: SlowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(dataclasses.replace(SHARING, load_wait_s=0))
    slow.status = None
    for hang_s, search in ((1000.0, "everywhere"), (0.0, "device")):
        monkeypatch.setattr(scheduler, "HANG_S", hang_s)
        one = request(f"a{hang_s}", prompt(42))
        engine.add(one)
        engine.step()
        engine.finish(one)
        assert engine.side._loads.search == search
    assert serve(engine, request("b", prompt(42))) == [0]
    slow.status = "done"
    settled(engine)
    assert engine.side._loads.search == "everywhere"
    engine.close()


def test_a_prompt_that_waited_too_long_still_uses_the_host_and_leaves_checkpoints(slow: SlowClient) -> None:
    engine = engine_of(dataclasses.replace(SHARING, load_wait_s=0.05))
    serve(engine, request("a", prompt(42)[:26]))
    settled(engine)
    slow.status = None
    one = request("b", prompt(42))
    assert serve(engine, one) == [24]
    assert engine.side.counters.values["late_loads"] == 1 and one.stops == [32, 40, 42]
    slow.status = "done"
    settled(engine)
    engine.close()


def test_a_store_that_fails_is_not_asked_again_at_once(slow: SlowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()
    clock = [0.0]
    monkeypatch.setattr(loads_module.time, "monotonic", lambda: clock[0] + next(now) * 1e-9)
    engine = engine_of()
    slow.status = "failed"
    assert serve(engine, request("a", prompt(42))) == [0]
    finds, values = slow.finds, engine.side.counters.values
    assert finds > 0 and values["failed_transfers"] == finds
    slow.status = "done"
    assert serve(engine, request("b", prompt(42, 1))) == [0] and slow.finds == finds
    clock[0] += loads_module.ASK_AGAIN_S + 1
    assert serve(engine, request("c", prompt(42, 2))) == [0] and slow.finds > finds
    engine.close()


def test_images_that_are_gone_when_they_are_got_are_computed(slow: SlowClient) -> None:
    """The client finds images that it then cannot deliver."""
    first, second = engine_of(), engine_of()
    serve(first, request("a", prompt(42)))
    settled(first)
    assert serve(second, request("a", prompt(42))) == [0]
    values = settled(second)
    assert values["found_images"] > 0 and values["failed_transfers"] > 0
    assert values["lost_hits:tier_failed"] == 1 and values["lost_tokens:tier_failed"] == 40
    for engine in (first, second):
        engine.close()


OPTIONS = (SHARING, dataclasses.replace(SHARING, host_bytes=16_000), dataclasses.replace(SHARING, remote_bytes=200_000),
           dataclasses.replace(SHARING, host_bytes=24_000, load_wait_s=0.001),
           dataclasses.replace(SHARING, host_bytes=16_000, folder="images", file_bytes=1 << 19))


@pytest.mark.parametrize("seed", seeds(10))
def test_random_conversations_over_a_shared_store_never_restore_a_wrong_page(
        seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    options, ranks, windows = OPTIONS[seed % len(OPTIONS)], chance.choice((1, 2)), chance.choice(WINDOWS)
    capacity = chance.choice((100_000, 1 << 24))  # it evicts
    print(f"seed {seed}: {options}, {ranks} ranks, {capacity} bytes are shared")
    objects = sp.InProcessObjects(capacity)
    monkeypatch.setattr(worker, "open_store", lambda remote: sp.InProcessStore(objects))
    prompts = [[chance.randrange(3) for _ in range(chance.randrange(4, 50))] for _ in range(3)]
    restored = 0
    for _ in range(3):
        if options.folder is not None:
            options = dataclasses.replace(options, folder=str(tmp_path_factory.mktemp("own") / "images"))
        restored += converse(Engine(options, ranks=ranks, chance=chance, budget=chance.choice((8, 20, 64)),
                                    windows=windows), chance, prompts)
    assert restored > 0
    objects.close()


# --- Loads -----------------------------------------------------------------------------------------------------------


def transfers(*rows: tuple[int, str, str, int, str]) -> Any:
    """(id, kind, from, request, content)"""
    out = np.zeros(len(rows), TRANSFER)
    for row, (number, kind, medium, whose, content) in zip(out, rows, strict=True):
        row["id"], row["kind"], row["request"] = number, loads_module.TRANSFER_KINDS.index(kind), whose
        row["from"] = loads_module.MEDIA.index(medium)
        row["image"]["tokens"] = 4 * number
        row["image"]["content"] = loads_module.CONTENTS.index(content)
    return out


def results(*rows: tuple[int, str]) -> Any:
    return np.array([(number, loads_module.TRANSFER_STATUSES.index(status), 0) for number, status in rows],
                    TRANSFER_RESULT)


def test_loads_are_counted_by_tier_and_the_slowest_one_is_named() -> None:
    loads = Loads(9)
    assert loads.begin(transfers((1, "load", "file", 3, "kv_block"), (2, "load", "remote", 3, "kv_block"),
                                 (3, "load", "file", 3, "state"), (4, "store", "device", -1, "state"),
                                 (5, "load", "file", 4, "kv_block"))) == [("file", 2, 1), ("remote", 1, 0)]
    assert (loads.of(3), loads.of(4), loads.of(5)) == (Load("remote", 12), Load("file", 20), None)
    loads.forget(3)
    assert loads.of(3) is None


def test_answers_are_counted_and_a_missing_image_is_no_failure() -> None:
    loads = Loads(9)
    loads.begin(transfers(*((i, "find", "remote", 1, "state") for i in range(4)), (7, "load", "file", 2, "state"),
                          (8, "store", "device", -1, "state")))
    assert loads.answered(results((0, "done"), (1, "gone"), (7, "gone"), (8, "no_room"))) == Answers(2, 1, 2)
    assert loads.search == "everywhere"
    assert loads.answered(results((2, "failed"), (3, "done"))) == Answers(2, 1, 1)
    assert loads.search == "known"


def test_until_all_is_answered_that_was_given_up_nothing_is_loaded() -> None:
    loads = Loads(9)
    loads.begin(transfers((1, "find", "remote", 1, "state"), (2, "find", "remote", 1, "state"),
                          (3, "find", "remote", 2, "state")))
    loads.give_up(1)
    for number, search in ((3, "device"), (1, "device"), (2, "everywhere")):
        loads.answered(results((number, "gone")))
        assert loads.search == search


# --- Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("remote", "problem"), [
    ({}, "remote.store is None, and must be one of mooncake, valkey"),
    ({"store": "files"}, "remote.store is 'files'"),
    ({"store": "mooncake", "masters": "x"}, "remote has the key 'masters', and for mooncake may have master, "),
    ({"store": "mooncake", "password_variable": "X"}, "remote has the key 'password_variable'"),
    ({"store": "mooncake", "segment_bytes": "1"}, "remote.segment_bytes is '1', and must be int"),
    ({"store": "valkey", "tls": 1}, "remote.tls is 1, and must be bool"),
    ({"store": "valkey", "lanes": True}, "remote.lanes is True, and must be int"),
    ({"store": "valkey", "url": 5}, "remote.url is 5, and must be str"),
    ({"store": "valkey", "lifetime_s": "2"}, "remote.lifetime_s is '2', and must be float")])
def test_a_store_that_is_none_is_refused_by_name(remote: dict[str, Any], problem: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=problem):
        ConnectorOptions.read({"remote": remote})


def test_stores_are_taken() -> None:
    for remote in ({"store": "mooncake", "master": "host:1", "queue_bytes": 1 << 20, "segment_bytes": 1 << 30},
                   {"store": "valkey", "url": "valkeys://host", "ca_file": "x", "connect_timeout_s": 2, "tls": True,
                    "lifetime_s": 0.5, "password_variable": "X"}):
        assert ConnectorOptions.read({"remote": remote}).remote == remote
    with pytest.raises(sp.InvalidArgument, match="remote is 'valkey', and must be dict"):
        ConnectorOptions.read({"remote": "valkey"})
    with pytest.raises(sp.InvalidArgument, match="load_wait_s is -1, and must not be negative"):
        ConnectorOptions.read({"load_wait_s": -1})
    with pytest.raises(sp.InvalidArgument, match="remote_bytes is 0, and must be at least 1"):
        ConnectorOptions.read({"remote_bytes": 0})


@pytest.mark.parametrize("remote", [{"store": "valkey", "password": "sesame"},
                                    {"store": "valkey", "url": "valkey://user:sesame@host:1"},
                                    {"store": "valkey", "url": "valkey://user:sesa#me@host:1"},
                                    {"store": "mooncake", "password": "sesame"}])
def test_a_password_among_the_options_is_refused_and_not_shown(remote: dict[str, Any]) -> None:
    with pytest.raises(sp.InvalidArgument, match="password_variable") as problem:
        check_store(remote)
    assert "sesa" not in str(problem.value)


def test_the_password_is_read_where_the_store_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = {"store": "valkey", "unix_socket": "s", "password_variable": "STATEPORT_TEST_PASSWORD"}
    given: dict[str, Any] = {}

    def valkey(url: str | None = None, *, unix_socket: str | None = None, password: str | None = None) -> Any:
        given.update(unix_socket=unix_socket, password=password)
        return given

    opener: Callable[..., Any] = valkey
    monkeypatch.setitem(open_store.__globals__["_STORES"], "valkey", opener)
    with pytest.raises(sp.InvalidArgument, match="password_variable = .* is no environment variable here") as problem:
        open_store(remote)
    assert "STATEPORT_TEST_PASSWORD" not in str(problem.value)  # it may be the password itself
    monkeypatch.setenv("STATEPORT_TEST_PASSWORD", "sesame")
    assert open_store(remote) is given
    assert given == {"unix_socket": "s", "password": "sesame"}
