# SPDX-License-Identifier: Apache-2.0
"""Events of the tiers below SGLang, in SGLang's own publisher, beside its events of the device."""

from __future__ import annotations

import json
import pathlib
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("sglang.srt.mem_cache", reason="tests/engines/sglang/run.sh installs SGLang")

import msgspec
import zmq
from sglang.srt.disaggregation.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisherFactory,
    KVEventBatch,
)
from sglang_engine import Engine
from storage_test import PAGE, Pools, open_storage, store

import stateport as sp
from stateport.sglang import _publisher
from stateport.sglang._keys import page_keys

PROMPT = list(range(100, 116))
Space = tuple[str | None, str | None]


class Router:
    """Hears one publisher, as SGLang's own classes decode its messages."""

    def __init__(self, endpoint: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.connect(endpoint)
        self.socket.subscribe(b"")
        self.decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self.held: dict[str, dict[int, BlockStored]] = {}  # by medium and hash

    def hear(self) -> None:
        while self.socket.poll(300):
            for event in self.decoder.decode(self.socket.recv_multipart()[2]).events:
                if isinstance(event, AllBlocksCleared):
                    self.held.clear()
                elif isinstance(event, BlockRemoved):
                    for name in event.block_hashes:  # may come behind an event that clears all
                        self.held.get(str(event.medium), {}).pop(name, None)
                else:
                    for name in event.block_hashes:
                        self.held.setdefault(str(event.medium), {})[name] = event


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Any]:
    """SGLang's configuration; called with a router to hear: SGLang's publisher."""
    endpoint, made = f"ipc://{tmp_path}/events", []

    def say(config: dict[str, Any] | None) -> None:
        text = None if config is None else json.dumps({"endpoint": endpoint, **config})
        monkeypatch.setattr(_publisher, "get_observability", lambda: types.SimpleNamespace(kv_events_config=text))
        monkeypatch.setattr(_publisher, "is_kv_publisher_rank", bool)

    def make() -> tuple[Any, Router]:
        made.append(EventPublisherFactory.create(_publisher.get_observability().kv_events_config))
        router = Router(endpoint)
        time.sleep(0.3)  # until the subscription has arrived
        return made[-1], router

    say({"publisher": "stateport"})
    yield types.SimpleNamespace(make=make, say=say)
    for publisher in made:
        publisher.shutdown()


def config(folder: pathlib.Path, **more: Any) -> dict[str, Any]:
    return {"host_bytes": 1 << 20, "folder": str(folder / "images"), "file_bytes": 1 << 24, "revision": "r1",
            "keep_on_flush": True, "kv_events": True, **more}


def step(engine: Engine, publisher: Any) -> None:
    """As SGLang's scheduler after each batch."""
    engine.settle()
    engine.linker._mover.wait_for_files()
    events = engine.cache.take_events()
    if events:
        publisher.publish(KVEventBatch(ts=time.time(), events=events))
    engine.linker._mover.events.wait()


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize(("space", "joined"), [((None, None), True), ((None, "salt"), True), (("key", None), False)])
def test_a_router_joins_tiers_and_device(tmp_path: pathlib.Path, publish: Any, core: str, space: Space,
                                         joined: bool) -> None:
    engine = Engine(config(tmp_path), core=core, events=True)
    publisher, router = publish.make()
    engine.request(PROMPT[:8], space)
    engine.request(PROMPT, space)
    step(engine, publisher)
    router.hear()
    device = router.held.pop("GPU")
    assert len(device) == 4
    media = {name: set(held) for name, held in router.held.items()}
    assert media == ({"CPU_PINNED": set(device), "DISK": set(device)} if joined else {})
    # After a flush the device has nothing, and the tiers still have all.
    engine.reset()
    step(engine, publisher)
    router.hear()
    assert {name: set(held) for name, held in router.held.items() if held} == media
    engine.close()


def test_a_restarted_worker_announces_files_when_they_are_used(tmp_path: pathlib.Path, publish: Any) -> None:
    engine = Engine(config(tmp_path, host_bytes=0), events=True)
    engine.request(PROMPT)
    engine.close()
    engine = Engine(config(tmp_path, host_bytes=0), events=True)
    publisher, router = publish.make()
    step(engine, publisher)
    router.hear()
    assert not router.held
    assert engine.request(PROMPT + [7] * 4) == (0, 16)
    step(engine, publisher)
    router.hear()
    assert sorted(len(held) for held in router.held.values()) == [5, 5]
    engine.close()


def test_a_flush_without_keep_on_flush_removes_all(tmp_path: pathlib.Path, publish: Any) -> None:
    engine = Engine(config(tmp_path, keep_on_flush=False), events=True)
    publisher, router = publish.make()
    engine.request(PROMPT)
    step(engine, publisher)
    engine.reset()
    step(engine, publisher)
    router.hear()
    assert not any(router.held.values())
    engine.close()


@pytest.mark.parametrize("found", [None, {"publisher": "zmq"}])
def test_another_publisher_is_refused(tmp_path: pathlib.Path, publish: Any, found: Any) -> None:
    publish.say(found)
    with pytest.raises(sp.InvalidArgument, match="kv_events is true, and --kv-events-config has the publisher"):
        Engine(config(tmp_path), events=True)


def test_the_storage_announces_its_files(tmp_path: pathlib.Path, publish: Any) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools, options={"kv_events": True})
    publisher, router = publish.make()
    tokens = list(range(2 * PAGE))
    names = _publisher.get_hash_str(tokens, None, page_size=PAGE)
    hashes = [_publisher.hash_str_to_int64(name) for name in names]
    publisher.publish(KVEventBatch(ts=0.0, events=[BlockStored(
        block_hashes=hashes, parent_block_hash=None, token_ids=tokens, block_size=PAGE, lora_id=None, medium="GPU")]))
    store(storage, pools, range(3), [2])  # of other prompts
    for content in ("kv_block", "state"):
        keys = page_keys(names, content)
        storage.files.write(keys, [storage.files.tier.layout(content).new_images(1)[0] for _ in keys])
    storage.files._events.wait()
    router.hear()
    assert set(router.held["DISK"]) == set(hashes)
    storage.close()
