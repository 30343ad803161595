# SPDX-License-Identifier: Apache-2.0
"""Metrics of a cache and of its tiers, and the boards that show them."""
from __future__ import annotations

import bisect
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import stateport as sp
from exposition import Exposition
from served import Served
from stateport._library import version
from stateport.cache_options import AGE_BOUNDS_S, TOKEN_BOUNDS
from stateport.vllm.statistics import COUNTED, MEASURED, OBSERVED

pytestmark = pytest.mark.usefixtures("runtime")

BOARDS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "grafana"
# Of vLLM itself.
VLLM_OWN = {"vllm:prompt_tokens_by_source_total", "vllm:time_to_first_token_seconds_bucket"}
_WORDS = {"sum", "by", "rate", "histogram_quantile", "label_values", "le"}


def served(folder: pathlib.Path | None = None, **options: Any) -> Served:
    """Two turns of three prompts, more than the device keeps."""
    engine = Served(folder, **options)
    for _ in range(2):
        for first in (0, 1000, 2000):
            engine.serve(np.arange(first, first + 100, dtype=np.int32))
    return engine


def read(engine: Served) -> Exposition:
    return Exposition(engine.cache.prometheus() + engine.tiers.prometheus())


def test_metrics_of_a_cache_are_its_statistics(tmp_path: pathlib.Path) -> None:
    engine = served(tmp_path / "files")
    seen, stats = read(engine), engine.cache.stats()
    assert seen.get("stateport_prompt_tokens_total") == stats.prompt_tokens == 600
    sources = {dict(labels)["source"]: value for (name, labels), value in seen.values.items()
               if name == "stateport_source_tokens_total"}
    assert sum(sources.values()) == 600 and sources["host"] == stats.loaded_tokens["host"] > 0
    assert sources["device"] + sources["host"] == stats.hit_tokens
    assert seen.get("stateport_states", tier="device") == stats.states
    assert sum(stats.eviction_ages) == stats.evicted_states > 0
    for tier in ("host", "file"):
        usage = engine.cache.tier_usage(tier)
        assert seen.get("stateport_used_bytes", tier=tier, content="all") == usage.bytes
        assert seen.get("stateport_transfers", tier=tier, direction="read") == usage.reads
        assert seen.get("stateport_ended_transfers_total", tier=tier, direction="write",
                        status="done") == usage.ended_writes.get("done", 0)
    assert seen.get("stateport_info", version=version(), index="hash", layout="slots", block_size_tokens="16") == 1


def test_histograms_of_statistics_count_every_request(tmp_path: pathlib.Path) -> None:
    engine, depths = Served(tmp_path / "files"), []
    for length in (40, 112, 20, 127, 30, 127):
        before = engine.cache.stats().hit_tokens
        engine.serve(np.arange(length, dtype=np.int32))
        depths.append(engine.cache.stats().hit_tokens - before)
    stats, seen = engine.cache.stats(), read(engine)
    wanted = [0] * (len(TOKEN_BOUNDS) + 1)
    for depth in depths:
        wanted[bisect.bisect_left(TOKEN_BOUNDS, depth)] += 1
    assert list(stats.hit_depths) == wanted and min(wanted[:2]) > 0, depths
    assert len(stats.hit_depths) == len(TOKEN_BOUNDS) + 1 and len(stats.reuse_ages) == len(AGE_BOUNDS_S) + 1
    assert sum(stats.hit_depths) == sum(stats.loss_depths) == stats.requests == 6
    assert seen.get("stateport_request_hit_tokens_bucket", le=str(TOKEN_BOUNDS[0])) == stats.hit_depths[0]
    assert seen.get("stateport_request_hit_tokens_sum") == stats.hit_tokens


def test_tiers_have_the_times_of_their_transfers(tmp_path: pathlib.Path) -> None:
    engine = served(tmp_path / "files")
    begun = engine.cache.drain()
    engine.tiers.begin_transfers(engine.cache, begun)
    while engine.cache.transfers_under_way:
        engine.tiers.end_transfers(engine.cache)
    seen = read(engine)
    done = engine.cache.tier_usage("host").ended_writes["done"]
    assert seen.get("stateport_transfer_seconds_count", tier="host", direction="store") == done > 0
    written = engine.cache.tier_usage("file").ended_writes["done"]
    assert seen.get("stateport_transfer_seconds_count", tier="file", direction="store") == written > 0
    assert seen.get("stateport_transfer_seconds_sum", tier="file", direction="store") > 0
    assert seen.get("stateport_images", tier="host") == engine.tiers.info()["host_images"]
    assert seen.get("stateport_images", tier="file") == engine.tiers.info()["file_images"] > 0


def test_a_request_that_waits_for_a_load_is_counted() -> None:
    engine = served()
    assert engine.cache.waiting == sp.WaitingRequests(0, 0, 0)
    started = engine.cache.start(np.arange(100, dtype=np.int32))
    assert started is not None and started.load_medium == "host"
    assert engine.cache.waiting == sp.WaitingRequests(0, 1, 0)
    seen = read(engine)
    assert seen.get("stateport_waiting_requests", for_="loads") == 1
    assert seen.get("stateport_transfers", tier="host", direction="read") == engine.cache.tier_usage("host").reads > 0
    assert seen.get("stateport_transfer_bytes", tier="host", direction="read") > 0


def test_the_client_of_prometheus_reads_the_text(tmp_path: pathlib.Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    engine = served(tmp_path / "files")
    text = engine.cache.prometheus("vllm:stateport") + engine.tiers.prometheus("vllm:stateport")
    families = list(parser.text_string_to_metric_families(text))
    mine = Exposition(text)
    assert {family.name for family in families} == {name.removesuffix("_total") for name in mine.types}
    assert {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in families for sample in family.samples} == mine.values


@pytest.mark.parametrize("prefix", ["", "a b", "1", "a-b"])
def test_a_prefix_that_is_none_is_refused(prefix: str) -> None:
    engine = Served()
    for call in (engine.cache.prometheus, engine.tiers.prometheus):
        with pytest.raises(sp.InvalidArgument, match="prefix"):
            call(prefix)


def metrics_of(board: pathlib.Path, more_than: int = 20) -> set[str]:
    """All names in queries of a board, its variables included. more_than: the queries."""
    made = json.loads(board.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]
    queries += [one["query"]["query"] for one in made["templating"]["list"] if one["type"] == "query"]
    assert len(queries) > more_than
    bare = (re.sub(r'"[^"]*"|\[[^]]*\]|by \([^)]*\)|\{[^}]*\}', " ", query) for query in queries)
    return {name for query in bare for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]+", query)
            if name not in _WORDS} - {"instance", "model_name", "engine", "tp_rank"}


def test_a_run_exports_every_metric_of_the_board(tmp_path: pathlib.Path) -> None:
    engine = served(tmp_path / "files", cache={
        "integrity": True, "eviction": sp.Eviction("lru", state_bytes=256, kv_bytes_per_token=4)})
    assert metrics_of(BOARDS / "stateport.json") - read(engine).names == set()


def test_the_connector_for_vllm_exports_every_metric_of_its_board() -> None:
    exported = {f"vllm:stateport_{name}_total" for name in COUNTED} | {f"vllm:stateport_{name}" for name in MEASURED}
    exported |= {f"vllm:stateport_{name}_bucket" for name in OBSERVED} | VLLM_OWN
    wanted = metrics_of(BOARDS / "stateport-vllm.json")
    assert wanted >= VLLM_OWN and wanted - exported == set()


def test_boards_are_those_that_their_program_writes() -> None:
    subprocess.run([sys.executable, "-B", BOARDS / "boards.py", "--check"], check=True)
