# SPDX-License-Identifier: Apache-2.0
"""python -m stateport.demo.handover: states that one group of ranks computed go to a group of another size, moved by
NIXL over the loopback device. Each rank is a process, with a store, pinned memory and a NIXL agent of its own."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import stateport
from stateport import IMAGE_KEY, Handover, HandoverEnd, ModelLayout, Resharder, Shard, SharedLayout, StateStore
from stateport._arrays import Records

_PACKAGES = ("nixl._api", "nixl_cu12._api", "nixl_cu13._api")
_TYPES = ("float32", "bfloat16")
_WAIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Task:
    """The job of a rank, and its peers."""

    model: str
    recurrent_dtype: str  # of the store of this rank
    shard: Shard
    name: str
    handover: Handover
    prompts: int
    damage: bool  # a byte is changed after it was sealed


@dataclasses.dataclass(frozen=True)
class Peer:
    """A rank whose memory can be read."""

    name: str
    metadata: bytes
    address: int
    place_bytes: int


class Rank:
    """One rank: the states of some prompts in slots 0, 1, …, and memory in which they wait or arrive."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.layout = ModelLayout.find(task.model, recurrent_dtype=task.recurrent_dtype)
        self.states = StateStore(self.layout.spec(task.shard), task.prompts)
        self.end = HandoverEnd(self.states, SharedLayout(self.layout, task.shard), task.handover, task.prompts)
        api = nixl()
        self.agent = api.nixl_agent(task.name, api.nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([(self.end.address, self.end.bytes, 0, "")], "DRAM")

    def peer(self) -> Peer:
        return Peer(self.task.name, self.agent.get_agent_metadata(), self.end.address, self.end.place_bytes)

    def compute(self, prompt: int) -> None:
        """Fills slot `prompt` with this rank's share of the state that the prompt has."""
        whole = state_of(self.task.model, prompt)
        Resharder(self.layout, [(whole, Shard())], [(self.states, self.task.shard)]).copy([[0, prompt]])
        stateport.synchronize()

    def seal_all(self) -> None:
        prompts = np.arange(self.task.prompts)
        self.end.pack(np.stack([prompts, prompts], axis=1))
        stateport.synchronize()
        for prompt in range(self.task.prompts):
            self.end.seal(prompt, key_of(prompt))
        if self.task.damage:
            self.end.memory(0)[-4096] ^= 1

    def fetch(self, prompt: int, ranges: Records, peers: dict[int, Peer]) -> None:
        """Reads the ranges of the plan from the other group's memory."""
        for rank, peer in peers.items():
            mine = ranges[ranges["src_rank"] == rank]
            if not len(mine):
                continue
            here = self.end.address + prompt * self.end.place_bytes
            there = peer.address + prompt * peer.place_bytes
            to = [(here + int(row["dst_offset"]), int(row["bytes"]), 0) for row in mine]
            source = [(there + int(row["src_offset"]), int(row["bytes"]), 0) for row in mine]
            handle = self.agent.initialize_xfer("READ", self.agent.get_xfer_descs(to, "DRAM"),
                                                self.agent.get_xfer_descs(source, "DRAM"), peer.name)
            state, until = self.agent.transfer(handle), time.monotonic() + _WAIT_S
            while state == "PROC" and time.monotonic() < until:
                state = self.agent.check_xfer_state(handle)
            self.agent.release_xfer_handle(handle)
            if state != "DONE":
                raise RuntimeError(f"NIXL did not read from {peer.name}: {state}")

    def same_as_computed(self, prompt: int) -> bool:
        """Whether slot `prompt` holds the state that this rank would have computed, byte for byte."""
        expected = StateStore(self.layout.spec(self.task.shard), 1)
        whole = state_of(self.task.model, prompt)
        Resharder(self.layout, [(whole, Shard())], [(expected, self.task.shard)]).copy([[0, 0]])
        stateport.synchronize()
        return all(np.array_equal(slot_bytes(self.states, i, prompt), slot_bytes(expected, i, 0))
                   for i in range(len(self.layout.spec(self.task.shard))))


def nixl() -> Any:
    """NIXL's Python interface. Raises ImportError where it is not installed."""
    for package in _PACKAGES:
        try:
            return importlib.import_module(package)
        except ImportError:
            continue
    raise ImportError("NIXL is not here: pip install nixl-cu12")


def key_of(prompt: int) -> Records:
    key = np.zeros(1, IMAGE_KEY)
    key["prefix"], key["tokens"], key["content"] = (prompt, 1), 64 * (prompt + 1), 1
    return key


def slot_bytes(store: StateStore, tensor: int, slot: int) -> Any:
    """The bytes of one slot of a tensor, whatever its type."""
    values = store.tensor(tensor)[slot]
    return np.ascontiguousarray(np.asarray(values)).view(np.uint8)


def state_of(model: str, prompt: int) -> StateStore:
    """The whole state after a prompt, in float32: small numbers that stand for the result of a model."""
    spec = ModelLayout.find(model, recurrent_dtype="float32").spec()
    store = StateStore(spec, 1)
    for i in range(len(spec)):
        tensor = store.tensor(i)
        random = np.random.default_rng([prompt, i])
        tensor[0] = random.integers(-8, 8, tensor.shape[1:]).astype(tensor.dtype)
    return store


def prefill(task: Task, pipe: Connection) -> None:
    rank = Rank(task)
    for prompt in range(task.prompts):
        rank.compute(prompt)
    rank.seal_all()
    pipe.send(rank.peer())
    pipe.recv()  # until all have read


def decode(task: Task, pipe: Connection, ranges: Records) -> None:
    rank = Rank(task)
    peers: dict[int, Peer] = pipe.recv()
    for peer in peers.values():
        rank.agent.add_remote_agent(peer.metadata)
    answers = []
    for prompt in range(task.prompts):
        begin = time.perf_counter()
        rank.fetch(prompt, ranges, peers)
        moved_s = time.perf_counter() - begin
        status = rank.end.check(prompt, key_of(prompt))
        if status == "done":
            rank.end.unpack([[prompt, prompt]])
            stateport.synchronize()
            status = "done" if rank.same_as_computed(prompt) else "another state"
        answers.append((prompt, status, moved_s))
    pipe.send(answers)


def shards_of(layers: int, ranks: int) -> dict[int, Shard]:
    return {rank: Shard(0, layers, rank, ranks) for rank in range(ranks)}


def run(options: argparse.Namespace) -> list[tuple[int, int, str, float]]:
    """(rank, prompt, how it ended, seconds of the transport) for each decoding rank and prompt."""
    layout = ModelLayout.find(options.model)
    layers = 1 + max(tensor.layer for tensor in layout.spec())
    sources, destinations = shards_of(layers, options.prefill), shards_of(layers, options.decode)
    encoding = stateport.ObjectEncoding(recurrent=options.encoding)
    plan, ranges = stateport.plan_handover(layout, sources, destinations, Handover(options.model, encoding=encoding))
    context = multiprocessing.get_context("fork")  # this process has started no runtime and no thread
    processes, ends = [], []

    def start(role: Any, task: Task, *more: Any) -> Connection:
        here, there = context.Pipe()
        process = context.Process(target=role, args=(task, there, *more), daemon=True)
        process.start()
        there.close()  # so that the end of the process is the end of the pipe
        processes.append(process)
        ends.append(here)
        return here

    def task_of(role: str, rank: int, shard: Shard) -> Task:
        dtype = options.decode_dtype if role == "decode" else "float32"
        return Task(options.model, dtype, shard, f"{role}-{rank}", plan, options.prompts,
                    options.damage and (role, rank) == ("prefill", 0))

    try:
        computing = {rank: start(prefill, task_of("prefill", rank, shard)) for rank, shard in sources.items()}
        peers = {rank: pipe.recv() for rank, pipe in computing.items()}
        reading = {rank: start(decode, task_of("decode", rank, shard), ranges[ranges["dst_rank"] == rank])
                   for rank, shard in destinations.items()}
        for pipe in reading.values():
            pipe.send(peers)
        answers = [(rank, *answer) for rank, pipe in reading.items() for answer in pipe.recv()]
        for pipe in computing.values():
            pipe.send(None)
        return answers
    finally:
        for process in processes:
            process.join(_WAIT_S if sys.exc_info()[0] is None else 0)
            process.kill()


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if every rank got the state that it would have computed."""
    parser = argparse.ArgumentParser(prog="python -m stateport.demo.handover", description=__doc__)
    parser.add_argument("--model", default="falcon-h1-0.5b", help="of the catalogue (%(default)s)")
    parser.add_argument("--prefill", type=_count, default=2, help="ranks that compute prompts (%(default)s)")
    parser.add_argument("--decode", type=_count, default=3, help="ranks that decode (%(default)s)")
    parser.add_argument("--prompts", type=_count, default=3, help="(%(default)s)")
    parser.add_argument("--encoding", choices=_TYPES, default="float32",
                        help="of recurrent tensors on the way (%(default)s)")
    parser.add_argument("--decode-dtype", choices=_TYPES, default="float32",
                        help="of those of the ranks that decode (%(default)s)")
    parser.add_argument("--damage", action="store_true", help="change a byte on the way: it must be refused")
    options = parser.parse_args(arguments)
    try:
        nixl()
        answers = run(options)
    except (ImportError, stateport.Error, EOFError, ConnectionError) as error:
        ended = isinstance(error, (EOFError, ConnectionError))
        print(f"stateport.demo.handover: {'a rank ended too early' if ended else error}", file=sys.stderr)
        return 2
    for rank, prompt, status, seconds in answers:
        print(f"decode rank {rank}, prompt {prompt}: {status}, moved in {1e3 * seconds:.1f} ms")
    return 0 if all(status == "done" for _, _, status, _ in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
