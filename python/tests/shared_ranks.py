# SPDX-License-Identifier: Apache-2.0
"""Ranks that share checkpoints through a store, each a process, of which this file is the program. A rank keeps its
share of the model of shared_model.py in memory of its own, as an engine does, and takes its commands through a pipe."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

import stateport as sp
from shared_model import HEADS, LAYERS, LAYERS_PER_OBJECT, Model, decoded, encoded, error_of

WAIT_S = 120.0
KV = 4  # the family that is no state
FAMILIES = range(KV + 1)
UNTOUCHED = 0xEE  # content of slots before a test


@dataclasses.dataclass(frozen=True)
class Side:
    """A group of ranks, and how it keeps states. encodings: of recurrent tensors in the store; the first is written."""

    ranks: int
    stages: int = 1
    conv_layout: str = "sd"
    recurrent: str = "float32"
    encodings: tuple[str, ...] = ("default",)
    slots: int = 4


@dataclasses.dataclass(frozen=True)
class Compared:
    """tensors, bytes: that were compared. wrong: family and number of tensors with another byte than expected. error:
    of tensors that were rounded, see error_of."""

    tensors: int
    bytes: int
    wrong: list[tuple[int, int]]
    error: float


def connect(kind: str, options: dict[str, Any]) -> sp.RemoteStore:
    if kind == "valkey":
        return sp.ValkeyStore(**options)
    return sp.MooncakeStore.connect(**options)


class Recorder:
    """A client of an empty store that records its requests."""

    needs_registration = False

    def __init__(self) -> None:
        self.keys: list[str] = []

    def register(self, address: int, size: int) -> None: ...

    def unregister(self, address: int, size: int) -> None: ...

    def close(self) -> None: ...

    def exists(self, requests: list[Any]) -> list[str]:
        self.keys += [request.key for request in requests]
        return ["gone"] * len(requests)

    put = remove = exists

    def get(self, requests: list[Any]) -> list[tuple[str, int]]:
        return [(status, 0) for status in self.exists(requests)]


class Rank:
    """Prompt p is in slot p."""

    def __init__(self, store: tuple[str, dict[str, Any]], model: Model, side: Side, rank: int, stage: int) -> None:
        self.where, self.model, self.side = store, model, side
        self.place = rank, side.ranks, stage, side.stages
        layouts = [family.layout(side.conv_layout, side.recurrent) for family in model.families()]
        begin, end = stage * LAYERS // side.stages, (stage + 1) * LAYERS // side.stages
        self.shared = [sp.SharedLayout(layout, sp.Shard(begin, min(end, max(family.layers) + 1), rank, side.ranks))
                       for layout, family in zip(layouts, model.families(), strict=True)]
        self.memory = [self._memory(shared) for shared in self.shared]
        self.states = [sp.StateStore.view(shared.layout.spec(shared.shard), memory)
                       for shared, memory in zip(self.shared, self.memory, strict=True)]
        self.client = connect(*store)
        self.tiers = self._tiers(self.client)

    def _memory(self, shared: sp.SharedLayout) -> list[Any]:
        """Of each tensor [slots, …]."""
        memory = []
        for tensor in shared.layout.spec(shared.shard):
            rest, dtype = tensor.memory_shape(), {"float32": np.float32}.get(tensor.dtype, np.uint16)
            if tensor.dtype == "int8_block32":
                rest, dtype = (sp.StateSpec([tensor]).slot_bytes,), np.uint8
            size = self.side.slots * math.prod(rest) * np.dtype(dtype).itemsize
            memory.append(np.full(size, UNTOUCHED, np.uint8).view(dtype).reshape(self.side.slots, *rest))
        return memory

    def _tiers(self, store: sp.RemoteStore) -> sp.StateTiers:
        encodings = [sp.ObjectEncoding(recurrent=dtype) for dtype in self.side.encodings]
        remote = sp.RemoteOptions(store, self.shared[:KV], kv=self.shared[KV], head_groups=HEADS,
                                  layers_per_object=LAYERS_PER_OBJECT, encodings=encodings, staging_bytes=16 << 20)
        return sp.StateTiers(states=self.states[:KV], kv=self.states[KV], model=self.model.name, remote=remote)

    def expected(self, prompt: int, family: int, rounded: bool) -> list[tuple[Any, Any]]:
        """For each tensor (expected bytes, the numbers before rounding or None)."""
        out = []
        for tensor, share in zip(self.shared[family].layout.spec(self.shared[family].shard),
                                 self.model.share(prompt, family, *self.place), strict=True):
            if tensor.dtype == "int8_block32":
                integers, scales = encoded(share)
                out.append((np.concatenate([integers.reshape(-1).view(np.uint8),
                                            scales.reshape(-1).view(np.uint8)]), share))
            elif rounded and tensor.dtype == "float32":
                out.append((decoded(*encoded(share)), share))
            else:
                out.append((share.T if tensor.conv_layout == "ds" else share, None))
        return out

    def fill(self, prompts: Sequence[int]) -> None:
        for prompt in prompts:
            for family in FAMILIES:
                for memory, (values, _) in zip(self.memory[family], self.expected(prompt, family, False), strict=True):
                    memory[prompt] = values

    def _images(self, prompts: Sequence[int], families: Sequence[int]) -> Any:
        images = np.zeros(len(prompts) * len(families), sp.SLOT_IMAGE)
        for i, (prompt, family) in enumerate((prompt, family) for prompt in prompts for family in families):
            key = images[i]["key"]
            key["prefix"], key["tokens"] = (prompt, 7), 64 * (prompt + 1)
            key["content"], key["group"] = int(family != KV), 0 if family == KV else family
            images[i]["slot"] = prompt
        return images

    def _ended(self, tiers: sp.StateTiers, count: int) -> list[str]:
        """How the last `count` transfers ended, in the order of numbers."""
        answers: dict[int, str] = {}
        until = time.monotonic() + WAIT_S
        while len(answers) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{count - len(answers)} transfers have not ended")
            for result in tiers.poll():
                answers[int(result["id"])] = sp.TRANSFER_STATUSES[result["status"]]
        tiers.check_invariants()
        return [answers[number] for number in sorted(answers)]

    def put(self, prompts: Sequence[int], families: Sequence[int] = FAMILIES) -> list[str]:
        """How it ended, [prompt, family]; as find and get."""
        images = self._images(prompts, families)
        self.tiers.put(images, "remote")
        return self._ended(self.tiers, len(images))

    def find(self, prompts: Sequence[int], families: Sequence[int] = FAMILIES) -> list[str]:
        images = self._images(prompts, families)
        self.tiers.find(images["key"])
        return self._ended(self.tiers, len(images))

    def get(self, prompts: Sequence[int], families: Sequence[int] = FAMILIES) -> list[str]:
        images = self._images(prompts, families)
        self.tiers.get(images)
        return self._ended(self.tiers, len(images))

    def compare(self, prompts: Sequence[int], families: Sequence[int] = FAMILIES, rounded: bool = False) -> Compared:
        """Compares slots with the expected bytes. rounded: they went through int8."""
        tensors, size, wrong, errors = 0, 0, [], [0.0]
        for prompt in prompts:
            for family in families:
                for i, (values, original) in enumerate(self.expected(prompt, family, rounded)):
                    found = np.ascontiguousarray(self.memory[family][i][prompt])
                    tensors, size = tensors + 1, size + found.nbytes
                    if found.tobytes() != np.ascontiguousarray(values).tobytes():
                        wrong.append((family, i))
                    if original is not None:
                        errors.append(error_of(original, self._numbers(found, original)))
        return Compared(tensors, size, wrong, max(errors))

    @staticmethod
    def _numbers(found: Any, original: Any) -> Any:
        if found.dtype != np.uint8:
            return found
        integers, scales = np.split(found, [original.size])
        rows = original.size // original.shape[-1]
        return decoded(integers.view(np.int8).reshape(original.shape), scales.view(np.float16).reshape(rows, -1))

    def untouched(self, prompts: Sequence[int]) -> bool:
        """Whether nothing was written to these slots."""
        return all((memory[prompt].reshape(-1).view(np.uint8) == UNTOUCHED).all()
                   for family in self.memory for memory in family for prompt in prompts)

    def info(self) -> dict[str, Any]:
        return self.tiers.info()

    # --- Changes of the store by others ------------------------------------------------------------------------------

    def names(self, prompt: int, family: int) -> list[str]:
        """The objects of this rank's share, in the first encoding."""
        recorder = Recorder()
        with self._tiers(sp.ClientStore(recorder)) as tiers:
            tiers.find(self._images([prompt], [family])["key"])
            self._ended(tiers, 1)
        return recorder.keys[:len(recorder.keys) // len(self.side.encodings)]

    def there(self, names: Sequence[str]) -> int:
        """How many of these objects the store has."""
        from remote_store_conformance import exists

        with connect(*self.where) as store:
            return sum(exists(store, name) == "done" for name in names)

    def drop(self, name: str) -> None:
        from remote_store_conformance import remove

        with connect(*self.where) as store:
            assert remove(store, name) == "done"

    def replace(self, name: str, source: str, offset: int | None = None) -> None:
        """Object `name` becomes a copy of another one, or of itself, with another byte at `offset`."""
        from remote_store_conformance import get, put, remove

        with connect(*self.where) as store:
            status, data = get(store, source, 1 << 20)
            assert status == "done"
            if offset is not None:
                data[offset] ^= 0x10
            assert remove(store, name) == "done"
            assert put(store, name, data) == "done"

    def close(self) -> None:
        self.tiers.close()
        self.client.close()


# --- The other side of the pipe --------------------------------------------------------------------------------------


class Server(Protocol):
    """A server that stores objects, in processes of its own."""

    @property
    def store(self) -> tuple[str, dict[str, Any]]: ...
    def start(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def kill(self) -> None: ...


def interpreter() -> list[str]:
    """The command that this Python was started by, without its arguments: a path, or a loader and a path."""
    words = pathlib.Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    return [os.fsdecode(word) for word in words[:len(words) - len(sys.orig_argv) + 1]]


class Process:
    """An object of shared_ranks, or of another module, in another process."""

    def __init__(self, what: str, *arguments: Any, module: str = "shared_ranks") -> None:
        self._pipe, there = Pipe()
        with there:
            self._process = subprocess.Popen([*interpreter(), __file__, str(there.fileno())],
                                             pass_fds=[there.fileno()])
        self._pipe.send((module, what, arguments))

    def begin(self, what: str, *arguments: Any) -> None:
        self._pipe.send((what, arguments))

    def end(self) -> Any:
        if not self._pipe.poll(2 * WAIT_S):
            raise TimeoutError("a process does not answer")
        done, answer = self._pipe.recv()
        if not done:
            raise AssertionError(answer)
        return answer

    def do(self, what: str, *arguments: Any) -> Any:
        self.begin(what, *arguments)
        return self.end()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Process:
        try:
            self.end()  # it is there
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.kill()

    def close(self) -> None:
        """Lets the process end, and raises if it did not end well."""
        self._pipe.close()
        if code := self._process.wait(WAIT_S):
            raise AssertionError(f"a process ended with {code}")


class Ranks:
    """A group of ranks, in a `with` statement."""

    def __init__(self, server: Server, model: Model, side: Side) -> None:
        self.all_ranks = [Process("Rank", server.store, model, side, rank, stage)
                          for stage in range(side.stages) for rank in range(side.ranks)]
        try:
            self.end()  # all are there
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        for rank in self.all_ranks:
            rank.kill()

    def __getitem__(self, rank: int) -> Process:
        return self.all_ranks[rank]

    def begin(self, what: str, *arguments: Any) -> None:
        for rank in self.all_ranks:
            rank.begin(what, *arguments)

    def end(self) -> list[Any]:
        return [rank.end() for rank in self.all_ranks]

    def do(self, what: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks, which work at the same time."""
        self.begin(what, *arguments)
        return self.end()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            for rank in self.all_ranks if kind is None else ():
                rank.close()
        finally:
            self._kill()


def serve(pipe: Connection) -> None:
    module, what, arguments = pipe.recv()
    served = getattr(importlib.import_module(module), what)(*arguments)
    pipe.send((True, None))
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = True, getattr(served, what)(*arguments)
        except Exception:
            answer = False, traceback.format_exc()
        pipe.send(answer)
    served.close()


if __name__ == "__main__":
    import shared_ranks  # objects from the pipe name this module

    shared_ranks.serve(Connection(int(sys.argv[1])))
