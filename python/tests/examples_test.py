# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python run against the package."""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"


def _run(name: str) -> str:
    done = subprocess.run([sys.executable, "-B", EXAMPLES / name], capture_output=True, text=True, check=False,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scheduler_reuses_a_prefix() -> None:
    first, second = (int(tokens) for tokens in re.findall(r"(\d+) of \d+ tokens reused", _run("scheduler.py")))
    assert first == 0 and second >= 128


def test_a_state_of_torch_tensors_comes_back() -> None:
    pytest.importorskip("torch")
    assert "came back" in _run("torch_tensors.py")


def test_an_image_cache_brings_a_state_back() -> None:
    assert "4 of 4 states" in _run("image_cache.py")


def test_a_config_has_the_sizes_of_its_model() -> None:
    lines = _run("model_sizes.py").splitlines()
    assert lines[0].startswith("qwen3.5-9b: gdn in 24 of 32 layers, 49.12 MiB a state, 32,768 bytes of KV a token; ver")
    assert "kda in 34 of 45 layers, 140.78 MiB a state, KV not known" in lines[1]
    assert lines[2] == ("qwen3_next: gdn in 6 of 8 layers, 0.11 MiB a state, 1,024 bytes of KV a token; from its "
                        "config.json")


def test_a_turn_continues_from_a_named_position() -> None:
    assert "496 of 500 tokens" in _run("named_positions.py")


def test_new_weights_find_nothing_of_old_ones() -> None:
    assert "496 with old weights, then 0 and 496; 0 of a new adapter" in _run("new_weights.py")


def test_a_flood_takes_nothing_of_a_floor() -> None:
    assert "reused: 0 of 496 without a floor, 496 with one" in _run("tenant_shares.py")


def test_a_prompt_of_many_answers_is_computed_once() -> None:
    assert "computed: 16,000 alone, 1,600 with refresh, 1,120 with waiting" in _run("shared_prefix.py")


def test_samples_and_beams_compute_their_prompt_once() -> None:
    assert "tokens computed, 92 forks" in _run("forks.py")


def test_a_router_predicts_what_its_workers_reuse() -> None:
    pytest.importorskip("msgspec")
    numbers = re.findall(r"\d[\d,]*", _run("routed_fleet.py"))
    reused, tokens, predicted = (int(number.replace(",", "")) for number in numbers)
    assert predicted == reused and tokens // 2 < reused < tokens


def test_a_router_that_comes_late_hears_what_it_missed() -> None:
    pytest.importorskip("msgspec")
    pytest.importorskip("zmq")
    assert "1 message missed and repeated; the worker is known" in _run("published_events.py")


def test_ranks_share_a_state_through_a_store() -> None:
    assert "their halves" in _run("shared_store.py")


def test_turns_of_a_chat_are_recorded() -> None:
    assert "3 of 4 blocks are those of the first turn; {'written': 2}" in _run("record_traffic.py")


def test_a_chat_reuses_its_turns() -> None:
    pytest.importorskip("transformers")
    reused = [int(tokens) for tokens in re.findall(r"(\d+) of \d+ tokens reused", _run("transformers_chat.py"))]
    assert len(reused) == 3 and reused[0] == 0 and reused[2] > reused[1] > 0
