# SPDX-License-Identifier: Apache-2.0
"""Traces from the records of LMCache and SGLang, with the fields that those write."""
from __future__ import annotations

import gzip
import itertools
import json
import pathlib
import random
from typing import Any

import pytest

import stateport as sp
from conftest import seeds
from stateport.record.__main__ import main
from stateport.record.convert import convert

VARIABLE = "STATEPORT_KEY_OF_A_TEST"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sixteen bytes of secret")


def write(path: pathlib.Path, records: list[Any]) -> str:
    text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def converted(kind: str, folder: pathlib.Path, sources: list[str], *options: str,
              name: str = "trace.jsonl") -> list[dict[str, Any]]:
    assert main(["convert", kind, *sources, "--to", str(folder / name), "--key-variable", VARIABLE, *options]) == 0
    assert (folder / name).stat().st_mode & 0o77 == 0
    data = (folder / name).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if name.endswith(".gz") else data).splitlines()]


numbers = itertools.count()


def lookup(**fields: Any) -> dict[str, Any]:
    return {"timestamp": 1711929600.123, "request_id": f"req-{next(numbers)}", "model_name": "DeepSeek-V3",
            "chunk_size": 256, "seq_len": 700, "dtypes": ["float8_e4m3fn"], "shapes": [[32, 256, 128]],
            "chunk_hashes": ["0xab", "0xcd"], **fields}


def test_look_ups_of_lmcache_become_a_trace(tmp_path: pathlib.Path) -> None:
    first = write(tmp_path / "a.jsonl", [lookup(), lookup(timestamp=1711929601, seq_len=256, chunk_hashes=["0xab"])])
    second = write(tmp_path / "b.jsonl.gz", [lookup(seq_len=255, chunk_hashes=[]),
                                             lookup(seq_len=768, chunk_hashes=["0xcd", "0xab", "0xef"])])
    header, *lines = converted("lmcache", tmp_path, [first, second], "--state-bytes", "4096", name="trace.jsonl.gz")
    assert header == {"stateport_trace": 1, "block": 256, "began": 0, "model": "DeepSeek-V3", "state_bytes": 4096,
                      "kv_bytes_per_token": 32 * 128, "engine": "lmcache", "sample": 1.0}
    assert [(line["timestamp"], line["input_length"]) for line in lines] == [
        (1711929600123, 700), (1711929601000, 256), (1711929600123, 255), (1711929600123, 768)]
    one, two = lines[0]["hash_ids"]
    assert lines[1]["hash_ids"] == [one] and lines[2]["hash_ids"] == [] and lines[3]["hash_ids"][:2] == [two, one]
    assert "output_length" not in lines[0] and 0xab not in (one, two)


@pytest.mark.parametrize("damage", [slice(0, -9), slice(0, 20)])
def test_a_damaged_file_of_gzip_is_named(tmp_path: pathlib.Path, damage: slice) -> None:
    source = tmp_path / "a.jsonl.gz"
    write(source, [lookup() for _ in range(30)])
    source.write_bytes(source.read_bytes()[damage])
    with pytest.raises(sp.InvalidArgument, match="a.jsonl.gz is no whole file of gzip"):
        convert("lmcache", [str(source)], str(tmp_path / "trace.jsonl"))
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl.gz"]


@pytest.mark.parametrize(("types", "shapes", "bytes_of_token"), [
    (["torch.bfloat16"], [[2, 4, 256, 64]], 2 * 4 * 64 * 2),
    (["bfloat16", "uint8"], [[4, 256, 8], [256, 3]], 4 * 8 * 2 + 3),
    (["bfloat16"], [[4, 255, 8]], None), (["complex"], [[4, 256, 8]], None), ([], [], None),
    (["bfloat16"], [[4, 256, 8], [256, 3]], None)])
def test_kv_of_a_token_follows_from_shapes_if_they_say_it(tmp_path: pathlib.Path, types: list[str],
                                                          shapes: list[list[int]], bytes_of_token: int | None) -> None:
    source = write(tmp_path / "a.jsonl", [lookup(dtypes=types, shapes=shapes)])
    assert converted("lmcache", tmp_path, [source])[0].get("kv_bytes_per_token") == bytes_of_token


def exported(tokens: Any, **fields: Any) -> dict[str, Any]:
    parameters = {"input_ids": tokens, "rid": "r", **fields.pop("parameters", {})}
    return {"request_parameters": json.dumps(parameters), "id": "r", "finish_reason": {"type": "stop"},
            "prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 4, "e2e_latency": 1.5,
            "request_received_ts": 1711929600.5, **fields}


def test_exports_of_sglang_become_a_trace(tmp_path: pathlib.Path) -> None:
    chat = {"session_params": {"id": "chat"}}
    source = write(tmp_path / "a.log", [
        exported([1, 2, 3, 4, 5]), exported([1, 2, 3, 4, 9, 9, 9, 9], cached_tokens=99, completion_tokens=0),
        exported([1, 2, 3, 4], parameters={"cache_salt": "x", "session_id": "chat"}),
        exported([1, 2, 3, 4], parameters={"extra_key": "y", **chat}, finish_reason={"type": "abort", "message": ""}),
        exported([1, 2, 3, 4], parameters={"lora_path": None, **chat}, cached_tokens=None)])
    header, *lines = converted("sglang", tmp_path, [source], "--block-tokens", "4", "--model", "m")
    assert header == {"stateport_trace": 1, "block": 4, "began": 0, "model": "m", "engine": "sglang", "sample": 1.0}
    name, = lines[0]["hash_ids"]
    assert lines[0] == {"timestamp": 1711929600500, "input_length": 5, "output_length": 5, "hash_ids": [name],
                        "hit_tokens": 4}
    assert lines[1]["hash_ids"][0] == name and lines[1]["hit_tokens"] == 8 and lines[1]["output_length"] == 0
    assert lines[4]["hash_ids"] == [name] and "hit_tokens" not in lines[4] and "namespace" not in lines[4]
    assert len({name, lines[2]["hash_ids"][0], lines[3]["hash_ids"][0]}) == 3
    assert lines[2]["namespace"] != lines[3]["namespace"]
    assert lines[2]["session"] == lines[3]["session"] == lines[4]["session"] and lines[3]["cancelled"]


def test_records_that_are_no_requests_are_counted(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.log", [
        "", exported([1]), exported(None, parameters={"text": "a secret"}), exported([]), exported([[1], [2]]),
        exported([1], request_received_ts=None), exported([1], completion_tokens=-1), exported([2**40] * 64),
        {**exported([1]), "request_parameters": "7"}])
    assert len(converted("sglang", tmp_path, [source])) == 2
    assert sorted(capsys.readouterr().out.splitlines()) == sorted([
        "1 written", "3 no input_ids: the prompt is there as text, or as other inputs, alone",
        "1 request_received_ts is no time in seconds", "1 completion_tokens is no whole number from 0 on",
        "1 a token is no number of 32 bits", "1 request_parameters is no object"])
    source = write(tmp_path / "b.jsonl", [lookup(), lookup(chunk_size=0), lookup(seq_len="7"), lookup(timestamp=-1),
                                          lookup(chunk_hashes=["0xab"]), lookup(chunk_hashes=None),
                                          lookup(request_id="again"), lookup(request_id="again"),
                                          lookup(request_id="")])
    assert len(converted("lmcache", tmp_path, [source], name="b-trace.jsonl")) == 4
    assert sorted(capsys.readouterr().out.splitlines()) == sorted([
        "3 written", "1 the request was looked up before", "1 chunk_size is no whole number from 1 on",
        "1 seq_len is no whole number from 1 on",
        "1 timestamp is no time in seconds", "2 chunk_hashes has fewer than the whole chunks of seq_len"])


def test_what_cannot_be_converted_leaves_no_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.jsonl"
    for number, (kind, records, options, text) in enumerate([
            ("lmcache", [lookup(), "{x"], [], "line 2 is no JSON"),
            ("lmcache", ["[1]"], [], "line 1 is no JSON object"),
            ("lmcache", [lookup(), lookup(chunk_size=350)], [], "line 2 has model_name and chunk_size"),
            ("lmcache", [lookup(), lookup(model_name="x")], [], "line 2 has model_name and chunk_size"),
            ("lmcache", [lookup(seq_len=0)], [], "the sources have no request"),
            ("sglang", [{"request_parameters": "{"}], [], "line 1: request_parameters is no JSON"),
            ("sglang", [exported([1])], ["--block-tokens", "0"], "--block-tokens is 0"),
            ("sglang", [exported([1])], ["--state-bytes", "-1"], "--state-bytes is -1"),
            ("sglang", [exported([1])], ["--key-variable", "STATEPORT_NO_SUCH"], "is no environment variable")]):
        source = write(tmp_path / f"source{number}", records)
        assert main(["convert", kind, source, "--to", str(target), *options]) == 2
        assert text in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"source{n}" for n in range(number + 1))
    assert main(["convert", "sglang", str(tmp_path / "missing"), "--to", str(target)]) == 2
    (tmp_path / "bytes").write_bytes(b'{}\n{"a": "\xff"}\n')
    assert main(["convert", "sglang", str(tmp_path / "bytes"), "--to", str(target)]) == 2
    assert "line 2 is no JSON" in capsys.readouterr().err
    for key in (b"", b"short", b"x" * 65):
        with pytest.raises(sp.InvalidArgument, match=f"key has {len(key)} bytes"):
            convert("sglang", [write(tmp_path / "source", [exported([1])])], str(target), key=key)
    assert not list(tmp_path.glob("trace*"))
    target.write_text("precious")
    assert main(["convert", "sglang", write(tmp_path / "source", [exported([1])]), "--to", str(target)]) == 2
    assert "which is there already" in capsys.readouterr().err and target.read_text() == "precious"


def test_no_token_and_no_hash_of_a_source_is_in_a_trace(tmp_path: pathlib.Path) -> None:
    for seed in seeds(10):
        print("seed", seed)
        chance = random.Random(seed)
        tokens = [chance.randrange(10**8, 2**31) for _ in range(300)]
        hashes = [f"0x{chance.randrange(2**60, 2**64):x}" for _ in range(30)]
        exports = write(tmp_path / f"s{seed}", [exported(tokens, parameters={"cache_salt": "a secret"})])
        lookups = write(tmp_path / f"l{seed}", [lookup(seq_len=30 * 256, chunk_hashes=hashes)])
        text = json.dumps([converted("sglang", tmp_path, [exports], name=f"s{seed}.jsonl"),
                           converted("lmcache", tmp_path, [lookups], name=f"l{seed}.jsonl")])
        assert not any(str(token) in text for token in tokens) and "secret" not in text
        assert not any(name in text or str(int(name, 16)) in text for name in hashes)
