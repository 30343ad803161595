# SPDX-License-Identifier: Apache-2.0
"""Metrics of the adapters to SGLang, without SGLang."""
from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest

import stateport as sp
from metrics_test import BOARDS, metrics_of
from sglang_events_test import adapter as adapter

client = pytest.importorskip("prometheus_client")

LABELS = {"model_name": "m", "tp_rank": "3"}
SGLANG_OWN = {"sglang:cached_tokens_total", "sglang:prompt_tokens_total", "sglang:time_to_first_token_seconds_bucket"}


def load() -> Any:
    """The module alone: its package imports SGLang."""
    file = pathlib.Path(sp.__file__).parent / "sglang" / "_metrics.py"
    spec = importlib.util.spec_from_file_location("linker_metrics", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(**more: Any) -> Any:
    return types.SimpleNamespace(**{"enable_metrics": True, "served_model_name": "m", "model_path": "path", **more})


INFO = {"host_images": 3, "host_image_bytes": 300, "file_images": 4, "file_bytes": 4000}


def use(metrics: Any) -> None:
    metrics.count_end("load", "done")
    metrics.count_end("to file", "damaged")
    metrics.count_drop("host")
    metrics.observe("offload", 0.25)
    metrics.look(INFO)


def check(value: Any) -> None:
    """value: of a sample, by name and labels."""
    assert value("sglang:stateport_transfers_total", {**LABELS, "kind": "to file", "status": "damaged"}) == 1
    assert value("sglang:stateport_dropped_images_total", {**LABELS, "tier": "host"}) == 1
    assert value("sglang:stateport_job_seconds_sum", {**LABELS, "kind": "offload"}) == 0.25
    assert value("sglang:stateport_images", {**LABELS, "tier": "host"}) == 3
    assert value("sglang:stateport_image_bytes", {**LABELS, "tier": "file"}) == 4000
    assert value("sglang:stateport_capacity_bytes", {**LABELS, "tier": "file"}) == 20


def test_the_linker_counts_into_the_registry_that_sglang_has() -> None:
    use(load().make_metrics(arguments(), 3, {"host": 10, "file": 20}))
    check(client.REGISTRY.get_sample_value)


def test_a_storage_that_is_attached_anew_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = client.CollectorRegistry()
    for name in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(client, name, functools.partial(getattr(client, name), registry=registry))
    module = load()
    for file_bytes in (10, 20):
        module.open_metrics(True, "m", 3, {"host": 0, "file": file_bytes}).count_end("load", "done")
    assert registry.get_sample_value("sglang:stateport_capacity_bytes", {**LABELS, "tier": "file"}) == 20
    assert registry.get_sample_value("sglang:stateport_transfers_total", {
        **LABELS, "kind": "load", "status": "done"}) == 2


def test_they_have_every_metric_of_the_board() -> None:
    registry = client.CollectorRegistry()
    kinds = types.SimpleNamespace(**{name: functools.partial(getattr(client, name), registry=registry)
                                     for name in ("Counter", "Gauge", "Histogram")})
    use(load().TierMetrics(LABELS, {"host": 10, "file": 20}, kinds))
    exported = {sample.name for family in registry.collect() for sample in family.samples}
    wanted = metrics_of(BOARDS / "stateport-sglang.json", 12)
    assert wanted > SGLANG_OWN and wanted - SGLANG_OWN - exported == set()


@pytest.mark.parametrize("are_enabled", [True, False])
def test_the_storage_counts_what_it_reads_and_writes(
        adapter: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, are_enabled: bool) -> None:
    registry = client.CollectorRegistry()
    monkeypatch.setattr(client, "REGISTRY", registry)
    for name in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(client, name, functools.partial(getattr(client, name), registry=registry))
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "int8", (64,))])
    tier = sp.FileTier(tmp_path / "images", kv=spec, model="m", file_bytes=1 << 16)
    layout = tier.layout("kv_block")
    cache = sp.ImageCache(file_bytes=2 * layout.image_bytes, kv_image_bytes=layout.image_bytes)
    metrics = adapter._metrics.open_metrics(are_enabled, "m", 3, {"host": 0, "file": 2 * layout.image_bytes})
    files = adapter._files.WaitingFiles(tier, cache, metrics)
    keys = adapter._keys.page_keys([f"{page:0<48}" for page in range(1, 4)], "kv_block")
    for key in range(3):
        assert files.write(keys[key:key + 1], list(layout.new_images(1)))
    assert files.read(keys[1:], list(layout.new_images(2))) == ["done"] * 2
    assert files.read(keys[:1], list(layout.new_images(1))) == ["gone"]

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(f"sglang:stateport_{name}", {**LABELS, **labels})

    told = (value("transfers_total", kind="to file", status="done"),
            value("transfers_total", kind="load", status="done"),
            value("transfers_total", kind="load", status="gone"), value("dropped_images_total", tier="file"),
            value("job_seconds_count", kind="offload"), value("images", tier="file"))
    assert told == ((3, 2, 1, 1, 3, 2) if are_enabled else (None,) * 6)
    files.close()


def test_there_are_no_metrics_where_sglang_has_none() -> None:
    module = load()
    for given in (None, arguments(enable_metrics=False)):
        assert module.make_metrics(given, 0, {"host": 10, "file": 20}) is None


def test_a_tier_that_is_not_there_has_no_levels() -> None:
    registry = client.CollectorRegistry()
    kinds = types.SimpleNamespace(**{name: functools.partial(getattr(client, name), registry=registry)
                                     for name in ("Counter", "Gauge", "Histogram")})
    use(load().TierMetrics(LABELS, {"host": 10, "file": 0}, kinds))
    assert registry.get_sample_value("sglang:stateport_images", {**LABELS, "tier": "host"}) == 3
    assert registry.get_sample_value("sglang:stateport_images", {**LABELS, "tier": "file"}) is None


def test_the_server_reads_what_another_process_counted(tmp_path: pathlib.Path) -> None:
    """As in SGLang: the scheduler's process writes to a folder, and the server's answers /metrics."""
    code = "import sglang_metrics_test as t; t.use(t.load().make_metrics(t.arguments(), 3, {'host': 10, 'file': 20}))"
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": path})
    from prometheus_client import multiprocess
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))
    check(registry.get_sample_value)
