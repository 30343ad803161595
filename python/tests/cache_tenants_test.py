# SPDX-License-Identifier: Apache-2.0
"""Shares of tenants in the memory of a request cache."""
from __future__ import annotations

from typing import Any

import pytest

import stateport as sp
from combinations import LAYOUTS, make_small, serve

QUIET, FLOOD = sp.Namespace(salt=b"quiet"), sp.Namespace(salt=b"flood")
MEMORY = sp.Eviction("lru", state_bytes=64, kv_bytes_per_token=1)


def make(index: str, layout: str, **options: Any) -> sp.RequestCache:
    return make_small(index, layout, **{"tenant_quotas": 2, "eviction": MEMORY, **options})


def total(usage: sp.TenantUsage) -> int:
    return usage.kv_bytes + usage.state_bytes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", ["hash", "tree"])
class TestShares:
    def test_a_flood_takes_nothing_of_a_floor(self, index: str, layout: str) -> None:
        hits = []
        for floor in (0, 300):
            cache = make(index, layout)
            cache.set_quota(QUIET, floor_bytes=floor)
            serve(cache, QUIET)
            held = cache.tenant_usage(QUIET)
            assert held.kv_bytes >= 32 and held.state_bytes >= 64
            for prompt in range(1, 100):
                serve(cache, FLOOD, 1000 * prompt)
            assert cache.tenant_usage(QUIET) == (held if floor else sp.TenantUsage(0, 0))
            hits.append(serve(cache, QUIET))
        assert hits == [0, 32]

    def test_a_limit_holds_while_memory_is_free(self, index: str, layout: str) -> None:
        cache = make(index, layout)
        cache.set_quota(FLOOD, most_bytes=200)
        for prompt in range(6):
            serve(cache, FLOOD, 1000 * prompt)
            assert total(cache.tenant_usage(FLOOD)) <= 200
        for prompt in range(3):
            serve(cache, None, 1000 * prompt)
        assert total(cache.tenant_usage(None)) > 200
        cache.set_quota(FLOOD)
        for prompt in range(3):
            serve(cache, FLOOD, 1000 * prompt)
        assert total(cache.tenant_usage(FLOOD)) > 200


def test_quotas_that_cannot_be_kept_are_refused() -> None:
    cache = make("tree", "slots")
    for quota, text in (
        ({"floor_bytes": -1}, "floor_bytes = -1"),
        ({"most_bytes": -1}, "most_bytes = -1"),
        ({"floor_bytes": 2, "most_bytes": 1}, "most_bytes = 1"),
        ({"floor_bytes": 10**9}, "floor_bytes"),
    ):
        with pytest.raises(sp.InvalidArgument, match=text):
            cache.set_quota(QUIET, **quota)
    with pytest.raises(sp.InvalidArgument, match="tenant is a str"):
        cache.set_quota("quiet")  # type: ignore[arg-type]
    cache.set_quota(QUIET, most_bytes=1)
    cache.set_quota(None, most_bytes=1)
    with pytest.raises(sp.InvalidArgument, match="tenant_quotas"):
        cache.set_quota(FLOOD, most_bytes=1)
    with pytest.raises(sp.InvalidState, match="tenant_quotas"):
        make("tree", "slots", tenant_quotas=0).set_quota(QUIET, most_bytes=1)
    with pytest.raises(sp.InvalidArgument, match="tenant_quotas"):
        make("tree", "slots", tenant_quotas=65)
