# SPDX-License-Identifier: Apache-2.0
"""Levels and counts of the scheduler's cache, as statistics of the connector."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping

from stateport.cache_options import AGE_BOUNDS_S, TierUsage
from stateport.request_cache import RequestCache
from stateport.vllm.statistics import Counters

WATCH_S = 1.0  # between two looks: a look takes tens of microseconds, and a step may take a millisecond


class CacheWatch:
    """Looks at a cache from time to time. The device of the cache is the memory of the host.

    kv_bytes, state_bytes: of a block of KV and of a state, in the pools of a worker. capacity: bytes by tier."""

    def __init__(self, cache: RequestCache, *, kv_bytes: int, state_bytes: int, kv_blocks: int, states: int,
                 capacity: Mapping[str, int]) -> None:
        self._cache, self._sizes = cache, (kv_bytes, state_bytes)
        self._room = {"kv": kv_blocks * kv_bytes, "state": states * state_bytes}
        self._capacity = {tier: size for tier, size in capacity.items() if size}
        self._block = cache.options.block_size_tokens
        self._next_s = 0.0
        self._seen: collections.Counter[tuple[str, ...]] = collections.Counter()

    def look(self, counters: Counters) -> None:
        """Adds what there is to tell. Does nothing within WATCH_S of the last look."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + WATCH_S
        stats = self._cache.stats()
        self._look_at_host(counters, stats.states, stats.kv_tokens)
        self._add(counters, "evicted_states", stats.evicted_states, "host")
        self._add(counters, "evicted_kv_tokens", stats.evicted_kv_tokens)
        for name, ages in (("reuse_age_seconds", stats.reuse_ages), ("eviction_age_seconds", stats.eviction_ages)):
            for bucket, count in enumerate(ages):
                age_s = AGE_BOUNDS_S[bucket] if bucket < len(AGE_BOUNDS_S) else 2 * AGE_BOUNDS_S[-1]
                for _ in range(self._new(count, name, str(bucket))):
                    counters.observe(name, age_s)
        waiting = self._cache.waiting
        counters.set("waiting_prompts", waiting.answers, "answers")
        counters.set("waiting_prompts", waiting.loads, "loads")
        for tier, size in self._capacity.items():
            self._look_at_tier(counters, tier, size, self._cache.tier_usage(tier))

    def _look_at_host(self, counters: Counters, states: int, kv_tokens: int) -> None:
        counters.set("states", states, "host")
        counters.set("kv_tokens", kv_tokens, "host")
        counters.set("used_bytes", kv_tokens // self._block * self._sizes[0], "host", "kv")
        counters.set("used_bytes", states * self._sizes[1], "host", "state")
        for content, size in self._room.items():
            counters.set("capacity_bytes", size, "host", content)

    def _look_at_tier(self, counters: Counters, tier: str, size: int, usage: TierUsage) -> None:
        counters.set("states", usage.states, tier)
        counters.set("kv_tokens", usage.kv_blocks * self._block, tier)
        counters.set("used_bytes", usage.bytes, tier, "all")
        counters.set("capacity_bytes", size, tier, "all")
        for direction, transfers, transfer_bytes in (("read", usage.reads, usage.read_bytes),
                                                     ("write", usage.writes, usage.write_bytes)):
            counters.set("transfers", transfers, tier, direction)
            counters.set("transfer_bytes", transfer_bytes, tier, direction)
        if tier == "remote":
            counters.set("transfers", usage.finds, tier, "find")
        self._add(counters, "evicted_states", usage.evicted_states, tier)
        for name, ended in (("failed_reads", usage.ended_reads), ("failed_writes", usage.ended_writes)):
            for status, count in ended.items():
                if status != "done":
                    self._add(counters, name, count, tier, status)

    def _new(self, count: int, *key: str) -> int:
        """How much a count grew since the last look."""
        new, self._seen[key] = count - self._seen[key], count
        return new

    def _add(self, counters: Counters, name: str, count: int, *labels: str) -> None:
        counters.add(name, self._new(count, name, *labels), *labels)
