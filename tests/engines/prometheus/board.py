# SPDX-License-Identifier: Apache-2.0
"""Asks a real Prometheus every query of the boards: board.py [--seconds N]

Exit code 0; 1 with a line for each query without an answer; 77 if there is no prometheus in PATH."""
from __future__ import annotations

import argparse
import functools
import http.server
import importlib
import importlib.util
import json
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.parse
import urllib.request
from typing import Any

import numpy as np
import prometheus_client

ROOT = pathlib.Path(__file__).resolve().parents[3]
BOARDS = ROOT / "docs" / "grafana"
sys.path.insert(0, str(ROOT / "python" / "tests"))
import stateport as sp  # noqa: E402
from served import Served  # noqa: E402

# Series that are there once something has failed.
SILENT = ("failed_reads_total", "failed_writes_total")
RATE = "10s"


def metrics_of_vllm(registry: Any) -> Any:
    """stateport.vllm.metrics over base classes of this test, and the metrics of vLLM itself that a board shows."""
    name = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
    for i in range(name.count(".") + 1):
        part = ".".join(name.split(".")[:i + 1])
        sys.modules[part] = types.ModuleType(part)

    class Base:
        def __init__(self, config: Any, kinds: Any, labels: list[str], values: Any) -> None:
            self._gauge_cls, self._counter_cls, self._histogram_cls = (kinds[kind] for kind in (
                prometheus_client.Gauge, prometheus_client.Counter, prometheus_client.Histogram))
            self.per_engine_labelvalues = values

    sys.modules[name].KVConnectorPromMetrics, sys.modules[name].KVConnectorStats = Base, object  # type: ignore
    kinds = {kind: functools.partial(kind, registry=registry) for kind in (
        prometheus_client.Gauge, prometheus_client.Counter, prometheus_client.Histogram)}
    labels, values = ["model_name", "engine"], {0: ["model", "0"]}
    made = importlib.import_module("stateport.vllm.metrics").StateportPromMetrics(None, kinds, labels, values)
    sources = kinds[prometheus_client.Counter]("vllm:prompt_tokens_by_source", "vLLM's", [*labels, "source"])
    first = kinds[prometheus_client.Histogram]("vllm:time_to_first_token_seconds", "vLLM's", labels)
    return made, sources.labels("model", "0", "local_compute"), first.labels("model", "0")


def metrics_of_sglang(registry: Any) -> Any:
    """stateport.sglang's metrics, whose package imports SGLang, and the metrics of SGLang itself that a board shows."""
    spec = importlib.util.spec_from_file_location("sglang_metrics", ROOT / "python/stateport/sglang/_metrics.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = types.SimpleNamespace(**{name: functools.partial(getattr(prometheus_client, name), registry=registry)
                                     for name in ("Counter", "Gauge", "Histogram")})
    made = module.TierMetrics({"model_name": "model", "tp_rank": "0"}, {"host": 1000, "file": 1000}, kinds)
    cached = kinds.Counter("sglang:cached_tokens_total", "SGLang's", ["model_name", "cache_source"])
    prompts = kinds.Counter("sglang:prompt_tokens_total", "SGLang's", ["model_name"])
    first = kinds.Histogram("sglang:time_to_first_token_seconds", "SGLang's", ["model_name"])
    return made, cached.labels("model", "host"), prompts.labels("model"), first.labels("model")


class Service:
    """Serves prompts, and its metrics: /plain of a cache over tiers, /vllm of the connector, /sglang of numbers that
    grow."""

    def __init__(self, folder: pathlib.Path) -> None:
        from stateport.vllm.options import ConnectorOptions
        from vllm_stand_in import Engine
        self.plain = Served(folder / "plain", cache={
            "integrity": True, "eviction": sp.Eviction("lru", state_bytes=256, kv_bytes_per_token=4)})
        self.engine = Engine(ConnectorOptions(host_bytes=20_000, checkpoint_tokens=8, folder=str(folder / "vllm"),
                                              file_bytes=1 << 26), chance=random.Random(1))
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics, self.sources, self.first = metrics_of_vllm(self.registry)
        self.sglang = prometheus_client.CollectorRegistry()
        self.linker, *self.of_sglang = metrics_of_sglang(self.sglang)
        self.texts = {"/plain": "", "/vllm": "", "/sglang": ""}
        self._chance, self._now_s = random.Random(2), 0.0

    def step(self) -> None:
        from vllm_connector_test import prompt, request, serve
        conversation, turn = self._chance.randrange(8), self._chance.randrange(1, 4)
        self.plain.serve(np.arange(1000 * conversation, 1000 * conversation + 30 * turn + 37, dtype=np.int32))
        begun_s = time.monotonic()
        serve(self.engine, request(f"{begun_s}", prompt(42, conversation)))
        self.sources.inc(42)
        self.first.observe(time.monotonic() - begun_s)
        for told in (self.engine.side.take_statistics(), self.engine.ranks[0].side.counters.take()):
            self.metrics.observe(told)
        for status in ("done", "damaged", "failed"):
            self.linker.count_end("load", status)
        self.linker.count_drop("file")
        self.linker.observe("load", 0.01)
        self.linker.look({"host_images": 1, "host_image_bytes": 100, "file_images": 1, "file_bytes": 100})
        for metric in self.of_sglang:
            getattr(metric, "inc", getattr(metric, "observe", None))(1)
        self.texts = {"/plain": self.plain.cache.prometheus() + self.plain.tiers.prometheus(),
                      "/vllm": prometheus_client.generate_latest(self.registry).decode(),
                      "/sglang": prometheus_client.generate_latest(self.sglang).decode()}

    def listen(self) -> int:
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(service.texts[self.path].encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_port)


class Prometheus:
    def __init__(self, folder: pathlib.Path, target: int) -> None:
        jobs = [{"job_name": name, "metrics_path": f"/{name}", "static_configs": [
            {"targets": [f"127.0.0.1:{target}"]}]} for name in ("plain", "vllm", "sglang")]
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))  # YAML, too
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"])

    def ask(self, query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def expression(query: str) -> str:
    """As Grafana sends it: with the values of variables."""
    for name, value in (("$__rate_interval", RATE), ("$instance", ".*"), ("$model_name", ".*"), ("$engine", ".*"),
                        ("$tp_rank", ".*")):
        query = query.replace(name, value)
    return query


def panels(board: str) -> list[dict[str, Any]]:
    made = json.loads((BOARDS / f"{board}.json").read_text(encoding="utf-8"))
    return [panel for panel in made["panels"] if panel["type"] != "row"]


def check(prometheus: Prometheus) -> tuple[int, list[str]]:
    asked, silent = 0, []
    for board in ("stateport", "stateport-vllm", "stateport-sglang"):
        for panel in panels(board):
            for target in panel["targets"]:
                asked += 1
                query = expression(target["expr"])
                if not prometheus.ask(query) and not any(name in query for name in SILENT):
                    silent.append(f"{board}, {panel['title']}: {query}")
    return asked, silent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=25)
    given = parser.parse_args()
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        return 77
    with tempfile.TemporaryDirectory() as name, sp.Runtime(host_threads=1):
        folder = pathlib.Path(name)
        service = Service(folder)
        service.step()
        prometheus = Prometheus(folder, service.listen())
        try:
            begin_s = time.time()
            while time.time() < begin_s + given.seconds:
                service.step()
                time.sleep(0.02)
            asked, silent = check(prometheus)
        finally:
            prometheus.process.terminate()
            prometheus.process.wait()
        for path, text in service.texts.items():
            told = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
            if path == "/plain" and (told.returncode or told.stderr):
                silent.append(f"promtool: {told.stdout}{told.stderr}")
            print(f"promtool, {path}: exit code {told.returncode} {told.stderr.strip()[:300]}")
    for line in silent:
        print(f"NO ANSWER: {line}")
    print(f"{asked} queries, {len(silent)} without an answer")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())
