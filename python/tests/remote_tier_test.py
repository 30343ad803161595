# SPDX-License-Identifier: Apache-2.0
"""A remote tier that two request caches share, as plain data: what one stored the other asks for."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stateport as sp

DONE, GONE = sp.TRANSFER_STATUSES.index("done"), sp.TRANSFER_STATUSES.index("gone")
PROMPT = np.arange(34)


def make(**options: Any) -> sp.RequestCache:
    tiers = sp.TierOptions(remote_bytes=4000, state_image_bytes=100, kv_image_bytes=4, write_through=True, **options)
    return sp.RequestCache("tree", sp.SlotLayout(layout_fingerprint=7, checkpoints=2), max_requests=2,
                           max_request_tokens=40, kv_tokens=80, block_size_tokens=4, tiers=tiers)


def move(cache: sp.RequestCache, stored: set[bytes]) -> list[str]:
    """Carries out all that the cache names, over a set of the names of images; returns the kinds of transfers."""
    kinds: list[str] = []
    while len(plan := cache.take_transfers()):
        results = np.zeros(len(plan), sp.TRANSFER_RESULT)
        for result, transfer in zip(results, plan, strict=True):
            kind, name = sp.TRANSFER_KINDS[transfer["kind"]], transfer["image"].tobytes()
            if kind == "store":
                stored.add(name)
            result["id"], result["status"] = transfer["id"], DONE if name in stored else GONE
            kinds.append(kind)
        cache.settle(results)
    return kinds


def serve(cache: sp.RequestCache, stored: set[bytes]) -> tuple[sp.StartedRequest, list[str]]:
    started = cache.start(PROMPT)
    assert started is not None
    assert bool(cache.loading([started.request])[0]) == (started.load_medium != "device")
    kinds = move(cache, stored)
    while cache.computed(started.request) < len(PROMPT):
        tokens = cache.chunk([started.request], [64])
        ends = cache.computed(started.request) + int(tokens[0]) == len(PROMPT)
        plan = cache.plan([started.request], tokens)
        move(cache, stored)
        cache.commit(plan, [int(ends)], [1] * ends)
        move(cache, stored)
    cache.finish(started.request)
    move(cache, stored)
    cache.settle(np.zeros(0, sp.TRANSFER_RESULT))
    move(cache, stored)
    return started, kinds


def test_what_one_cache_stored_another_one_asks_for_and_loads() -> None:
    stored: set[bytes] = set()
    one, other = make(), make()
    first, kinds = serve(one, stored)
    assert first.load_medium == "remote" and set(kinds) == {"find"}
    one.drain()
    move(one, stored)
    started, kinds = serve(other, stored)
    assert started.load_tokens == 0 and started.load_medium == "remote"
    assert set(kinds) == {"find", "load"}
    usage = other.tier_usage("remote")
    assert usage.hit_tokens == 32 and usage.loads == 1
    assert usage.asked_images == 16 and usage.found_images >= 9


def test_a_cache_that_may_not_ask_finds_nothing() -> None:
    stored: set[bytes] = set()
    one, other = make(), make(max_finds=-1)
    serve(one, stored)
    one.drain()
    move(one, stored)
    started, kinds = serve(other, stored)
    assert started.load_medium == "device" and not kinds
    other.set_speeds(host_bytes_per_s=1, file_bytes_per_s=1, tokens_per_s=1, remote_bytes_per_s=1, remote_latency_s=1)


def test_an_exception_tells_what_was_settled_and_attached() -> None:
    one, other = make(max_finds=-1), make()
    request = one.start(PROMPT).request  # type: ignore[union-attr]
    plan = one.plan([request], [len(PROMPT)])
    assert not len(one.take_transfers())
    one.commit(plan, [1], [1])
    assert not len(one.take_transfers())
    one.finish(request)
    stores = one.take_transfers()
    assert len(stores) == one.transfers_under_way == 9  # a state, and the KV of eight blocks
    results = np.zeros(5, sp.TRANSFER_RESULT)
    results["id"], results["status"] = stores["id"][:5], DONE
    results["id"][3] = 1 << 40
    with pytest.raises(sp.InvalidArgument, match=str(1 << 40)) as raised:
        one.settle(results)
    assert raised.value.done == 3
    assert one.transfers_under_way == 6
    one.check_invariants()

    images = stores["image"].copy()
    images["tokens"][4] = 3  # no whole block
    with pytest.raises(sp.InvalidArgument, match="3") as raised:
        other.attach("remote", images)
    assert raised.value.done == 4
    usage = other.tier_usage("remote")
    assert (usage.states, usage.kv_blocks) == (1, 3)
    other.check_invariants()
