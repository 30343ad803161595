# SPDX-License-Identifier: Apache-2.0
"""Request caches of each index and each layout."""
from __future__ import annotations

import dataclasses
from typing import Any

import stateport as sp

LAYOUTS = {"slots": sp.SlotLayout(3, 12), "columns": sp.ColumnLayout([sp.StateGroup(16, 40, layout_fingerprint=4)])}
PROMPT = list(range(33))
COMBINATIONS = ("hash_slots", "tree_slots", "hash_columns", "tree_columns")


def make_cache(combination: str, **options: Any) -> sp.RequestCache:
    """Takes the options of the cache and of its layout together."""
    index, layout = combination.split("_")
    kind = sp.SlotLayout if layout == "slots" else sp.ColumnLayout
    names = {field.name for field in dataclasses.fields(kind)}
    return sp.RequestCache(index, kind(**{name: options.pop(name) for name in names & options.keys()}), **options)


def make_small(index: str, layout: str, **options: Any) -> sp.RequestCache:
    return sp.RequestCache(index, LAYOUTS[layout], max_requests=3, max_request_tokens=64, kv_tokens=640, **options)


def serve(cache: sp.RequestCache, namespace: sp.Namespace | None = None, first: int = 0) -> int:
    """Computes PROMPT, each token plus `first`. Answers how many of its tokens were cached."""
    prompt = [first + token for token in PROMPT]
    with cache.serving(prompt, namespace=namespace) as started:
        while cache.computed(started.request) < len(prompt):
            tokens = cache.chunk([started.request], [64])
            plan = cache.plan([started.request], tokens)
            done = cache.computed(started.request) + int(tokens[0]) == len(prompt)
            cache.commit(plan, [1 if done else 0], [7] if done else [])
    cache.check_invariants()
    return started.reused_tokens
