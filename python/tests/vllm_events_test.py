# SPDX-License-Identifier: Apache-2.0
"""Events of the connector for vLLM: prompts restore the contents that were announced."""
from __future__ import annotations

import pathlib
import random
import sys
import time
import types
from typing import Any

import numpy as np
import pytest

from conftest import seeds
from stateport.hashing import Hasher
from stateport.vllm.events import _vllm as vllm_classes
from stateport.vllm.events import of_vllm
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.prompts import media_of, namespace_of

pytest.importorskip("torch")
pytest.importorskip("msgspec")
from vllm_stand_in import BLOCK, HASHED, KV_GROUPS, STATE_GROUPS, Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")


class Announced:
    """A router that knows no states counts KV; one that does looks for the deepest state."""

    def __init__(self) -> None:
        self.kv: dict[str, dict[bytes, Any]] = {}
        self.states: dict[str, dict[bytes, Any]] = {}
        self.sessions: set[str | None] = set()

    def hear(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            group, medium = event["group_idx"], event["medium"]
            assert group in (KV_GROUPS[0], STATE_GROUPS[0])
            held = (self.kv if group == KV_GROUPS[0] else self.states).setdefault(medium, {})
            for i, name in enumerate(event["block_hashes"]):
                if event["type"] == "BlockStored":
                    assert name not in held and event["block_size"] == BLOCK
                    parent = event["block_hashes"][i - 1] if i else event["parent_block_hash"]
                    held[name] = (parent, event["token_ids"][BLOCK * i:BLOCK * (i + 1)])
                    self.sessions.add(event.get("session_id"))
                else:
                    assert event["type"] == "BlockRemoved"  # never all: vLLM announces pages of its own
                    del held[name]

    def usable(self, request: Request) -> int:
        """Tokens before the last one that can be restored from the host."""
        names = request.block_hashes[BLOCK // HASHED - 1::BLOCK // HASHED]
        kv, states = self.kv.get("CPU", {}), self.states.get("CPU", {})
        best = 0
        for i, name in enumerate(names[:(len(request.all_token_ids) - 1) // BLOCK]):
            if name not in kv:
                break
            parent, tokens = kv[name]
            assert parent == (names[i - 1] if i else None)
            assert tokens == request.all_token_ids[BLOCK * i:BLOCK * (i + 1)]
            best = BLOCK * (i + 1) if name in states else best
        return best


def test_prompts_restore_what_was_announced(tmp_path: pathlib.Path) -> None:
    restored = 0
    for seed in seeds(2):
        print("seed", seed)
        chance = random.Random(seed)
        options = ConnectorOptions(host_bytes=chance.choice([20_000, 1 << 20]), checkpoint_tokens=8,
                                   decode_checkpoint_tokens=4, kv_events=True)
        engine, announced = Engine(options, chance=random.Random(seed)), Announced()
        prompts: list[list[int]] = [[]]
        for number in range(40):
            shared = chance.choice(prompts)
            more = [chance.randrange(9) for _ in range(chance.randint(1, 40))]
            prompts.append((shared[:chance.randint(0, len(shared))] + more)[:150])
            request = Request(f"{number} 0", list(prompts[-1]), len(prompts[-1]), chance.choice([None, "salt"]))
            request.session_id = f"session {number}"  # type: ignore[attr-defined]
            announced.hear(engine.side.take_events())
            wanted = announced.usable(request)
            engine.add(request)
            engine.drain()
            assert request.restored == wanted
            restored += wanted
        announced.hear(engine.side.take_events())
        assert engine.side.take_events() == [] and any(announced.kv.values())
        assert None not in announced.sessions and len(announced.sessions) > 5
        engine.side.reset()
        announced.hear(engine.side.take_events())
        assert not any(announced.kv.values()) and not any(announced.states.values())
        engine.close()
    assert restored > 200


def test_contents_after_a_reset_and_in_files_are_announced(tmp_path: pathlib.Path) -> None:
    # Files have room for the images before the reset too: an image that is being written keeps its room meanwhile.
    options = ConnectorOptions(host_bytes=1 << 20, folder=str(tmp_path), file_bytes=1 << 21, checkpoint_tokens=8,
                               decode_checkpoint_tokens=0, kv_events=True)
    tokens = list(range(50))
    engine, announced = Engine(options, chance=random.Random(1)), Announced()
    for number in range(3):
        if number == 1:
            engine.side.reset()
        request = Request(f"{number} 0", list(tokens), len(tokens))
        engine.add(request)
        engine.drain()
        announced.hear(engine.side.take_events())
        assert announced.usable(request) == 48
        assert request.restored == (48 if number == 2 else 0)
    give_up = time.monotonic() + 60
    while len(announced.kv.get("STORAGE", ())) < 12:  # files are written by threads
        assert time.monotonic() < give_up
        engine.step()
        announced.hear(engine.side.take_events())
    assert announced.kv["STORAGE"].keys() == announced.kv["CPU"].keys() and len(announced.kv["CPU"]) == 12
    engine.close()


def hashed_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that are hashed for names, call by call."""
    counts: list[int] = []
    append = Hasher.append

    def count(self: Hasher, tokens: Any, media: Any = ()) -> Any:
        counts.append(len(tokens))
        return append(self, tokens, media)

    monkeypatch.setattr(Hasher, "append", count)
    return counts


def test_each_token_of_a_request_is_hashed_once_for_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = hashed_tokens(monkeypatch)
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, decode_checkpoint_tokens=4, kv_events=True)
    engine, announced = Engine(options, chance=random.Random(1)), Announced()
    one = Request("a 20", list(range(42)), 42)
    engine.add(one)
    engine.drain()
    announced.hear(engine.side.take_events())
    assert announced.usable(one) == 60 and sum(counts) == 60 and len(counts) > 3
    assert not engine.side._events._names  # type: ignore[union-attr]
    engine.close()


def test_tokens_that_change_and_other_names_are_hashed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ConnectorOptions(host_bytes=1 << 20, kv_events=True), chance=random.Random(1))
    counts, events = hashed_tokens(monkeypatch), engine.side._events
    assert events is not None
    one = Request("a 0", list(range(42)), 42)

    def name(tokens: int, resets: int = 0, epoch: int = 0) -> Any:
        events.name(one, np.asarray(one.all_token_ids[:tokens], np.int32), resets, epoch)
        known = events._names["a 0"]
        with Hasher(BLOCK, namespace=namespace_of(one, resets), seed=engine.side._hash_seed, epoch=epoch) as hasher:
            whole = len(known.tokens)
            _, wanted = hasher.append(np.asarray(one.all_token_ids[:whole], np.int32), media_of(one, whole))
        assert known.prefixes.tolist() == wanted.tolist()
        counts.pop()
        taken, counts[:] = counts[:], []
        return taken

    assert name(22) == [20] and name(42) == [20] and name(30) == []
    one.all_token_ids[34] = 99  # a request that takes more input
    assert name(42) == [40]
    assert name(42, resets=1) == [40] and name(42, resets=1, epoch=1) == [40]
    image = types.SimpleNamespace(identifier="cat", mm_position=types.SimpleNamespace(offset=18))
    one.mm_features = [image]
    assert name(22, resets=1, epoch=1) == [20] and name(42, resets=1, epoch=1) == [20]
    events.ended("a 0")
    events.ended("a 0")
    engine.close()


def test_without_the_option_nothing_is_collected() -> None:
    engine = Engine(ConnectorOptions(host_bytes=1 << 20), chance=random.Random(1))
    engine.add(Request("a 0", list(range(50)), 50))
    engine.drain()
    assert engine.side.take_events() == []
    engine.close()


def test_events_become_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under classes that are made as vLLM's."""
    msgspec = pytest.importorskip("msgspec")

    class Event(msgspec.Struct, omit_defaults=True, tag=True):  # type: ignore[misc, call-arg, name-defined]
        block_hashes: list[int]
        medium: str | None = None
        group_idx: int | None = None
        locality: str | None = None

    class BlockStored(Event):  # type: ignore[misc]
        parent_block_hash: int | None = None
        token_ids: list[int] = []
        block_size: int = 0
        lora_id: int | None = None
        lora_name: str | None = None
        extra_keys: list[Any] | None = None
        kv_cache_spec_kind: str | None = None
        session_id: str | None = None

    class BlockRemoved(Event):  # type: ignore[misc]
        pass

    modules: dict[str, Any] = {name: types.ModuleType(name) for name in (
        "vllm", "vllm.distributed", "vllm.distributed.kv_events", "vllm.v1", "vllm.v1.core",
        "vllm.v1.core.kv_cache_utils")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm.distributed"].kv_events = modules["vllm.distributed.kv_events"]
    modules["vllm.distributed.kv_events"].BlockStored = BlockStored
    modules["vllm.distributed.kv_events"].BlockRemoved = BlockRemoved
    modules["vllm.v1.core.kv_cache_utils"].maybe_convert_block_hash = lambda name: int.from_bytes(name, "big") % 2**64
    vllm_classes.cache_clear()
    engine = Engine(ConnectorOptions(host_bytes=1 << 20, kv_events=True), chance=random.Random(1))
    request = Request("a 0", list(range(50)), 50)
    engine.add(request)
    engine.drain()
    plain = engine.side.take_events()
    engine.side.reset()
    plain += engine.side.take_events()
    decoded = msgspec.json.decode(msgspec.json.encode(of_vllm(plain)))
    numbers = {name: int.from_bytes(name, "big") % 2**64 for name in request.block_hashes}
    assert len(plain) > 2 and {event["type"] for event in plain} == {"BlockStored", "BlockRemoved"}
    for event, wire in zip(plain, decoded, strict=True):
        wanted = {name: value for name, value in event.items() if value is not None}
        wanted["block_hashes"] = [numbers[name] for name in event["block_hashes"]]
        if "parent_block_hash" in wanted:
            wanted["parent_block_hash"] = numbers[event["parent_block_hash"]]
        assert wire == wanted
    vllm_classes.cache_clear()
    engine.close()
