# SPDX-License-Identifier: Apache-2.0
"""A remote tier that two request caches share, as plain data: one asks for the images that the other stored."""
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


def move(cache: sp.RequestCache, plan: Any, stored: set[bytes]) -> list[str]:
    """Carries out these transfers and those that follow, over a set of the names of images; returns their kinds."""
    kinds: list[str] = []
    while len(plan):
        results = np.zeros(len(plan), sp.TRANSFER_RESULT)
        for result, transfer in zip(results, plan, strict=True):
            kind, name = sp.TRANSFER_KINDS[transfer["kind"]], transfer["image"].tobytes()
            if kind == "store":
                stored.add(name)
            result["id"], result["status"] = transfer["id"], DONE if name in stored else GONE
            kinds.append(kind)
        plan = cache.settle(results).transfers
    return kinds


def serve(cache: sp.RequestCache, stored: set[bytes]) -> tuple[sp.StartedRequest, list[str]]:
    started = cache.start(PROMPT)
    assert started is not None
    assert bool(cache.loading([started.request])[0]) == (started.load_medium != "device")
    kinds = move(cache, started.transfers, stored)
    while cache.computed(started.request) < len(PROMPT):
        tokens = cache.chunk([started.request], [64])
        ends = cache.computed(started.request) + int(tokens[0]) == len(PROMPT)
        plan = cache.plan([started.request], tokens)
        move(cache, plan.transfers, stored)
        move(cache, cache.commit(plan, [int(ends)], [1] * ends).transfers, stored)
    cache.finish(started.request)
    move(cache, cache.settle().transfers, stored)
    return started, kinds


def test_a_cache_asks_for_and_loads_images_of_another_one() -> None:
    stored: set[bytes] = set()
    one, other = make(), make()
    first, kinds = serve(one, stored)
    assert first.load_medium == "remote" and set(kinds) == {"find"}
    move(one, one.drain(), stored)
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
    move(one, one.drain(), stored)
    started, kinds = serve(other, stored)
    assert started.load_medium == "device" and not kinds
    other.set_speeds(host_bytes_per_s=1, file_bytes_per_s=1, tokens_per_s=1, remote_bytes_per_s=1, remote_latency_s=1)


def test_wrong_results_settle_nothing_and_an_exception_names_the_attached_images() -> None:
    one, other = make(max_finds=-1), make()
    started = one.start(PROMPT)
    assert started is not None and not len(started.transfers)
    plan = one.plan([started.request], [len(PROMPT)])
    assert not len(plan.transfers)
    assert not len(one.commit(plan, [1], [1]).transfers)
    assert not len(one.finish(started.request).transfers)
    stores = one.settle().transfers
    assert len(stores) == one.transfers_under_way == 9  # a state, and the KV of eight blocks
    results = np.zeros(5, sp.TRANSFER_RESULT)
    results["id"], results["status"] = stores["id"][:5], DONE
    for wrong in (1 << 40, int(results["id"][0])):
        results["id"][3] = wrong
        with pytest.raises(sp.InvalidArgument, match=str(wrong)):
            one.settle(results)
        assert one.transfers_under_way == 9
    results["id"][3] = stores["id"][3]
    one.settle(results)
    assert one.transfers_under_way == 4
    one.check_invariants()

    images = stores["image"].copy()
    images["tokens"][4] = 3  # no whole block
    with pytest.raises(sp.InvalidArgument, match="3") as raised:
        other.attach("remote", images)
    assert raised.value.done == 4
    usage = other.tier_usage("remote")
    assert (usage.states, usage.kv_blocks) == (1, 3)
    other.check_invariants()
