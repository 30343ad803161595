# SPDX-License-Identifier: Apache-2.0
"""The files of a trace: numbered, with a header each."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import json
import os
import pathlib
from typing import Any

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class TraceHeader:
    """The first line of each file.

    block: tokens of a block. began: when the recorder began, in ms since 1970; the times of requests count from then.
    model, engine, version: for people. state_bytes, kv_bytes_per_token: in one worker, with which stateport-replay
    computes unless --model is given; None: not known. sample: the part of the conversations that are recorded."""

    block: int
    began: int = 0
    model: str = ""
    state_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    engine: str = ""
    version: str = ""
    sample: float = 1.0

    def line(self) -> str:
        known = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, "")}
        return line_of({"stateport_trace": FORMAT, **known})


def line_of(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"


class TraceFiles:
    """Writes lines to NAME-000001.jsonl, NAME-000002.jsonl and so on, where the path is NAME.jsonl; with the ending .gz
    in gzip. Files that are there are left alone: numbers go on behind them. A file ends with a whole line, whatever
    fails, unless the process is killed while it writes."""

    def __init__(self, path: str | os.PathLike[str], header: TraceHeader, rotate_bytes: int) -> None:
        """Makes the first file. Raises OSError."""
        whole = pathlib.Path(path)
        self._packs = whole.suffix == ".gz"
        plain = whole.with_suffix("") if self._packs else whole
        self._stem, self._suffix = plain.with_suffix(""), plain.suffix + (".gz" if self._packs else "")
        self._header, self._rotate_bytes = header.line(), rotate_bytes
        self._numbers = itertools.count(1)
        self._file: int | None = None
        self.bytes = 0  # written to all files
        self._begin()

    def _begin(self) -> None:
        for number in self._numbers:
            name = f"{self._stem}-{number:06}{self._suffix}"
            with contextlib.suppress(FileExistsError):
                self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                break
        self._size = 0
        try:
            self._append(self._header)
        except OSError:
            self.close()
            os.remove(name)
            raise

    def write(self, lines: str) -> None:
        """Whole lines. Raises OSError, and then none of them is there."""
        if self._file is None:
            self._begin()
        self._append(lines)
        if self._size >= self._rotate_bytes:
            self.close()

    def _append(self, lines: str) -> None:
        assert self._file is not None
        data = lines.encode()
        left = memoryview(gzip.compress(data, 6) if self._packs else data)  # a member of its own is whole by itself
        added = len(left)
        try:
            while left:
                left = left[os.write(self._file, left):]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += added
        self.bytes += added

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
