# SPDX-License-Identifier: Apache-2.0
"""Counters of the connector."""
from __future__ import annotations

import pytest

from stateport.vllm.statistics import Counters


def test_counters_add_by_label_and_are_taken_once() -> None:
    counters = Counters({"prompts": 1})
    counters.add("hits", 2, "host")
    counters.add("hits", 1, "file")
    counters.add("prompts", 0)
    counters.merge({"prompts": 3, "hits:host": 1})
    assert counters.take() == {"prompts": 4, "hits:host": 3, "hits:file": 1}
    assert counters.take() == {}
    with pytest.raises(KeyError):
        counters.add("unknown", 1)
