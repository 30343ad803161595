# SPDX-License-Identifier: Apache-2.0
"""The trace that the connector for vLLM records, beside the tokens that a stand-in for vLLM really reused."""
from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pytest

import stateport as sp
from conftest import seeds
from stateport.record.recorder import Recorder
from stateport.vllm.options import ConnectorOptions

pytest.importorskip("torch")
from vllm_stand_in import BLOCK, Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

VARIABLE = "STATEPORT_KEY_OF_A_TEST"


def options_of(folder: pathlib.Path, **record: Any) -> ConnectorOptions:
    return ConnectorOptions.read({"host_bytes": 1 << 20, "checkpoint_tokens": 8, "decode_checkpoint_tokens": 4,
                                  "record": {"path": str(folder / "traffic.jsonl"), "block_tokens": BLOCK, **record}})


def lines_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("traffic-*.jsonl"))
            for line in file.read_text().splitlines()]


def test_a_trace_says_what_vllm_reused_of_each_request(tmp_path: pathlib.Path) -> None:
    for seed in seeds(4):
        print("seed", seed)
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        engine = Engine(options_of(folder), chance=chance, budget=16)
        engine.local_hits = chance.random() < 0.5
        prompts = [[chance.randrange(3) for _ in range(60)] for _ in range(2)]
        given_up = []
        for number in range(40):
            tokens = chance.choice(prompts)[:chance.randrange(1, 60)] + [chance.randrange(3)]
            salt = chance.choice([None, None, "a salt"])
            engine.add(Request(f"r{number} {chance.randrange(3)}", tokens, len(tokens), salt, arrival_time=2e9 + number,
                               session_id=chance.choice([None, "chat 1", "chat 2"])))
            for _ in range(chance.randrange(3)):
                engine.step(chance.choice(engine.running) if engine.running and chance.random() < 0.1 else None)
            if chance.random() < 0.1:
                ready = [one for one in engine.requests.values() if not one.waits]
                if ready:
                    given_up.append(chance.choice(ready))
                    engine.finish(given_up[-1], "FINISHED_ABORTED")
        engine.drain()
        counted = engine.side.counters.values
        engine.close()
        header, *lines = lines_of(folder)
        assert header["engine"] == "vllm" and header["block"] == BLOCK
        assert (header["state_bytes"], header["kv_bytes_per_token"]) == (
            engine.ranks[0].info.state_bytes, -(-engine.ranks[0].info.kv_block_bytes // BLOCK))
        assert len(lines) == len(engine.finished) == 40 == counted["recorded"]
        names: dict[Any, int] = {}
        sessions: dict[Any, int] = {}
        for request, line in zip(engine.finished, lines, strict=True):
            prompt = request.prompt_token_ids
            assert (line["input_length"], line["output_length"]) == (len(prompt), request.num_output_tokens)
            assert line.get("hit_tokens", -1) == request.num_cached_tokens
            assert line.get("cancelled", False) == (request in given_up)
            assert (line.get("namespace") is None) == (request.cache_salt is None)
            assert sessions.setdefault(request.session_id, line.get("session")) == line.get("session")
            tier = "host" if request.first_restored else "device" if request.num_cached_tokens > 0 else ""
            assert line.get("hit_tier", "") == tier
            for at, name in enumerate(line["hash_ids"]):
                prefix = request.cache_salt, tuple(prompt[:(at + 1) * BLOCK])
                assert names.setdefault(prefix, name) == name
        assert len(set(names.values())) == len(names)
        assert sum("lost_reason" in line for line in lines) > 0
        assert "a salt" not in (folder / "traffic-000001.jsonl").read_text()


def test_a_recorder_that_fails_harms_no_request(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, request: Any) -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(Recorder, "add", fails)
    engine = Engine(options_of(tmp_path), chance=random.Random(1))
    engine.add(Request("a 0", [1] * 20, 20))
    broken = Request("b 0", [2] * 20, 20)
    broken.arrival_time = None  # type: ignore[assignment]
    engine.add(broken)
    engine.drain()
    assert len(engine.finished) == 2 and engine.side.counters.values["unrecorded"] == 2
    engine.close()


def test_engines_with_one_key_name_prompts_alike(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sixteen bytes of secret")
    for variable in (VARIABLE, VARIABLE, None):
        engine = Engine(options_of(tmp_path, **({"key_variable": variable} if variable else {})),
                        chance=random.Random(1))
        engine.add(Request("a 0", [1] * 20, 20))
        engine.drain()
        engine.close()
    first, second, other = [line["hash_ids"] for line in lines_of(tmp_path) if "hash_ids" in line]
    assert first == second and not set(first) & set(other)


@pytest.mark.parametrize(("record", "text"), [
    ({}, "record has no path"), ({"path": ""}, "record has no path"),
    ({"path": 3}, "record.path is 3, and must be str"),
    ({"path": "x", "key": "secret"}, "record has the key 'key', and engines print"),
    ({"path": "x", "blocks": 3}, "record has the key 'blocks', and may have path, block_tokens"),
    ({"path": "x", "block_tokens": True}, "record.block_tokens is True, and must be int"),
    ({"path": "x", "sample": "1"}, "record.sample is '1', and must be a number")])
def test_wrong_keys_are_refused(record: dict[str, Any], text: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=text):
        ConnectorOptions.read({"record": record})


def test_wrong_values_are_refused_when_the_workers_are_there(tmp_path: pathlib.Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "short")
    for record, text in (({"block_tokens": 0}, "block_tokens is 0"), ({"sample": 2}, "sample is 2"),
                         ({"key_variable": VARIABLE}, "must have 16 to 64 bytes"),
                         ({"key_variable": "STATEPORT_NO_SUCH"}, "is no environment variable"),
                         ({"path": "/no-such/x.jsonl"}, "path is '/no-such/x.jsonl', and cannot be written")):
        with pytest.raises(sp.InvalidArgument, match=text):
            Engine(options_of(tmp_path, **record), chance=random.Random(1))
