# SPDX-License-Identifier: Apache-2.0
"""Two tenants on one RequestCache: memory that plans name to be cleared, and prefixes that tenants do not share."""
from __future__ import annotations

import random
from typing import Any

import pytest

import stateport as sp
from combinations import COMBINATIONS, make_cache
from conftest import seeds
from request_cache_test import options_of

TENANTS = (None, sp.Namespace(salt=b"one"), sp.Namespace(salt=b"two"), sp.Namespace(salt=b"two", extra_key=b"adapter"))


def blocks_of(plan: sp.PassPlan, row: int, size: int) -> set[int]:
    return {int(kv) * plan.kv_tokens_per_id // size for kv in plan.kv(row)}


def serve(cache: sp.RequestCache, prompt: list[int], tenant: sp.Namespace | None, writers: dict[int, Any],
          size: int) -> int:
    """Runs a prompt alone. `writers`: by KV block."""
    started = cache.start(prompt, namespace=tenant)
    assert started is not None
    salt = tenant.salt if tenant else None
    done = started.reused_tokens
    while done < len(prompt):
        count = int(cache.chunk([started.request], [64])[0])
        plan = cache.plan([started.request], [count])
        assert plan.room[0]
        strangers = {block for block in blocks_of(plan, 0, size) if writers.get(block, "nobody") != salt}
        assert set(map(int, plan.scrub_kv)) == strangers
        assert not len(plan.scrub_scratch) or plan.groups[0].saves["in_scratch"].all()
        assert not len(plan.scrub_draft_rows)
        writers.update(dict.fromkeys(strangers, salt))
        done += count
        cache.commit(plan, [int(done == len(prompt))], [1] if done == len(prompt) else [])
    cache.finish(started.request)
    return started.reused_tokens


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_plans_name_the_kv_that_changes_tenant(combination: str) -> None:
    for seed in seeds(20):
        print("seed", seed)
        draw = random.Random(seed)
        options = options_of(combination, draw)
        with make_cache(combination, scrub=True, hash_seed=draw.getrandbits(64), **options) as cache:
            writers: dict[int, Any] = {}
            prompts = [[draw.randint(0, 9) for _ in range(draw.randint(1, 200))] for _ in range(3)]
            served: dict[tuple[Any, int], int] = {}
            for _ in range(30):
                which, tenant = draw.randrange(3), draw.choice(TENANTS)
                reused = serve(cache, prompts[which], tenant, writers, options["block_size_tokens"])
                assert not reused or (tenant, which) in served
                served[tenant, which] = 1
                if draw.random() < 0.05:
                    cache.reset()
                    served.clear()
            assert writers


def test_without_scrub_plans_name_nothing_more() -> None:
    with sp.RequestCache("tree", sp.SlotLayout(checkpoints=2), max_requests=1, max_request_tokens=64, kv_tokens=256,
                         unchecked_layout=True) as cache:
        started = cache.start([1, 2, 3])
        assert started is not None
        plan = cache.plan([started.request], [3])
        assert not len(plan.scrub_kv) and not len(plan.scrub_scratch) and not len(plan.scrub_draft_rows)


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("first", [0, 1])
def test_blocks_of_two_tenants_with_one_key_share_nothing(combination: str, first: int) -> None:
    """They are those of tests/core/serve/collision_test.cpp."""
    rest = list(range(9))
    prompts = [[1207531, 710360, 377369, 1, *rest], [949596, 1597246, 27063, 1, *rest]]
    names = [sp.Namespace(salt=b"b"), sp.Namespace(salt=b"a")]
    hashes = [sp.hash_blocks(prompts[i], 4, namespace=names[i], fast=True) for i in range(2)]
    assert hashes[0][0][0] == hashes[1][0][0] and hashes[0][1][0].tolist() != hashes[1][1][0].tolist()
    in_columns = combination.endswith("columns")
    layout: dict[str, Any] = {"groups": [sp.StateGroup(4, 16)]} if in_columns else {"checkpoints": 8}
    with make_cache(combination, max_requests=1, max_request_tokens=16, kv_tokens=96, block_size_tokens=4, scrub=True,
                    hash="xxh3_128", unchecked_layout=True, **layout) as cache:
        writers: dict[int, Any] = {}
        for which in (first, 1 - first):
            started = cache.start(prompts[which], namespace=names[which])
            assert started is not None and (started.reused_tokens, started.lost) == (0, "never_stored")
            cache.abort(started.request)
            assert serve(cache, prompts[which], names[which], writers, 4) == 0
        assert serve(cache, prompts[1 - first], names[1 - first], writers, 4) > 0
        cache.check_invariants()
