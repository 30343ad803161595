# SPDX-License-Identifier: Apache-2.0
"""Statistics of the connector for vLLM: what the two sides tell, and the metrics that become of it."""
from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pathlib
import random
import sys
import types
from typing import Any

import pytest

from stateport.vllm import watch
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.statistics import COUNTED, MEASURED, OBSERVED, Counters

pytestmark = pytest.mark.usefixtures("runtime")

OPTIONS = ConnectorOptions(host_bytes=20_000, checkpoint_tokens=8, decode_checkpoint_tokens=4)


@pytest.fixture
def engine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small pools over files, after some prompts, each twice. Every look is due."""
    pytest.importorskip("torch")
    from vllm_connector_test import prompt, request, serve
    from vllm_stand_in import Engine
    monkeypatch.setattr(watch, "WATCH_S", 0.0)
    options = dataclasses.replace(OPTIONS, folder=str(tmp_path / "files"), file_bytes=1 << 26)
    made = Engine(options, chance=random.Random(1))
    for _ in range(2):
        for seed in range(6):
            serve(made, request(f"p{seed}", prompt(42, seed)))
    yield made
    made.close()


def test_levels_and_counts_are_those_of_the_cache(engine: Any) -> None:
    side = engine.side
    told = side.take_statistics()
    stats, files = side.cache.stats(), side.cache.tier_usage("file")
    assert told["states:host"] == stats.states and told["states:file"] == files.states > 0
    assert told["kv_tokens:host"] == stats.kv_tokens > 0
    assert told["evicted_states:host"] == stats.evicted_states > 0
    assert told["used_bytes:host:state"] <= told["capacity_bytes:host:state"]
    assert told["used_bytes:host:kv"] <= told["capacity_bytes:host:kv"]
    assert told["used_bytes:file:all"] == files.bytes <= told["capacity_bytes:file:all"] == 1 << 26
    assert told["waiting_prompts:loads"] == told["transfers:file:read"] == 0
    assert "transfers:file:find" not in told
    assert len(told["reuse_age_seconds"]) == sum(stats.reuse_ages) > 0
    assert len(told["eviction_age_seconds"]) == stats.evicted_states


def test_counts_are_told_once_and_levels_each_time(engine: Any) -> None:
    first, second = engine.side.take_statistics(), engine.side.take_statistics()
    assert set(first) - set(second) >= {"evicted_states:host", "reuse_age_seconds", "prompts", "wait_seconds"}
    assert {key: first[key] for key in second} == second and "states:host" in second


def test_the_cache_is_looked_at_from_time_to_time(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watch, "WATCH_S", 1.0)
    engine.side.take_statistics()
    assert not engine.side.take_statistics()
    clock[0] += 1
    assert engine.side.take_statistics()


def test_every_prompt_has_its_depth_and_every_wait_its_time(engine: Any) -> None:
    told = engine.side.take_statistics()
    assert len(told["request_hit_tokens"]) == len(told["request_lost_tokens"]) == told["prompts"] == 12
    hits = {key: count for key, count in told.items() if key.startswith("hit_tokens:")}
    assert sum(told["request_hit_tokens"]) == sum(hits.values()) and hits["hit_tokens:file"] > 0
    lost = [count for key, count in told.items() if key.startswith("lost_tokens:")]
    assert sum(told["request_lost_tokens"]) == sum(lost)
    loads = told["load_seconds:file"]
    assert len(loads) == len(told["wait_seconds"]) == told["hits:file"]
    assert min(loads + told["wait_seconds"]) > 0
    assert "find_seconds" not in told


def test_a_worker_tells_the_time_of_its_copies(engine: Any) -> None:
    told = engine.ranks[0].side.counters.take()
    assert set(told) == {"restore_seconds", "save_seconds"}
    assert all(seconds > 0 for samples in told.values() for seconds in samples)


def test_statistics_survive_their_way_as_plain_data() -> None:
    one = Counters()
    one.add("hits", 2, "file")
    one.observe("load_seconds", 0.5, "file")
    one.set("used_bytes", 3, "host", "kv")
    other = Counters(json.loads(json.dumps(one.take())))
    other.set("used_bytes", 7, "host", "kv")
    later = Counters({"hits:file": 1, "load_seconds:file": [2], "used_bytes:host:kv": 4})
    other.merge(later.data())
    assert later.samples == {"load_seconds:file": [2]}
    assert other.take() == {"hits:file": 3, "load_seconds:file": [0.5, 2], "used_bytes:host:kv": 4}
    assert one.take() == other.take() == {}
    for call in (one.observe, one.set):
        with pytest.raises(KeyError):
            call("unknown", 1)


class _Stats:
    pass


class _PromMetrics:
    """vLLM's base class, as far as ours uses it."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], values: Any) -> None:
        from prometheus_client import Counter, Gauge, Histogram
        self._gauge_cls, self._counter_cls, self._histogram_cls = (metric_types[kind] for kind in (
            Gauge, Counter, Histogram))
        self.per_engine_labelvalues = values


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """stateport.vllm.metrics without vLLM."""
    name = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
    for i in range(name.count(".") + 1):
        part = ".".join(name.split(".")[:i + 1])
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    sys.modules[name].KVConnectorPromMetrics = _PromMetrics  # type: ignore[attr-defined]
    sys.modules[name].KVConnectorStats = _Stats  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "stateport.vllm.metrics", raising=False)
    yield importlib.import_module("stateport.vllm.metrics")
    sys.modules.pop("stateport.vllm.metrics", None)


def test_two_connectors_of_an_engine_share_metrics_and_a_later_engine_has_new_ones(metrics: Any) -> None:
    client = pytest.importorskip("prometheus_client")

    def classes(registry: Any) -> Any:
        return {kind: functools.partial(kind, registry=registry)
                for kind in (client.Counter, client.Gauge, client.Histogram)}

    registry = client.CollectorRegistry()
    kinds = classes(registry)
    first, second = (metrics.StateportPromMetrics(None, kinds, ["engine"], {0: ["0"], 1: ["1"]}) for _ in range(2))
    first.observe({"hits:file": 2, "load_seconds:file": [0.5, 2.0], "used_bytes:host:kv": 4, "prompts": 3}, 1)
    second.observe({"hits:file": 1, "load_seconds:file": [4.0], "used_bytes:host:kv": 5,
                    "failed_reads:file:damaged": 1}, 1)
    for sample, labels, value in (
            ("hits_total", {"tier": "file"}, 3), ("prompts_total", {}, 3),
            ("used_bytes", {"tier": "host", "content": "kv"}, 5), ("load_seconds_count", {"tier": "file"}, 3),
            ("load_seconds_bucket", {"tier": "file", "le": "0.5"}, 1), ("load_seconds_sum", {"tier": "file"}, 6.5),
            ("failed_reads_total", {"tier": "file", "status": "damaged"}, 1)):
        assert registry.get_sample_value(f"vllm:stateport_{sample}", {"engine": "1", **labels}) == value, sample
    for collector in {*registry._collector_to_names}:
        registry.unregister(collector)
    metrics.StateportPromMetrics(None, kinds, ["engine"], {0: ["0"]}).observe({"prompts": 7})
    assert registry.get_sample_value("vllm:stateport_prompts_total", {"engine": "0"}) == 7


def test_all_statistics_have_a_metric(metrics: Any) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    kinds = {kind: functools.partial(kind, registry=registry)
             for kind in (client.Counter, client.Gauge, client.Histogram)}
    made = metrics.StateportPromMetrics(None, kinds, ["engine"], {0: ["0"]})
    for sample, labels in (("prompts_total", {}), ("wait_seconds_count", {}), ("lost_tokens_total", {
            "reason": "evicted"})):
        assert registry.get_sample_value(f"vllm:stateport_{sample}", {"engine": "0", **labels}) == 0
    for group, value in ((COUNTED, 1), (MEASURED, 1), (OBSERVED, [1])):
        for name, (_, labels, *_) in group.items():  # type: ignore[attr-defined]
            made.observe({":".join([name, *("x" for _ in labels)]): value})
    text = client.generate_latest(registry).decode()
    assert all(f"vllm:stateport_{name}" in text for name in (*COUNTED, *MEASURED, *OBSERVED))


def test_the_log_has_counts_and_means(metrics: Any) -> None:
    stats = metrics.StateportStats(data={"hits:file": 1, "wait_seconds": [1, 2], "states:host": 5})
    more = stats.aggregate(metrics.StateportStats(data={"wait_seconds": [6], "states:host": 4}))
    assert more.reduce() == {"hits:file": 1, "wait_seconds mean": 3} and more.data["states:host"] == 4
    assert stats.data["wait_seconds"] == [1, 2] and not stats.is_empty()
