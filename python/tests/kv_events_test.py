# SPDX-License-Identifier: Apache-2.0
"""Events of caches in the formats of engines, against a plain model, and against the hits of the caches themselves."""
from __future__ import annotations

import importlib.util
import random
import sys
from typing import Any

import numpy as np
import pytest

import stateport as sp
from combinations import COMBINATIONS, make_cache
from conftest import seeds
from request_cache_test import Engine, options_of, prompt_of
from stateport.kv_events import KvEventEncoder

msgpack = pytest.importorskip("msgspec.msgpack")

SIZE = 4
GPU, HOST, FILE, REMOTE = range(4)
NAMES = {"GPU": GPU, "CPU": HOST, "STORAGE": FILE, "CPU_PINNED": HOST, "DISK": FILE, "EXTERNAL": REMOTE}
Key = tuple[int, ...]  # the blocks of a prefix


def prefix_of(key: Key) -> list[int]:
    """Any injective name of a prefix."""
    number = 0
    for block in key:
        number = number * 7 + block + 1
    return [number + 2**63, 5] if key else [0, 0]


def tokens_of(key: Key) -> list[int]:
    return [10 * block + i for block in key for i in range(SIZE)]


class World:
    """A cache that stores and removes at random, in any medium and group, and its contents."""

    def __init__(self, draw: random.Random, groups: int) -> None:
        self.draw, self.groups = draw, groups
        self.has: set[tuple[Key, int, int]] = set()  # prefix, medium, group of states (-1: KV)
        self.named: set[Key] = set()
        self.sequence = 0

    def prompt(self) -> Key:
        return tuple(self.draw.randrange(2) for _ in range(self.draw.randint(1, 4)))

    def event(self) -> Any:
        """A random change."""
        record = np.zeros(1, sp.CACHE_EVENT)
        record["size"] = sp.CACHE_EVENT.itemsize
        gap = self.draw.random() < 0.005
        self.sequence += 2 if gap else 1
        if gap:
            self.has.clear()
        record["sequence"] = self.sequence
        if self.draw.random() < 0.01:
            record["kind"] = 2
            self.has.clear()
            return record
        key, medium, group = self.prompt(), self.draw.randrange(4), self.draw.randrange(-1, self.groups)
        if self.has and self.draw.random() < 0.4:
            key, medium, group = self.draw.choice(sorted(self.has))
            self.has.discard((key, medium, group))
            record["kind"] = 1
        else:
            self.has.add((key, medium, group))
            record["tokens"] = len(key) * SIZE
            if group < 0 and medium == GPU:
                record["parent"] = prefix_of(key[:-1])
        record["medium"], record["prefix"] = medium, prefix_of(key)
        record["content"], record["group"] = group >= 0, max(group, 0)
        return record

    def kv(self, key: Key) -> set[int]:
        return {medium for medium in range(4) if (key, medium, -1) in self.has}

    def states(self, key: Key) -> set[tuple[int, int]]:
        return {(medium, group) for medium in range(4) for group in range(self.groups)
                if (key, medium, group) in self.has}

    def is_usable(self, key: Key) -> bool:
        """The state after this prefix is there, and the KV before."""
        return {group for _, group in self.states(key)} == set(range(self.groups)) and all(
            self.kv(key[:i + 1]) and key[:i + 1] in self.named for i in range(len(key)))

    def announced(self, key: Key, usable_only: bool) -> set[int]:
        if key not in self.named:
            return set()
        if usable_only and not any(self.is_usable(other) for other in self.named if other[:len(key)] == key):
            return set()
        return self.kv(key)


KEYS = [key for length in range(1, 5) for key in
        [tuple(number >> i & 1 for i in range(length)) for number in range(1 << length)]]


class Router:
    """What plain events say: by hash and medium, KV and states."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.kv: dict[tuple[int, int], dict[str, Any]] = {}
        self.states: set[tuple[int, int, int]] = set()

    def hear(self, payload: bytes | None, sglang: bool) -> None:
        if payload is None:
            return
        _, events, rank = msgpack.decode(payload)
        assert rank == 3 and events
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.kv.clear()
                self.states.clear()
                continue
            medium = NAMES[event["medium"]]
            group = 0 if sglang else event["group_idx"]
            for i, name in enumerate(event["block_hashes"]):
                assert -2**63 <= name < 2**63 if sglang else 0 <= name < 2**64
                place = name % 2**64, medium
                if group:
                    change = self.states.add if event["type"] == "BlockStored" else self.states.remove
                    change((*place, group - 1))
                elif event["type"] == "BlockRemoved":
                    del self.kv[place]
                else:
                    self.store(event, i, place, sglang)

    def store(self, event: dict[str, Any], i: int, place: tuple[int, int], sglang: bool) -> None:
        assert sglang or place not in self.kv, "told twice"
        tokens = event["token_ids"]
        assert event["block_size"] == self.size and len(tokens) == self.size * len(event["block_hashes"])
        self.kv[place] = {"tokens": tokens[self.size * i:self.size * (i + 1)], "components": event["component_types"],
                          "parent": event["block_hashes"][i - 1] if i else event["parent_block_hash"]}


def check(world: World, router: Router, usable_only: bool, sglang: bool) -> int:
    """Answers how many blocks are announced."""
    found: set[tuple[int, int]] = set()
    for key in KEYS:
        number = prefix_of(key)[0]
        kv = world.announced(key, usable_only)
        states = world.states(key) if key in world.named else set()
        wanted = kv
        if sglang:
            whole = {medium for medium in range(4) if kv and all((medium, g) in states for g in range(world.groups))}
            wanted = kv | whole
            for medium in wanted:
                said = router.kv[number, medium]["components"]
                assert said == ["FULL"] * (medium in kv) + ["MAMBA"] * (medium in whole)
        else:
            assert {(m, g) for n, m, g in router.states if n == number} == states
        for medium in wanted:
            said = router.kv[number, medium]
            parent = said["parent"]
            assert said["tokens"] == tokens_of(key)[-SIZE:]
            assert (parent is None) == (len(key) == 1) or not usable_only
            if usable_only and parent is not None:
                assert parent % 2**64 == prefix_of(key[:-1])[0]
        found |= {(number, medium) for medium in wanted}
    assert router.kv.keys() == found
    return len(found)


@pytest.mark.parametrize("format", ["vllm", "sglang", "llm-d"])
@pytest.mark.parametrize("usable_only", [True, False])
def test_random_changes_are_announced_as_a_plain_model_says(format: str, usable_only: bool) -> None:
    told = 0
    for seed in seeds(60):
        print("seed", seed)
        draw = random.Random(seed)
        groups = draw.randint(1, 2)
        world, router = World(draw, groups), Router()
        encoder = KvEventEncoder(format, block_size_tokens=SIZE, usable_only=usable_only, rank=3,
                                 state_groups=range(1, 1 + groups))
        for _ in range(draw.randint(1, 60)):
            for _ in range(draw.randint(0, 8)):
                if draw.random() < 0.4:
                    key = world.prompt()
                    prefixes = np.array([prefix_of(key[:i + 1]) for i in range(len(key))], np.uint64)
                    encoder.name(prefixes, tokens_of(key))
                    world.named |= {key[:i + 1] for i in range(len(key))}
                else:
                    encoder.add(world.event())
            router.hear(encoder.take_batch(), format == "sglang")
            told += check(world, router, usable_only, format == "sglang")
            assert encoder.take_batch() is None
    assert told > 500 or len(seeds(60)) < 60


def serve(engine: Engine, prompt: list[int]) -> int:
    started = engine.start(prompt, 1)
    assert started is not None
    while engine.running:
        engine.step()
    return started.reused_tokens


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_cache_reuses_what_is_announced(combination: str) -> None:
    """The deepest state behind announced KV is the hit of a cache that evicts; KV that no state follows is not
    announced."""
    hits = 0
    for seed in seeds(15):
        print("seed", seed)
        draw = random.Random(seed)
        options = options_of(combination, draw) | {"max_requests": 1}
        with make_cache(combination, **options) as cache:
            size, earlier = options["block_size_tokens"], list[list[int]]()
            engine, router = Engine(cache, draw), Router(size)
            encoder = KvEventEncoder(block_size_tokens=size, rank=3, state_groups=range(1, 1 + cache.groups))
            for _ in range(40):
                prompt = prompt_of(draw, earlier)[:options["max_request_tokens"] - 8]
                earlier.append(prompt)
                _, prefixes = sp.hash_blocks(prompt, size)
                names = prefixes[:, 0].tolist()
                encoder.name(prefixes, prompt)
                router.hear(encoder.take_batch(), False)
                kv = [(name, GPU) in router.kv for name in [*names, None]].index(False)
                usable = [i + 1 for i in range(min(kv, (len(prompt) - 1) // size)) if all(
                    (names[i], GPU, group) in router.states for group in range(cache.groups))]
                started = engine.start(prompt, 1)
                assert started is not None and started.reused_tokens == size * max(usable, default=0)
                hits += started.reused_tokens
                while engine.running:
                    engine.step()
                encoder.add(cache.take_events())
    assert hits > 1000 or len(seeds(15)) < 15


def stored_records(first: int, *contents: tuple[int, str, str]) -> Any:
    """CACHE_EVENT [n] with numbers from `first` on: of prefix, content and medium. A negative prefix is removed."""
    events = np.zeros(len(contents), sp.CACHE_EVENT)
    events["size"], events["sequence"] = sp.CACHE_EVENT.itemsize, range(first, first + len(contents))
    for event, (prefix, content, medium) in zip(events, contents, strict=True):
        event["kind"], event["prefix"] = prefix < 0, (abs(prefix), 9)
        event["content"], event["medium"] = content == "state", sp.MEDIA.index(medium)
    return events


def chain(count: int) -> Any:
    return np.array([(i + 1, 9) for i in range(count)], np.uint64)


def test_events_of_vllm_to_the_letter() -> None:
    encoder = KvEventEncoder(block_size_tokens=2, kv_group=3, state_groups=[0], kv_kind="mla_attention")
    encoder.name(chain(4), range(8), hashes=[11, b"twelve", 2**64 - 1, 14], lora_id=5, lora_name="adapter",
                 salt="tenant", session_id="s")
    encoder.name(chain(1), [0, 1], session_id="t")  # the block has its name already: another session speaks of it
    assert encoder.take_events() == [{"type": "AllBlocksCleared"}]
    encoder.add(stored_records(1, (1, "kv_block", "device"), (2, "kv_block", "device"), (3, "kv_block", "device"),
                               (4, "kv_block", "device"), (3, "state", "remote"), (2, "state", "device")))
    named = {"block_size": 2, "lora_id": 5, "lora_name": "adapter", "session_id": "s", "type": "BlockStored"}
    kv = {"group_idx": 3, "kv_cache_spec_kind": "mla_attention", "component_types": ["full"], "medium": "GPU"}
    state = {"group_idx": 0, "kv_cache_spec_kind": "mamba", "component_types": ["mamba"], "extra_keys": [("adapter",)]}
    # The last block has no state behind it.
    assert encoder.take_events() == [
        named | kv | {"block_hashes": [11], "parent_block_hash": None, "token_ids": [0, 1],
                      "extra_keys": [("adapter", "tenant")], "session_id": "t"},
        named | kv | {"block_hashes": [b"twelve", 2**64 - 1], "parent_block_hash": 11, "token_ids": [2, 3, 4, 5],
                      "extra_keys": [("adapter",), ("adapter",)]},
        named | state | {"block_hashes": [b"twelve"], "parent_block_hash": 11, "token_ids": [2, 3], "medium": "GPU",
                         "state_tokens": 4},
        named | state | {"block_hashes": [2**64 - 1], "parent_block_hash": b"twelve", "token_ids": [4, 5],
                         "medium": "EXTERNAL", "locality": "REMOTE", "state_tokens": 6}]
    encoder.add(stored_records(7, (-3, "state", "remote"), (-2, "state", "device"), (-2, "kv_block", "device")))
    assert encoder.take_events() == [
        {"type": "BlockRemoved", "block_hashes": [2**64 - 1, b"twelve", 11], "medium": "GPU", "group_idx": 3},
        {"type": "BlockRemoved", "block_hashes": [2**64 - 1], "medium": "EXTERNAL", "group_idx": 0,
         "locality": "REMOTE"},
        {"type": "BlockRemoved", "block_hashes": [b"twelve"], "medium": "GPU", "group_idx": 0}]
    encoder.add(stored_records(10, (1, "state", "host")))
    assert [event["block_hashes"] for event in encoder.take_events()] == [[11], [11]]
    encoder.tell_again()
    assert [(event["type"], event.get("medium")) for event in encoder.take_events()] == [
        ("AllBlocksCleared", None), ("BlockStored", "GPU"), ("BlockStored", "CPU")]


def test_events_of_sglang_to_the_letter() -> None:
    encoder = KvEventEncoder("sglang", block_size_tokens=1)
    encoder.name(chain(2), [7, 8], hashes=[1, 2**63], salt="tenant", session_id="one")
    encoder.name(chain(1), [7], session_id="two")  # the block is named already: another session speaks of it
    encoder.take_events()
    encoder.add(stored_records(1, (1, "kv_block", "host"), (2, "kv_block", "host"), (1, "state", "file"),
                               (2, "state", "host")))
    named = {"type": "BlockStored", "block_size": 1, "lora_id": None, "lora_name": None, "cache_salt": "tenant"}
    second = named | {"block_hashes": [-2**63], "parent_block_hash": 1, "token_ids": [8], "session_id": "one"}
    assert encoder.take_events() == [
        named | {"block_hashes": [1], "parent_block_hash": None, "token_ids": [7], "medium": "CPU_PINNED",
                 "component_types": ["FULL"], "session_id": "two"},
        named | {"block_hashes": [1], "parent_block_hash": None, "token_ids": [7], "medium": "DISK",
                 "component_types": ["MAMBA"], "session_id": "two", "state_tokens": 1},
        second | {"medium": "CPU_PINNED", "component_types": ["FULL", "MAMBA"], "state_tokens": 2}]
    encoder.add(stored_records(5, (-1, "state", "file")))
    assert encoder.take_events() == [{"type": "BlockRemoved", "block_hashes": [1], "medium": "DISK"}]


def test_a_worker_that_announces_more_never_clears_all() -> None:
    encoder = KvEventEncoder(block_size_tokens=1, shared=True, media={"device": "CPU", "host": ""})
    encoder.name(chain(1), [7])
    encoder.add(stored_records(1, (1, "kv_block", "device"), (1, "state", "device"), (1, "kv_block", "host")))
    assert [event["medium"] for event in encoder.take_events()] == ["CPU", "CPU"]
    encoder.add(stored_records(9, (1, "kv_block", "host")))  # others were lost
    assert [(event["type"], event["group_idx"]) for event in encoder.take_events()] == [
        ("BlockRemoved", 0), ("BlockRemoved", 1)]
    with pytest.raises(sp.InvalidState, match="shared"):
        encoder.tell_again()
    encoder.add(stored_records(10, (1, "kv_block", "device"), (1, "state", "device")))
    told = encoder.take_events()
    encoder.tell_again(are_cleared=True)  # as another publisher of the worker has said
    assert told and encoder.take_events() == told


def test_blocks_behind_a_named_one_are_named_alone() -> None:
    whole, parts = (KvEventEncoder("sglang", block_size_tokens=2) for _ in range(2))
    whole.name(chain(3), range(6), salt="salt")
    parts.name(chain(1), range(2), salt="salt")
    parts.name(chain(3)[1:], range(2, 6), salt="salt", behind=(1, 9), blocks_before=1)
    for encoder in (whole, parts):
        encoder.add(stored_records(1, *((i, "kv_block", "host") for i in (1, 2, 3)), (3, "state", "host")))
    assert parts.take_events() == whole.take_events()


def test_without_groups_of_states_kv_alone_can_be_reused() -> None:
    encoder = KvEventEncoder("sglang", block_size_tokens=1, state_groups=(), shared=True)
    encoder.name(chain(3), range(3))
    encoder.add(stored_records(1, (1, "kv_block", "host"), (3, "kv_block", "host")))
    assert [(event["token_ids"], event["component_types"]) for event in encoder.take_events()] == [([0], ["FULL"])]


def test_batches_have_the_order_of_the_changes() -> None:
    """Of many blocks behind one, as which its change announces and removes them."""
    encoder = KvEventEncoder(block_size_tokens=1)
    behind = list(range(2, 202))
    random.Random(1).shuffle(behind)
    for number in behind:
        encoder.name(np.array([(1, 9), (number, 9)], np.uint64), [7, number])
    encoder.add(stored_records(1, *((number, content, "device") for number in behind
                                    for content in ("kv_block", "state"))))
    encoder.take_events()
    first = 2 * len(behind) + 1
    encoder.add(stored_records(first, (1, "kv_block", "device")))
    assert [event["block_hashes"] for event in encoder.take_events() if event["type"] == "BlockStored"] == [
        [1, behind[-1]], *([number] for number in behind[-2::-1])]
    encoder.add(stored_records(first + 1, (-1, "kv_block", "device")))
    assert [event["block_hashes"] for event in encoder.take_events()] == [[*behind, 1]]


def test_names_without_content_are_bounded() -> None:
    encoder = KvEventEncoder(block_size_tokens=1, idle_names_max=3)
    encoder.name(chain(2), [7, 8])
    encoder.add(stored_records(1, (1, "kv_block", "device"), (1, "state", "device")))
    assert len(encoder.take_events()) == 3
    for first in range(10, 40, 2):
        encoder.name(np.array([(first, 0), (first + 1, 0)], np.uint64), [1, 2])
        assert len(encoder._blocks) <= 4
    # The removed block is forgotten once that is told.
    encoder.add(stored_records(3, (-1, "state", "device"), (-1, "kv_block", "device")))
    encoder.name(np.array([(50 + i, 0) for i in range(9)], np.uint64), range(9))
    assert {event["type"] for event in encoder.take_events()} == {"BlockRemoved"}
    assert len(encoder._blocks) == 3
    encoder.add(stored_records(5, (1, "kv_block", "device"), (1, "state", "device")))
    assert encoder.take_events() == []
    encoder.name(chain(1), [7])
    assert len(encoder.take_events()) == 2


def test_what_no_encoder_takes_is_refused_and_changes_nothing() -> None:
    for options in ({"format": "dynamo"}, {"state_groups": [1, 1]}, {"state_groups": [0]}, {"media": {"tape": "TAPE"}},
                    {"block_size_tokens": 0}, {"rank": -1}, {"idle_names_max": -1}):
        with pytest.raises(sp.InvalidArgument, match=next(iter(options))):
            KvEventEncoder(**({"block_size_tokens": 1} | options))
    encoder = KvEventEncoder("sglang", block_size_tokens=2)
    encoder.take_events()
    for arguments, more in (((chain(2), [1, 2, 3]), {}), (([1, 2], [1, 2]), {}),
                            ((chain(1), [1, 2]), {"hashes": [b"no number"]}), ((chain(1), [1, 2]), {"hashes": []}),
                            ((chain(1), [1, 2]), {"hashes": [2**64]}), ((chain(1), [1, 2]), {"extra_keys": []}),
                            ((chain(1), [1, 2]), {"behind": (1, 2)}), ((chain(1), [1, 2]), {"blocks_before": 1})):
        with pytest.raises(sp.InvalidArgument):
            encoder.name(*arguments, **more)
    events = stored_records(1, (1, "kv_block", "device"), (1, "state", "device"))
    events["group"][1] = 1
    with pytest.raises(sp.InvalidArgument, match="state_groups"):
        encoder.add(events)
    assert not encoder._blocks and encoder.take_batch() is None


def test_messages_need_a_package_that_packs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def batch() -> bytes | None:
        encoder = KvEventEncoder(block_size_tokens=1)
        encoder.name(chain(1), [7], hashes=[b"bytes"], lora_name="adapter")
        encoder.add(stored_records(1, (1, "kv_block", "device"), (1, "state", "device")))
        return encoder.take_batch(1.5)

    packed = batch()
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", None)
    if importlib.util.find_spec("msgpack"):
        assert batch() == packed
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(sp.BackendError, match="msgspec or msgpack"):
        batch()
