# SPDX-License-Identifier: Apache-2.0
"""The recorder: its files, against plain models; and that it never harms an engine."""
from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport.record import Recorder, RequestFacts, conversations, recorder, trace_files

KEY = b"a key of the tests"


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
    name, _, ending = path.name.partition(".")
    return sorted(path.parent.glob(f"{name}-*.{ending}"))


def lines_of(file: pathlib.Path) -> list[dict[str, Any]]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


def recorded(path: pathlib.Path) -> list[dict[str, Any]]:
    """The requests of all files."""
    requests = []
    for file in files_of(path):
        header, *lines = lines_of(file)
        assert header["stateport_trace"] == 1
        requests += lines
    return requests


def record(path: pathlib.Path, facts: list[RequestFacts], **options: Any) -> list[dict[str, Any]]:
    with Recorder(path, **{"key": KEY, **options}) as writer:
        assert sum(writer.add(one) for one in facts) == len(facts)
    return recorded(path)


def model_names(facts: RequestFacts, block: int, key: bytes) -> list[int]:
    """The names of blocks, each from the whole prefix before it."""
    start = bytes(8)
    if facts.namespace is not None:
        start = hashlib.blake2b(facts.namespace, digest_size=8, key=key, person=b"namespace").digest()
    names = []
    for blocks in range(1, len(facts.tokens) // block + 1):
        prefix = start
        for number in range(blocks):
            begun = sorted((media.first_token, media.id) for media in facts.media
                           if media.first_token // block == number)
            prefix += b"\1" + repr(begun).encode() if begun else b"\0"
            prefix += b"".join(int(token).to_bytes(4, "little")
                               for token in facts.tokens[number * block:(number + 1) * block])
        digest = hashlib.blake2b(prefix, digest_size=8, key=key, person=b"blocks").digest()
        names.append(int.from_bytes(digest, "little") % 2**64 // 2**11)
    return names


def random_facts(chance: random.Random, longest: int = 40) -> RequestFacts:
    """Prompts that share prefixes often: of two tokens in most places."""
    tokens = [chance.choice([70_000_001, 90_000_007]) if chance.random() < 0.3 else 80_000_003
              for _ in range(chance.randrange(1, longest))]
    media = [sp.MediaKey(chance.choice([b"cat", b"dog"]), chance.randrange(longest))
             for _ in range(chance.randrange(2)) if chance.random() < 0.3]
    return RequestFacts(np.array(tokens) if chance.random() < 0.5 else tokens, chance.randrange(9),
                        namespace=chance.choice([None, None, b"", b"t1"]), media=media,
                        session=chance.choice([None, "a chat", "b chat"]),
                        hit_tokens=chance.choice([None, -1, 0, 3]), hit_tier=chance.choice(["", "host"]),
                        lost_reason=chance.choice(["", "evicted"]), cancelled=chance.random() < 0.2)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_file_has_the_facts_and_names_of_a_plain_model(tmp_path: pathlib.Path, ending: str) -> None:
    for seed in seeds(40):
        print("seed", seed)
        chance = random.Random(seed)
        block = chance.choice([1, 3, 4])
        facts = [random_facts(chance) for _ in range(30)]
        path = tmp_path / f"trace{seed}.{ending}"
        lines = record(path, facts, block_tokens=block)
        assert len(lines) == len(facts)
        for one, line in zip(facts, lines, strict=True):
            assert line["hash_ids"] == model_names(one, block, KEY)
            assert (line["input_length"], line["output_length"]) == (len(one.tokens), one.output_tokens)
            hit = one.hit_tokens
            assert line.get("hit_tokens") == (None if hit is None else min(max(hit, 0), len(one.tokens)))
            assert line.get("hit_tier", "") == one.hit_tier and line.get("lost_reason", "") == one.lost_reason
            assert line.get("cancelled", False) == one.cancelled
            assert (line.get("session") is None) == (one.session is None)
            assert (line.get("namespace") is None) == (one.namespace is None)


def test_equal_prefixes_have_equal_names_and_no_others_do(tmp_path: pathlib.Path) -> None:
    for seed in seeds(40):
        print("seed", seed)
        chance = random.Random(seed)
        facts = [random_facts(chance, 70) for _ in range(60)]
        lines = record(tmp_path / f"one{seed}.jsonl", facts, block_tokens=4)
        others = record(tmp_path / f"two{seed}.jsonl", facts, block_tokens=4, key=b"another secret key")
        meanings: dict[int, Any] = {}
        for one, line in zip(facts, lines, strict=True):
            for at, name in enumerate(line["hash_ids"]):
                end = (at + 1) * 4
                meaning = (one.namespace, tuple(int(token) for token in one.tokens[:end]), tuple(sorted(
                    (media.first_token, media.id) for media in one.media if media.first_token < end)))
                assert meanings.setdefault(name, meaning) == meaning
        assert len(set(meanings.values())) == len(meanings) > 1
        for field in ("session", "namespace"):
            names = {getattr(one, field): line.get(field) for one, line in zip(facts, lines, strict=True)}
            assert len(set(names.values())) == len(names)
            assert not {line.get(field) for line in lines} & {line.get(field) for line in others} - {None}
        assert not set(meanings) & {name for line in others for name in line["hash_ids"]}


def test_no_token_and_no_name_of_an_engine_is_in_a_file(tmp_path: pathlib.Path) -> None:
    for seed in seeds(20):
        print("seed", seed)
        chance = random.Random(seed)
        tokens = [chance.randrange(10**8, 2**31) for _ in range(500)]
        path = tmp_path / f"trace{seed}.jsonl"
        record(path, [RequestFacts(tokens[:chance.randrange(1, 500)], session="a secret chat", namespace=b"a tenant",
                                   media=[sp.MediaKey(b"a picture", 7)]) for _ in range(5)], block_tokens=2)
        text = b"".join(file.read_bytes() for file in files_of(path))
        for token in tokens:
            for shown in (str(token).encode(), f"{token:x}".encode(), token.to_bytes(4, "little")):
                assert shown not in text
        for secret in (b"secret", b"tenant", b"picture", KEY):
            assert secret not in text


def test_a_recorder_without_a_key_has_one_of_its_own(tmp_path: pathlib.Path) -> None:
    facts = [RequestFacts(list(range(64)))]
    first, second = record(tmp_path / "a.jsonl", facts, key=None), record(tmp_path / "b.jsonl", facts, key=None)
    assert first[0]["hash_ids"] != second[0]["hash_ids"]


def test_times_count_from_the_begin_that_the_header_names(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.jsonl"
    now = iter([1000.5, 1002.0, 1003.0, 1004.0])
    lines = record(path, [RequestFacts([1]), RequestFacts([1], arrival_s=1001.25), RequestFacts([1], arrival_s=3.0)],
                   clock=lambda: next(now), model="m", state_bytes=7, kv_bytes_per_token=5, engine="e", version="v",
                   block_tokens=16)
    assert [line["timestamp"] for line in lines] == [1500, 750, 0]
    assert lines_of(files_of(path)[0])[0] == {
        "stateport_trace": 1, "block": 16, "began": 1000500, "model": "m", "state_bytes": 7, "kv_bytes_per_token": 5,
        "engine": "e", "version": "v", "sample": 1.0}


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_files_rotate_and_leave_those_of_others_alone(tmp_path: pathlib.Path, ending: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_BYTES", 1)
    path = tmp_path / f"trace.{ending}"
    facts = [RequestFacts(list(range(k, k + 40)), k) for k in range(50)]
    options: dict[str, Any] = {"rotate_bytes": 900, "block_tokens": 4}
    assert [line["output_length"] for line in record(path, facts, **options)] == list(range(50))
    before = {file: file.read_bytes() for file in files_of(path)}
    assert len(before) > 3 and all(file.stat().st_mode & 0o77 == 0 for file in before)
    assert all(len(data) >= 900 for data in list(before.values())[:-1])
    assert len(record(path, facts, **options)) == 100
    assert all(file.read_bytes() == data for file, data in before.items())


def test_lines_are_written_though_nothing_follows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_S", 0.02)
    path = tmp_path / "trace.jsonl"
    with Recorder(path) as writer:
        writer.add(RequestFacts([1, 2]))
        while not recorded(path):
            time.sleep(0.005)
        assert writer.counts == {"written": 1}


def test_a_disk_that_is_full_leaves_whole_lines_and_ends_the_recording(tmp_path: pathlib.Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_BYTES", 1)
    write, room = os.write, 700

    def limited(file: int, data: Any) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "no space")
        written = write(file, data[:room])
        room -= written
        return written

    monkeypatch.setattr(trace_files.os, "write", limited)
    path = tmp_path / "trace.jsonl"
    writer = Recorder(path)
    for number in range(30):
        writer.add(RequestFacts([1] * 64, number))
    writer.close()
    counts = writer.counts
    assert counts["dropped: failed"] + counts["written"] == 30 and counts["written"] > 0
    assert [line["output_length"] for line in recorded(path)] == list(range(counts["written"]))


def test_a_disk_that_is_full_from_the_start_leaves_no_file(tmp_path: pathlib.Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(trace_files.os, "write", full)
    with pytest.raises(sp.InvalidArgument, match="no space"):
        Recorder(tmp_path / "trace.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_recorder_ends_when_its_files_have_their_bytes(tmp_path: pathlib.Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_BYTES", 1)
    path = tmp_path / "trace.jsonl"
    writer = Recorder(path, total_bytes=1000, rotate_bytes=400)
    for number in range(40):
        writer.add(RequestFacts([1] * 64, number))
    writer.close()
    total = sum(file.stat().st_size for file in files_of(path))
    longest = max(len(line) for file in files_of(path) for line in file.read_bytes().splitlines())
    assert 1000 <= total <= 1000 + 2 * (longest + 1)  # a header and a line
    assert writer.counts["dropped: total_bytes"] == 40 - len(recorded(path))


# --- The engine is not harmed ----------------------------------------------------------------------------------------


def test_a_queue_that_is_full_drops_requests_and_counts_them(tmp_path: pathlib.Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_BYTES", 1)
    stuck, free = threading.Event(), threading.Event()
    write = trace_files.TraceFiles.write

    def slow(self: Any, lines: str) -> None:
        stuck.set()
        assert free.wait(60)
        write(self, lines)

    monkeypatch.setattr(trace_files.TraceFiles, "write", slow)
    path = tmp_path / "trace.jsonl"
    with Recorder(path, block_tokens=4, queue_tokens=100) as writer:
        assert writer.add(RequestFacts([1] * 1000, 0))
        assert stuck.wait(60)
        assert writer.add(RequestFacts([1] * 1000, 1))  # alone in the queue
        assert not writer.add(RequestFacts([1], 2))
        free.set()
        while not writer.add(RequestFacts([1], 3)):
            time.sleep(0.001)
        dropped = writer.counts["dropped: queue"]
    assert [line["output_length"] for line in recorded(path)] == [0, 1, 3]
    assert dropped >= 1 and writer.counts == {"written": 3, "dropped: queue": dropped}


def test_small_prompts_fill_the_queue_as_blocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "_run", lambda self: None)
    writer = Recorder(tmp_path / "trace.jsonl", block_tokens=10, queue_tokens=100)
    assert [writer.add(RequestFacts([1])) for _ in range(12)] == [True] * 10 + [False] * 2


class Strange:
    def __len__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize("facts", [
    {"tokens": None}, {"tokens": []}, {"tokens": Strange()}, {"tokens": ["a"]}, {"tokens": [2**40] * 64},
    {"session": 7}, {"namespace": "text"}, {"media": [3]}, {"output_tokens": None}, {"output_tokens": object()},
    {"arrival_s": float("nan")}, {"arrival_s": "x"}, {"hit_tokens": "x"}, {"hit_tier": object()}])
def test_facts_that_make_no_line_are_counted_and_raise_nothing(tmp_path: pathlib.Path, facts: dict[str, Any]) -> None:
    path = tmp_path / "trace.jsonl"
    with Recorder(path) as writer:
        writer.add(RequestFacts(**{"tokens": [1] * 64, **facts}))
        assert writer.add(RequestFacts([1]))
    if facts != {"tokens": ["a"]}:
        assert writer.counts == {"written": 1, "dropped: malformed": 1}
    assert len(recorded(path)) == writer.counts["written"]


def test_threads_add_and_close_at_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = Recorder(path)
    taken = [0] * 4

    def add(thread: int) -> None:
        for number in range(300):
            taken[thread] += writer.add(RequestFacts([number] * 64))
            if thread == 0 and number == 150:
                writer.close()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert not writer.add(RequestFacts([1]))
    assert writer.counts["written"] == sum(taken) == len(recorded(path))
    assert writer.counts["dropped: closed"] == 4 * 300 + 1 - sum(taken)
    assert not writer._thread.is_alive()


def test_a_child_of_a_fork_records_nothing_and_the_end_of_a_process_writes_everything(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.jsonl"
    program = f"""
import os, sys
from stateport.record import Recorder, RequestFacts
writer = Recorder({str(path)!r})
assert writer.add(RequestFacts([1] * 64, 1))
child = os.fork()
if child == 0:
    assert not writer.add(RequestFacts([1] * 64, 2))
    writer.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert writer.add(RequestFacts([1] * 64, 3))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False,
                          timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["output_length"] for line in recorded(path)] == [1, 3]


@pytest.mark.parametrize(("options", "text"), [
    ({"block_tokens": 0}, "block_tokens is 0"), ({"rotate_bytes": 0}, "rotate_bytes is 0"),
    ({"total_bytes": -1}, "total_bytes is -1"), ({"queue_tokens": 0}, "queue_tokens is 0"),
    ({"state_bytes": 0}, "state_bytes is 0"), ({"kv_bytes_per_token": 0}, "kv_bytes_per_token is 0"),
    ({"sample": 0}, "sample is 0"), ({"sample": 1.5}, "sample is 1.5"), ({"sample": float("nan")}, "sample is nan"),
    ({"key": b"x" * 15}, "key has 15 bytes, and must have 16 to 64"), ({"key": b"x" * 65}, "key has 65 bytes"),
    ({"key": "sixteen letters."}, "key is a str"), ({"block_tokens": 4.0}, "block_tokens is 4.0")])
def test_wrong_options_are_refused_and_nothing_is_made(tmp_path: pathlib.Path, options: dict[str, Any],
                                                       text: str) -> None:
    with pytest.raises(sp.InvalidArgument, match=text):
        Recorder(tmp_path / "trace.jsonl", **options)
    with pytest.raises(sp.InvalidArgument, match="path is '/no-such/trace.jsonl', and cannot be written"):
        Recorder("/no-such/trace.jsonl")
    assert list(tmp_path.iterdir()) == []


# --- Samples ---------------------------------------------------------------------------------------------------------


def turns(chance: random.Random, chats: int, session: bool) -> list[tuple[int, RequestFacts]]:
    """Chats with one opening, each of several turns, all mixed; and the number of each chat."""
    opening = [chance.randrange(1000) for _ in range(37)]
    prompts = []
    for chat in range(chats):
        tokens = list(opening)
        for turn in range(chance.randrange(1, 6)):
            tokens = tokens + [chance.randrange(1000) for _ in range(chance.randrange(1, 30))]
            prompts.append((turn + chance.random(), chat, RequestFacts(tokens, chat,
                                                                      session=f"chat {chat}" if session else None)))
    return [(chat, facts) for _, chat, facts in sorted(prompts, key=lambda one: one[:2])]


@pytest.mark.parametrize("session", [True, False])
def test_a_sample_has_whole_conversations(tmp_path: pathlib.Path, session: bool) -> None:
    for seed in seeds(10):
        print("seed", seed)
        chance = random.Random(seed)
        mixed = turns(chance, 400, session)
        path = tmp_path / f"trace{seed}.jsonl"
        with Recorder(path, sample=0.3, block_tokens=4, key=seed.to_bytes(16, "little")) as writer:
            for _, facts in mixed:
                assert writer.add(facts)
        lines = recorded(path)
        assert writer.counts["written"] + writer.counts["sampled out"] == len(mixed)
        kept: dict[int, int] = {}
        for line in lines:
            kept[line["output_length"]] = kept.get(line["output_length"], 0) + 1
        sizes: dict[int, int] = {}
        short = set()  # the first prompt has no whole block but those of the opening
        for chat, facts in mixed:
            if chat not in sizes and len(facts.tokens) < 40 and not session:
                short.add(chat)
            sizes[chat] = sizes.get(chat, 0) + 1
        # Chats whose first prompts came before it was seen that many share the opening may be cut.
        cut = sum(kept[chat] != sizes[chat] for chat in kept if chat not in short)
        assert cut <= (0 if session else 16)
        assert 70 <= len(kept) <= 170  # of 400; five standard deviations


def test_ends_of_conversations_are_forgotten_in_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "REMEMBERED", 2)
    half = 1 << 52
    known = conversations.Conversations(0.5)
    kept, left = lambda: half - 1, lambda: half
    assert known.keep([1], kept) and known.keep([2], kept)
    assert known.keep([1, 3], left)  # goes on from 1, and is a new end: 2 is forgotten
    assert not known.keep([2, 4], left)
    assert known.keep([1, 3, 5], left)
    assert known.keep([], kept) and not known.keep([], left)
    assert known.keep_session(half - 1) and not known.keep_session(half)
