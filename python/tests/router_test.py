# SPDX-License-Identifier: Apache-2.0
"""An index for routers: predictions from messages and events against the hits of real caches."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from combinations import COMBINATIONS, make_cache
from conftest import seeds
from request_cache_test import Engine, options_of, prompt_of
from stateport.kv_events import KvEventEncoder, llm_d_topic
from stateport.router import Router, RouterIndex, RouterReach

msgpack = pytest.importorskip("msgspec.msgpack")

SIZE = 16


def stored(*contents: tuple[int, str, str]) -> Any:
    """CACHE_EVENT [n] with numbers from 1 on: of prefix, content and medium."""
    events = np.zeros(len(contents), sp.CACHE_EVENT)
    events["size"], events["sequence"] = sp.CACHE_EVENT.itemsize, range(1, len(contents) + 1)
    for event, (prefix, content, medium) in zip(events, contents, strict=True):
        event["prefix"] = prefix, 0
        event["content"], event["medium"] = content == "state", sp.MEDIA.index(medium)
    return events


def names(*blocks: int) -> Any:
    return np.array([(block, 0) for block in blocks], np.uint64)


class Fleet:
    """Workers with real caches. Messages may be lost; they are repeated when the router asks."""

    def __init__(self, draw: random.Random, combination: str, format: str, workers: int = 3) -> None:
        self.draw, self.loss = draw, 0.0
        self.options = options_of(combination, draw) | {"max_requests": 1}
        self.size = self.options["block_size_tokens"]
        self.engines = [Engine(make_cache(combination, **self.options), draw) for _ in range(workers)]
        groups = range(1, 1 + self.engines[0].cache.groups)
        self.router = Router(self.size, state_groups=groups)
        self.encoders = [KvEventEncoder(format, block_size_tokens=self.size, state_groups=groups) for _ in self.engines]
        self.sent: list[list[bytes]] = [[] for _ in self.engines]
        for worker in range(workers):
            self.router.join(f"worker {worker}", 0)

    def serve(self, worker: int, prompt: list[int]) -> int:
        """Answers how many tokens were reused."""
        engine, encoder, cache = self.engines[worker], self.encoders[worker], self.engines[worker].cache
        encoder.name(sp.hash_blocks(prompt, self.size)[1], prompt)
        started = engine.start(prompt, 1)
        assert started is not None
        while engine.running:
            engine.step()
        encoder.add(cache.take_events())
        payload = encoder.take_batch()
        if payload is not None:
            self.sent[worker].append(payload)
            if self.draw.random() >= self.loss:
                self.router.hear(f"worker {worker}", len(self.sent[worker]) - 1, payload)
        return started.reused_tokens

    def repeat(self) -> int:
        """Answers how many messages were repeated."""
        count = 0
        for worker, sent in enumerate(self.sent):
            missing = self.router.missing(f"worker {worker}")
            for number in range(len(sent) if missing is None else missing, len(sent)):
                self.router.hear(f"worker {worker}", number, sent[number])
                count += 1
        return count


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("format", ["vllm", "sglang"])
def test_messages_predict_what_caches_reuse(combination: str, format: str) -> None:
    hits = 0
    for seed in seeds(6):
        print("seed", seed)
        draw = random.Random(seed)
        fleet, earlier = Fleet(draw, combination, format), list[list[int]]()
        for _ in range(60):
            prompt = prompt_of(draw, earlier)[:fleet.options["max_request_tokens"] - 8]
            earlier.append(prompt)
            found = fleet.router.find_tokens(prompt)
            worker = draw.randrange(3)
            reach = found.get(f"worker {worker}", RouterReach(0, "device", {}))
            assert fleet.serve(worker, prompt) == reach.tokens
            hits += reach.tokens
        fleet.router.index.check_invariants()
        for engine in fleet.engines:
            engine.cache.close()
    assert hits > 200 or len(seeds(6)) < 6


def test_a_worker_is_unknown_until_its_lost_messages_are_repeated() -> None:
    hits = repeated = unknown = 0
    for seed in seeds(10):
        print("seed", seed)
        draw = random.Random(seed)
        fleet, earlier = Fleet(draw, "hash_slots", "vllm"), list[list[int]]()
        fleet.loss = 0.2
        for _ in range(60):
            prompt = prompt_of(draw, earlier)[:200]
            earlier.append(prompt)
            if draw.random() < 0.3:
                repeated += fleet.repeat()
            worker = draw.randrange(3)
            name = f"worker {worker}"
            late = len(fleet.sent[worker]) > fleet.router.index.next_sequence(worker)
            reach = fleet.router.find_tokens(prompt).get(name)
            if fleet.router.missing(name) is not None:
                assert reach is None
                unknown += 1
            reused = fleet.serve(worker, prompt)
            if not late:
                assert reused == (reach.tokens if reach else 0)
                hits += reused
    assert (hits > 500 and repeated > 50 and unknown > 20) or len(seeds(10)) < 10


def test_events_of_caches_need_no_messages() -> None:
    with RouterIndex(2) as index:
        index.join(0)
        index.join(1, 2)
        events = stored((5, "kv_block", "device"), (6, "kv_block", "file"), (6, "state", "host"))
        assert index.hear(0, events[:2]) and index.hear(0, events[2:])
        assert not index.hear(1, events[2:]) and index.next_sequence(1) == 2 and not index.is_known(1)
        (reach,) = index.find(names(5, 6, 7))
        assert reach["worker"] == 0 and reach["medium"] == sp.MEDIA.index("file")
        assert reach["blocks"].tolist() == [0, 0, 2, 2]
        assert index.prefixes == 2 and index.refused == 0
        cleared = np.zeros(1, sp.CACHE_EVENT)
        cleared["size"], cleared["kind"] = sp.CACHE_EVENT.itemsize, 2
        assert index.hear_message(1, 40, cleared) and index.next_sequence(1) == 41
        index.leave(0)
        assert len(index.find(names(5, 6))) == 0 and index.prefixes == 0
        index.check_invariants()
        with pytest.raises(sp.InvalidArgument, match="worker = 0"):
            index.hear(0, events)
        with pytest.raises(sp.InvalidArgument, match="prefixes"):
            index.find([1, 2])
    for options in ({"workers_max": 0}, {"prefixes_max": 0}, {"blocks_max": 0}, {"state_groups": 16}):
        with pytest.raises(sp.InvalidArgument, match=next(iter(options))):
            RouterIndex(**options)
    with pytest.raises(sp.InvalidArgument, match=f"workers_max is {2**31}"):
        RouterIndex(2**31)


def batch(*events: dict[str, Any]) -> bytes:
    return msgpack.encode([1.0, events, 0])


def block(hashes: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [],
            "block_size": SIZE, "lora_id": None, "medium": "GPU"} | more


def test_blocks_of_all_engines_are_understood() -> None:
    router = Router(SIZE, state_groups=(2,), kv_group=1)
    router.join("a")
    # vLLM's own: hashes of bytes or of 64 bits, groups by number.
    long = bytes(range(32))
    assert router.hear("a", 70, batch(block([7, long, 9], group_idx=1), block([long], group_idx=2, block_size=0)))
    all_media = dict.fromkeys(("device", "host", "file", "remote"), 32)
    assert router.find([7, long, 9]) == {"a": RouterReach(32, "device", all_media)}
    # States of a group that is not named are those of each group.
    router.hear("a", 71, batch(block([9], group_idx=None, kv_cache_spec_kind="mamba", block_size=0)))
    assert router.find([7, long, 9])["a"].tokens == 48
    router.hear("a", 72, batch({"type": "BlockRemoved", "block_hashes": [9], "medium": "GPU", "group_idx": 2}))
    assert router.find([7, long, 9])["a"].tokens == 32
    # Another group of KV does not count, and neither does an unknown medium.
    router.hear("a", 73, batch(block([9], group_idx=2), block([5], group_idx=0),
                               block([6], medium="TAPE", group_idx=1)))
    assert router.find([7, long, 9])["a"].tokens == 48 and router.find([5]) == {} and router.find([6]) == {}
    router.hear("a", 74, batch({"type": "BlockRemoved", "block_hashes": [long], "medium": "GPU", "group_idx": 1}))
    assert router.find([7, long, 9]) == {}
    router.leave("a")
    # SGLang's: hashes with a sign, components; a block that is stored again has these and no others.
    router.join("b", 0)
    router.hear("b", 0, batch(block([-1, -2], medium="CPU_PINNED", component_types=["FULL", "MAMBA"])))
    assert router.find([2**64 - 1, -2])["b"] == RouterReach(32, "host", all_media | {"device": 0})
    router.hear("b", 1, batch(block([-2], medium="CPU_PINNED", component_types=["FULL"])))
    assert router.find([-1, -2])["b"].tokens == 16
    router.hear("b", 2, batch({"type": "BlockRemoved", "block_hashes": [-1], "medium": "CPU_PINNED"}))
    assert router.find([-1]) == {}
    # A model without states.
    plain = Router(SIZE, state_groups=())
    plain.join("c")
    plain.hear("c", 5, batch(block([1, 2]), {"type": "SomethingNew"}))
    assert plain.find([1, 2, 3])["c"].tokens == 32


def test_the_last_token_of_a_prompt_is_computed() -> None:
    prompt = list(range(2 * SIZE))
    hashes = sp.hash_blocks(prompt, SIZE)[1][:, 0].tolist()
    router = Router(SIZE)
    router.join("a")
    router.hear("a", 1, batch(block(hashes, group_idx=0), block(hashes, group_idx=1)))
    assert router.find(hashes)["a"].tokens == 32
    assert router.find_tokens(prompt)["a"].tokens == 16 and router.find_tokens([*prompt, 1])["a"].tokens == 32


def test_bad_messages_are_refused_and_change_nothing() -> None:
    router = Router(SIZE, workers_max=1)
    router.join("a", 3)
    for payload in (b"", b"\xc1", msgpack.encode(7), msgpack.encode([1.0, [7], 0]), batch({"type": "BlockStored"}),
                    batch(block(["text"])), batch(block([2**64 - 1]), block([None])), batch(block([1], block_size=7))):
        with pytest.raises(sp.InvalidArgument):
            router.hear("a", 3, payload)
    assert router.index.next_sequence(0) == 3 and router.index.prefixes == 0
    with pytest.raises(sp.InvalidArgument, match="workers_max"):
        router.join("b")
    router.join("a")  # anew
    for call in (router.leave, router.missing):
        with pytest.raises(sp.InvalidArgument, match="'b'"):
            call("b")
    with pytest.raises(sp.InvalidArgument, match="state_groups"):
        Router(SIZE, state_groups=(1, 1))


def test_topics_of_llm_d() -> None:
    assert llm_d_topic("pod-1", "org/model") == "kv@pod-1@org/model"
    with pytest.raises(sp.InvalidArgument, match="pod"):
        llm_d_topic("a@b", "model")


def test_hashes_of_another_epoch_are_those_of_the_cache() -> None:
    prompt, namespace = list(range(40)), sp.Namespace(b"adapter", b"salt")
    for combination in COMBINATIONS:
        options = options_of(combination, random.Random(1)) | {"hash_seed": 5}
        with make_cache(combination, **options) as cache:
            engine, size = Engine(cache, random.Random(1)), options["block_size_tokens"]
            for epoch in (0, 7):
                if epoch:
                    cache.advance_epoch(epoch)
                engine.start(prompt, 1, namespace=namespace)
                while engine.running:
                    engine.step()
                events = cache.take_events()
                said = {tuple(event["prefix"]) for event in events if event["kind"] == 0}
                wanted = sp.hash_blocks(prompt, size, namespace=namespace, seed=5, epoch=epoch)[1]
                assert said and said <= set(map(tuple, wanted))
                with sp.Hasher(size, namespace=namespace, seed=5, epoch=epoch) as hasher:
                    assert np.array_equal(hasher.append(prompt)[1], wanted)
