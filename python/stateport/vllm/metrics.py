# SPDX-License-Identifier: Apache-2.0
"""The connector's counters in vLLM's log and in its metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from stateport.vllm.statistics import COUNTED, Counters


@dataclasses.dataclass
class StateportStats(KVConnectorStats):  # type: ignore[misc]
    """data: counts by "name" or "name:label" (stateport.vllm.statistics.COUNTED)."""

    data: dict[str, int] = dataclasses.field(default_factory=dict)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: StateportStats) -> StateportStats:
        sums = Counters(self.data)
        sums.merge(other.data)
        return StateportStats(data=sums.values)

    def reduce(self) -> dict[str, int | float]:
        return dict(sorted(self.data.items()))

    def is_empty(self) -> bool:
        return not self.data


class StateportPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Counters vllm:stateport_<name>_total, by engine and by label."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {name: self._counter_cls(name=f"vllm:stateport_{name}", documentation=text,
                                                  labelnames=[*labelnames, *([label] if label else [])])
                          for name, (text, label) in COUNTED.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, count in transfer_stats_data.items():
            name, _, label = key.partition(":")
            values = [*self.per_engine_labelvalues[engine_idx], *([label] if COUNTED[name][1] else [])]
            self._counters[name].labels(*values).inc(count)
