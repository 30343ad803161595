# SPDX-License-Identifier: Apache-2.0
"""The recorder in SGLang, beside stand-ins for the two methods of SGLang 0.5.23 that it hooks."""
from __future__ import annotations

import array
import asyncio
import json
import pathlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import seeds
from stateport.record import sglang_plugin
from stateport.record.convert import convert


class HookRegistry:
    """As SGLang's: a hook gets the result, then the arguments of the call."""
    hooks: dict[str, Any] = {}

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: str) -> None:
        assert hook_type == "after"
        cls.hooks[target.rsplit(".", 1)[1]] = hook


class Manager:
    """Of exporters, and of tokens."""

    def __init__(self) -> None:
        self.server_args = types.SimpleNamespace(served_model_name="a model")
        self._exporters: list[Any] = []
        HookRegistry.hooks["_create_exporters"](None, self)

    def tokenize(self, obj: Any, tokens: list[int] | None, **inputs: Any) -> None:
        result = types.SimpleNamespace(input_ids=None if tokens is None else array.array("q", tokens))
        HookRegistry.hooks["_create_tokenized_object"](result, self, obj, "a text", tokens, **inputs)

    def end(self, obj: Any, **meta: Any) -> None:
        for exporter in self._exporters:
            asyncio.run(exporter.write_record(obj, {"text": "", "meta_info": meta}))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", types.SimpleNamespace(  # type: ignore[arg-type]
        HookRegistry=HookRegistry, HookType=types.SimpleNamespace(AFTER="after")))
    monkeypatch.setattr(HookRegistry, "hooks", {})
    yield HookRegistry.hooks


def request(name: str, **fields: Any) -> Any:
    return types.SimpleNamespace(rid=name, **fields)


def lines_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("traffic-*.jsonl")) for line in
            file.read_text().splitlines()]


def start(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Manager:
    monkeypatch.setenv(sglang_plugin.VARIABLE, json.dumps({"path": str(folder / "traffic.jsonl"), **options}))
    sglang_plugin.register()
    return Manager()


def test_requests_of_sglang_become_the_lines_that_its_export_becomes(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Any]) -> None:
    monkeypatch.setenv("STATEPORT_KEY_OF_A_TEST", "sixteen bytes of secret")
    for seed in seeds(20):
        print("seed", seed)
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        manager = start(folder, monkeypatch, block_tokens=4, key_variable="STATEPORT_KEY_OF_A_TEST")
        prompts = [[draw.randrange(1 << 20) for _ in range(30)] for _ in range(2)]
        running: list[tuple[Any, list[int]]] = []
        exported = []
        for number in range(60):
            if draw.random() < 0.5 or not running:
                tokens = draw.choice(prompts)[:draw.randrange(1, 30)]
                obj = request(f"r{number}", session_id=draw.choice([None, "s"]), session_params=None,
                              cache_salt=draw.choice([None, "salt"]), extra_key=None, lora_path=None)
                manager.tokenize(obj, tokens)
                running.append((obj, tokens))
                continue
            obj, tokens = running.pop(draw.randrange(len(running)))
            meta = {"completion_tokens": number, "request_received_ts": 2e9 + number, "cached_tokens": len(tokens) // 2,
                    "finish_reason": {"type": draw.choice(["abort", "stop"])}}
            manager.end(obj, **meta)
            exported.append({"request_parameters": json.dumps({**vars(obj), "input_ids": tokens}), **meta})
        (traffic,) = manager._exporters
        traffic.close()
        assert traffic.unrecorded == 0
        header, *lines = lines_of(folder)
        assert (header["engine"], header["model"], header["block"]) == ("sglang", "a model", 4)
        (folder / "export.log").write_text("".join(json.dumps(record) + "\n" for record in exported))
        convert("sglang", [str(folder / "export.log")], str(folder / "converted.jsonl"), block_tokens=4,
                key=b"sixteen bytes of secret")
        wanted = [json.loads(line) for line in (folder / "converted.jsonl").read_text().splitlines()][1:]
        for line, other in zip(lines, wanted, strict=True):
            assert abs(line.pop("timestamp") + header["began"] - other.pop("timestamp")) <= 1  # both are rounded to ms
            assert line.pop("hit_tier", "device") == "device"
            assert line == other
        text = "".join(file.read_text() for file in folder.glob("traffic-*"))
        assert not any(f"{token}," in text for prompt in prompts for token in prompt if token > 1 << 16)


@pytest.mark.parametrize(("details", "tier"), [
    ({"device": 4, "host": 0}, "device"), ({"device": 4, "host": 2}, "host"), (None, "device"),
    ({"device": 4, "host": 2, "storage": 1, "storage_backend": "file"}, "file"),
    ({"device": 0, "host": 0, "storage": 1, "storage_backend": "mooncake"}, "remote"),
    ({"device": 4, "host": 0, "storage": 0, "storage_backend": "file"}, "device")])
def test_the_slowest_part_of_a_hit_is_its_tier(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                               hooks: dict[str, Any], details: Any, tier: str) -> None:
    manager = start(tmp_path, monkeypatch)
    obj = request("r")
    manager.tokenize(obj, list(range(9)))
    manager.end(obj, cached_tokens=99, cached_tokens_details=details)
    manager._exporters[0].close()
    assert [(line["hit_tokens"], line["hit_tier"]) for line in lines_of(tmp_path)[1:]] == [(9, tier)]


def test_requests_that_tokens_do_not_tell_apart_are_left_out(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                             hooks: dict[str, Any]) -> None:
    manager = start(tmp_path, monkeypatch)
    monkeypatch.setattr(sglang_plugin, "_REMEMBERED", 3)
    for name, inputs in (("image", {"mm_inputs": [1]}), ("embeddings", {"input_embeds": [[0.5]]})):
        manager.tokenize(request(name), [1, 2], **inputs)
        manager.end(request(name), completion_tokens=1)
    manager.tokenize(request("late tokens"), None)
    for number in range(4):  # the first one is forgotten
        manager.tokenize(request(f"r{number}"), [1, 2])
    for name in ("late tokens", "r0", "r1", "HEALTH_CHECK_7", "never seen"):
        manager.end(request(name), completion_tokens=1)
    manager.end(object(), completion_tokens=1)
    manager.end(request("r2"), completion_tokens="no number")
    (traffic,) = manager._exporters
    traffic.close()
    assert traffic.unrecorded == 7 and len(lines_of(tmp_path)) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"path": 7}', '{"path": "x", "key": "secret"}'])
def test_wrong_options_record_nothing_and_stop_nobody(text: str, monkeypatch: pytest.MonkeyPatch,
                                                      hooks: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(sglang_plugin.VARIABLE, text)
    sglang_plugin.register()
    assert not hooks and bool(caplog.records) == bool(text) and "secret" not in caplog.text


def test_a_path_that_cannot_be_written_records_nothing_and_stops_nobody(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Any],
        caplog: pytest.LogCaptureFixture) -> None:
    manager = start(tmp_path / "absent", monkeypatch)
    manager.tokenize(request("r"), [1])
    manager.end(request("r"))
    assert not manager._exporters and "absent" in caplog.text


def test_without_sglang_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                                          caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    monkeypatch.setenv(sglang_plugin.VARIABLE, json.dumps({"path": str(tmp_path / "traffic.jsonl")}))
    sglang_plugin.register()
    assert "records nothing" in caplog.text and not list(tmp_path.iterdir())
