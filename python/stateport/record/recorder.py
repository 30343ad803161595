# SPDX-License-Identifier: Apache-2.0
"""The recorder: takes facts about requests from an engine, and writes them on a thread."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateport._arguments import integer
from stateport.errors import InvalidArgument
from stateport.hashing import MediaKey
from stateport.record.conversations import Conversations
from stateport.record.names import Names
from stateport.record.trace_files import TraceFiles, TraceHeader, line_of

logger = logging.getLogger(__name__)

_FLUSH_BYTES, _FLUSH_S = 1 << 20, 5.0
_CLOSE_S = 30.0


@dataclasses.dataclass(frozen=True)
class RequestFacts:
    """A request that has ended.

    tokens: of the prompt; they must not change until they are written. output_tokens: generated. arrival_s: seconds
    since 1970; None: now. session: names the conversation. namespace: requests of two namespaces share no prefix; None:
    none. media: inputs that begin among the tokens. hit_tokens: tokens of the prompt that were not computed; None: the
    request never ran. hit_tier: the slowest medium that they came from. lost_reason: why they were not more. cancelled:
    the caller gave it up."""

    tokens: Any
    output_tokens: int = 0
    arrival_s: float | None = None
    session: str | None = None
    namespace: bytes | None = None
    media: Sequence[MediaKey] = ()
    hit_tokens: int | None = None
    hit_tier: str = ""
    lost_reason: str = ""
    cancelled: bool = False


class Recorder:
    """Writes a trace. Thread-safe; it holds the prompts of the queue in memory, and nothing else that grows.

        recorder = Recorder("/var/stateport/traffic.jsonl.gz", engine="mine", state_bytes=…, kv_bytes_per_token=…)
        recorder.add(RequestFacts(tokens, output_tokens=200, hit_tokens=1024))

    path: of the files, as TraceFiles says; the folder must be there, and the files are for their owner alone. model,
    state_bytes, kv_bytes_per_token, engine, version: of the TraceHeader. block_tokens: of a block. rotate_bytes: a file
    that has as much is followed by another. total_bytes: once the files of this recorder have as much together, it
    records no more. sample: the part of the conversations that is recorded. key: of the names, 16 to 64 secret bytes:
    recorders with one key give equal prompts equal names; None: a random one, which nobody learns. queue_tokens:
    prompts that wait have at most these tokens together; one of any length may wait alone.

    Lines are written after 5 seconds, or when they have 1 MiB. Raises InvalidArgument: an argument that is out of
    range, and a path that cannot be written."""

    def __init__(self, path: str | os.PathLike[str], *, model: str = "", state_bytes: int | None = None,
                 kv_bytes_per_token: int | None = None, engine: str = "", version: str = "", block_tokens: int = 64,
                 rotate_bytes: int = 256 << 20, total_bytes: int = 16 << 30, sample: float = 1.0,
                 key: bytes | None = None, queue_tokens: int = 1 << 22, clock: Callable[[], float] = time.time) -> None:
        sizes = {"block_tokens": block_tokens, "rotate_bytes": rotate_bytes, "total_bytes": total_bytes,
                 "queue_tokens": queue_tokens, "state_bytes": state_bytes, "kv_bytes_per_token": kv_bytes_per_token}
        for name, value in sizes.items():
            if value is not None:
                integer(name, value, 1, 2**63 - 1)
        if not 0 < sample <= 1:
            raise InvalidArgument(f"sample is {sample}, and must be above 0 and at most 1")
        self._names = Names(key, block_tokens)
        self._clock, self._began_s = clock, clock()
        header = TraceHeader(block_tokens, int(self._began_s * 1000), model, state_bytes, kv_bytes_per_token, engine,
                             version, sample)
        try:
            self._files = TraceFiles(path, header, rotate_bytes)
        except OSError as error:
            raise InvalidArgument(f"path is {os.fspath(path)!r}, and cannot be written: {error}") from None
        self._conversations = Conversations(sample)
        self._block, self._samples, self._total_bytes = block_tokens, sample < 1, total_bytes
        self._queue: collections.deque[tuple[RequestFacts, float, int]] = collections.deque()
        self._queue_tokens, self._waiting_tokens = queue_tokens, 0
        self._changed = threading.Condition()
        self._counts: collections.Counter[str] = collections.Counter()
        self._refuses = ""  # why nothing is taken any more
        self._ends = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="stateport recorder", daemon=True)
        self._thread.start()
        _open.add(self)

    # --- Of any thread -----------------------------------------------------------------------------------------------

    def add(self, request: RequestFacts) -> bool:
        """Takes a request, without a copy of its tokens. False: it is dropped and counted. Never raises, and never
        waits for the disk. In the child of a fork it does nothing."""
        if os.getpid() != self._process:  # the lock may be held for ever
            return False
        try:
            tokens = len(request.tokens)
        except Exception:
            tokens = 0
        with self._changed:
            is_full = self._queue and self._waiting_tokens + tokens > self._queue_tokens
            refused = self._refuses or ("malformed" if not tokens else "queue" if is_full else "")
            if refused:
                self._counts[f"dropped: {refused}"] += 1
                return False
            tokens = max(tokens, self._block)  # so that the number of small prompts is bounded, too
            self._queue.append((request, self._clock(), tokens))
            self._waiting_tokens += tokens
            self._changed.notify()
            return True

    @property
    def counts(self) -> dict[str, int]:
        """Requests: "written", "sampled out", and "dropped: …" by reason: "queue" (it was full), "malformed" (no tokens
        that can be read), "total_bytes", "failed" (the files cannot be written), "closed"."""
        with self._changed:
            return dict(self._counts)

    def close(self) -> None:
        """Writes what waits, and ends the thread. Closing twice is fine; in the child of a fork it does nothing. It
        waits at most 30 seconds for the disk."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._ends, self._refuses = True, self._refuses or "closed"
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        _open.discard(self)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Of the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lines: list[str] = []
        size, flush_s = 0, time.monotonic() + _FLUSH_S
        while True:
            with self._changed:
                if not self._queue and not self._ends:
                    self._changed.wait(max(flush_s - time.monotonic(), 0) if lines else None)
                taken = self._queue.popleft() if self._queue else None
                self._waiting_tokens -= taken[2] if taken else 0
                ends = self._ends and taken is None
            if taken is not None:
                line = self._guarded(taken)
                if line and not lines:
                    flush_s = time.monotonic() + _FLUSH_S
                if line:
                    lines.append(line)
                    size += len(line)
            if lines and (ends or size >= _FLUSH_BYTES or time.monotonic() >= flush_s):
                self._write(lines)
                lines, size = [], 0
            if ends:
                with contextlib.suppress(OSError):
                    self._files.close()
                return

    def _guarded(self, taken: tuple[RequestFacts, float, int]) -> str:
        try:
            line = self._line(*taken[:2])
        except Exception as error:  # whatever the engine gave
            logger.debug("stateport: a request is not recorded: %s", error)
            self._count("dropped: malformed")
            return ""
        if not line:
            self._count("sampled out")
        return line

    def _line(self, request: RequestFacts, now_s: float) -> str:
        """Empty: the sample does not have it."""
        names = self._names
        session = None if request.session is None else names.name("session", request.session.encode())
        if self._samples and session is not None and not self._conversations.keep_session(session):
            return ""
        blocks = names.blocks(request.tokens, request.namespace, request.media)
        if self._samples and session is None and not self._conversations.keep(
                blocks, lambda: names.name("prefix", np.asarray(request.tokens, "<i4").tobytes())):
            return ""
        arrival_s = now_s if request.arrival_s is None else request.arrival_s
        fields = {"timestamp": max(round((arrival_s - self._began_s) * 1000), 0),
                  "input_length": len(request.tokens), "output_length": int(request.output_tokens),
                  "hash_ids": blocks}
        if session is not None:
            fields["session"] = session
        if request.namespace is not None:
            fields["namespace"] = names.name("namespace", request.namespace)
        if request.hit_tokens is not None:
            fields["hit_tokens"] = min(max(int(request.hit_tokens), 0), len(request.tokens))
        for name in ("hit_tier", "lost_reason", "cancelled"):
            if getattr(request, name):
                fields[name] = getattr(request, name)
        return line_of(fields)

    def _write(self, lines: list[str]) -> None:
        if not self._refuses or self._refuses == "closed":
            try:
                self._files.write("".join(lines))
                self._count("written", len(lines))
                if self._files.bytes >= self._total_bytes:
                    self._refuse("total_bytes")
                return
            except Exception as error:  # of the disk, or of memory
                logger.warning("stateport: the trace cannot be written, and nothing more is recorded: %s", error)
                self._refuse("failed")
        self._count(f"dropped: {self._refuses}", len(lines))

    def _refuse(self, reason: str) -> None:
        with self._changed:
            self._refuses = reason

    def _count(self, name: str, number: int = 1) -> None:
        with self._changed:
            self._counts[name] += number


_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for recorder in list(_open):
        recorder.close()
