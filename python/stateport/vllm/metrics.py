# SPDX-License-Identifier: Apache-2.0
"""The connector's statistics in vLLM's log and in its metrics."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from stateport.vllm.statistics import COUNTED, FORESEEN, MEASURED, OBSERVED, Counters, labels_of


@dataclasses.dataclass
class StateportStats(KVConnectorStats):  # type: ignore[misc]
    """data: as Counters.data: by "name" or "name:label" (stateport.vllm.statistics)."""

    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: StateportStats) -> StateportStats:
        sums = Counters(self.data)
        sums.merge(other.data)
        return StateportStats(data=sums.data())

    def reduce(self) -> dict[str, int | float]:
        """Counts, and means of observations: levels are for metrics alone."""
        seen = Counters(self.data)
        means = {f"{key} mean": statistics.fmean(samples) for key, samples in seen.samples.items()}
        return dict(sorted({**seen.values, **means}.items()))

    def is_empty(self) -> bool:
        return not self.data


# By class, name and labels. vLLM unregisters its metrics before it makes new ones, so that one which can be made is
# made; a second connector of an engine finds its names taken, and shares the metrics of the first.
_made: dict[tuple[type, str, tuple[str, ...]], Any] = {}


def _make(kind: Any, name: str, text: str, labels: list[str], **options: Any) -> Any:
    key = (kind, name, tuple(labels))
    try:
        _made[key] = kind(name=f"vllm:stateport_{name}", documentation=text, labelnames=labels, **options)
    except ValueError:  # the name is taken
        if key not in _made:
            raise
    return _made[key]


class StateportPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Counters vllm:stateport_<name>_total, histograms and gauges vllm:stateport_<name>, by engine and by label."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counters = {name: _make(self._counter_cls, name, text, [*labelnames, *labels])
                    for name, (text, labels) in COUNTED.items()}
        histograms = {name: _make(self._histogram_cls, name, text, [*labelnames, *labels], buckets=list(bounds))
                      for name, (text, labels, bounds) in OBSERVED.items()}
        gauges = {name: _make(self._gauge_cls, name, text, [*labelnames, *labels], multiprocess_mode="mostrecent")
                  for name, (text, labels) in MEASURED.items()}
        self._metrics = counters | histograms | gauges
        for name, metric in (counters | histograms).items():  # they are there, with 0, before anything happens
            for labels in [()] if not labels_of(name) else [(value,) for value in FORESEEN.get(name, ())]:
                for values in per_engine_labelvalues.values():
                    metric.labels(*values, *labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, value in transfer_stats_data.items():
            name, *labels = key.split(":", len(labels_of(key.partition(":")[0])))
            metric = self._metrics[name].labels(*self.per_engine_labelvalues[engine_idx], *labels)
            if name in COUNTED:
                metric.inc(value)
            elif name in MEASURED:
                metric.set(value)
            else:
                for sample in value:
                    metric.observe(sample)
