# SPDX-License-Identifier: Apache-2.0
"""Traces from the records of other programs."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TextIO, cast

from stateport.errors import InvalidArgument
from stateport.record.names import Names
from stateport.record.trace_files import TraceHeader, line_of

Fields = dict[str, Any]
_ELEMENT_BITS = re.compile(r"(?:torch\.)?(?:b?float|u?int)(\d+)(?:_\w+)?")


class Skipped(Exception):
    """A record that is no request of a trace: why."""


def convert(kind: str, sources: Iterable[str], target: str, *, key: bytes | None = None, block_tokens: int = 64,
            model: str = "", state_bytes: int | None = None) -> dict[str, int]:
    """Writes the trace `target`, in gzip if its name ends with .gz, from the files `sources`. Answers the number of
    requests, as "written", and of records that are none, by reason.

    kind: "lmcache": look-up hashes, of blocks as LMCache has them; KV bytes of a token are those of `shapes`; output
    and session are not known. "sglang": of --export-metrics-to-file, of prompts that are there as input_ids;
    block_tokens: of a block. key, model, state_bytes: as of a Recorder. The file is for its owner alone.

    Raises InvalidArgument: another kind, a wrong key, a target that is there, a damaged file of gzip, a line that is no
    JSON, sources of two models or chunk sizes, and nothing to write. OSError: files."""
    readers: Mapping[str, Callable[..., Iterator[TraceHeader | Fields | Skipped]]] = {
        "lmcache": _lmcache, "sglang": _sglang}
    if kind not in readers:
        raise InvalidArgument(f"kind is {kind!r}, and must be one of {', '.join(readers)}")
    if os.path.exists(target):
        raise InvalidArgument(f"target is {target!r}, which is there already")
    counts: dict[str, int] = {"written": 0}
    header = TraceHeader(block_tokens, model=model, state_bytes=state_bytes, engine=kind)
    partial = target + ".partial"
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        opened = gzip.open if target.endswith(".gz") else open
        with cast(TextIO, opened(partial, "wt", encoding="utf-8")) as out:
            for record in readers[kind](_records(sources), header, key):
                if isinstance(record, Skipped):
                    counts[str(record)] = counts.get(str(record), 0) + 1
                elif isinstance(record, TraceHeader):
                    out.write(record.line())
                else:
                    out.write(line_of(record))
                    counts["written"] += 1
        if counts["written"] == 0:
            raise InvalidArgument(f"the sources have no request: {counts}")
        os.rename(partial, target)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    return counts


def _lines(file: BinaryIO, source: str) -> Iterator[bytes]:
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidArgument(f"{source} is no whole file of gzip: {error}") from None


def _records(sources: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The JSON of each line, and its place."""
    for source in sources:
        with open(source, "rb") as file:
            opened = gzip.open if file.read(2) == b"\x1f\x8b" else open
        with cast(BinaryIO, opened(source, "rb")) as lines:
            for number, line in enumerate(_lines(lines, source), 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    raise InvalidArgument(f"{source}, line {number} is no JSON") from None
                if not isinstance(record, dict):
                    raise InvalidArgument(f"{source}, line {number} is no JSON object")
                yield f"{source}, line {number}", record


def _whole(record: Fields, name: str, least: int) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Skipped(f"{name} is no whole number from {least} on")
    return value


def _milliseconds(record: Fields, name: str) -> int:
    value = record.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise Skipped(f"{name} is no time in seconds")
    return round(value * 1000)


def _lmcache(records: Iterable[tuple[str, Any]], header: TraceHeader,
             key: bytes | None) -> Iterator[TraceHeader | Fields | Skipped]:
    first: tuple[str, int] | None = None
    names, seen = Names(key, 1), set[str]()
    for place, record in records:
        request = str(record.get("request_id", ""))
        try:
            if request and request in seen:
                raise Skipped("the request was looked up before")
            chunk, tokens = _whole(record, "chunk_size", 1), _whole(record, "seq_len", 1)
            hashes = record.get("chunk_hashes")
            if not isinstance(hashes, list) or len(hashes) < tokens // chunk:
                raise Skipped("chunk_hashes has fewer than the whole chunks of seq_len")
            fields = {"timestamp": _milliseconds(record, "timestamp"), "input_length": tokens,
                      "hash_ids": [names.name("prefix", str(name).encode()) for name in hashes[:tokens // chunk]]}
        except Skipped as skipped:
            yield skipped
            continue
        about = str(record.get("model_name", "")), chunk
        if first is None:
            first = about
            yield TraceHeader(chunk, header.began, header.model or about[0], header.state_bytes,
                              _kv_bytes_per_token(record, chunk), header.engine)
        if about != first:
            raise InvalidArgument(f"{place} has model_name and chunk_size {about}, and the first line {first}: convert "
                                  "them one by one")
        seen.add(request)
        yield fields


def _kv_bytes_per_token(record: Fields, chunk: int) -> int | None:
    """Of the shapes and element types of a chunk; None: they do not say."""
    shapes, types = record.get("shapes") or [], record.get("dtypes") or []
    bits = [_ELEMENT_BITS.fullmatch(str(one)) for one in types]
    if not shapes or len(shapes) != len(types) or not all(bits) or not all(chunk in shape for shape in shapes):
        return None
    total: int = sum(math.prod(shape) * int(match[1]) for shape, match in zip(shapes, bits, strict=True) if match)
    return total // (8 * chunk)


def _sglang(records: Iterable[tuple[str, Any]], header: TraceHeader,
            key: bytes | None) -> Iterator[TraceHeader | Fields | Skipped]:
    names = Names(key, header.block)
    yield header
    for place, record in records:
        try:
            yield _of_sglang(record, place, names)
        except Skipped as skipped:
            yield skipped


def _of_sglang(record: Fields, place: str, names: Names) -> Fields:
    asked = record.get("request_parameters")
    try:
        asked = json.loads(asked) if isinstance(asked, str) else asked
    except ValueError:
        raise InvalidArgument(f"{place}: request_parameters is no JSON") from None
    if not isinstance(asked, dict):
        raise Skipped("request_parameters is no object")
    tokens = asked.get("input_ids")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, int) for token in tokens):
        raise Skipped("no input_ids: the prompt is there as text, or as other inputs, alone")
    shared = [asked.get(name) for name in ("lora_path", "extra_key", "cache_salt")]
    namespace = repr(shared).encode() if any(shared) else None
    try:
        blocks = names.blocks(tokens, namespace)
    except OverflowError:
        raise Skipped("a token is no number of 32 bits") from None
    fields = {"timestamp": _milliseconds(record, "request_received_ts"), "input_length": len(tokens),
              "output_length": _whole(record, "completion_tokens", 0), "hash_ids": blocks}
    session = asked.get("session_id") or (asked.get("session_params") or {}).get("id")
    if session is not None:
        fields["session"] = names.name("session", str(session).encode())
    if namespace is not None:
        fields["namespace"] = names.name("namespace", namespace)
    if record.get("cached_tokens") is not None:
        fields["hit_tokens"] = min(_whole(record, "cached_tokens", 0), len(tokens))
    reason = record.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        fields["cancelled"] = True
    return fields
