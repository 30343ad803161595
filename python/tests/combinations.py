# SPDX-License-Identifier: Apache-2.0
"""Request caches of each index and each layout."""
from __future__ import annotations

import dataclasses
from typing import Any

import stateport as sp

COMBINATIONS = ("hash_slots", "tree_slots", "hash_columns", "tree_columns")


def make_cache(combination: str, **options: Any) -> sp.RequestCache:
    """Takes the options of the cache and of its layout together."""
    index, layout = combination.split("_")
    kind = sp.SlotLayout if layout == "slots" else sp.ColumnLayout
    names = {field.name for field in dataclasses.fields(kind)}
    return sp.RequestCache(index, kind(**{name: options.pop(name) for name in names & options.keys()}), **options)
