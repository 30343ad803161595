# SPDX-License-Identifier: Apache-2.0
"""An index for routers: how much of a prompt each worker can reuse, by the events of the workers' caches."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import integer, of_kind
from stateport._arrays import CACHE_EVENT, ROUTER_REACH, Records, UInt64s, address, records
from stateport._arrays import prefixes as prefix_rows
from stateport._library import calls
from stateport._msgpack import unpacker
from stateport.errors import InvalidArgument
from stateport.hashing import Namespace, hash_blocks
from stateport.tier_options import MEDIA

# Names of media in events of engines, and those that Dynamo takes for the same.
_MEDIUM_OF: dict[str | None, int] = {None: 0, **{name: i for i, names in enumerate((
    ("GPU", "DEVICE"), ("CPU", "CPU_PINNED", "CPU_TIER1"), ("STORAGE", "DISK", "NVME", "CPU_TIER2"),
    ("EXTERNAL", "NETWORK", "REMOTE", "SHARED"))) for name in names}}
_KV = -1  # in place of a group of states


class RouterIndex(_library.Object):
    """The contents of the caches of many workers, by CACHE_EVENT records; see stateport::RouterIndex. A prefix can be
    reused up to a block if the states of all groups after it are there, and all KV before, each in any medium.

    Workers have numbers below workers_max. state_groups: groups whose states a worker needs; 0: KV alone can be reused.
    When prefixes_max are remembered, others are refused and counted: answers are too short then, never too long.
    blocks_max: blocks of a prompt that `find` looks at. Any thread may call."""

    def __init__(self, workers_max: int = 64, *, state_groups: int = 1, prefixes_max: int = 1 << 20,
                 blocks_max: int = 1 << 14) -> None:
        for name, value in (("prefixes_max", prefixes_max), ("blocks_max", blocks_max)):
            integer(name, value, 1, 2**31)  # 0 is the default in C
        super().__init__(calls.router_index_create, calls.router_index_destroy, ctypes.byref(_c.RouterOptions(
            workers_max=integer("workers_max", workers_max, 1, 2**31 - 1), prefixes_max=prefixes_max,
            state_groups=integer("state_groups", state_groups, 0, 2**31 - 1), blocks_max=blocks_max)))
        self._workers_max = workers_max

    def join(self, worker: int, next_sequence: int = 1) -> None:
        """A worker comes, or begins anew: nothing is known of its cache. next_sequence: of its first event."""
        calls.router_index_join(self.handle, worker, next_sequence)

    def leave(self, worker: int) -> None:
        """A worker is gone, with all its contents."""
        calls.router_index_leave(self.handle, worker)

    def hear(self, worker: int, events: Records) -> bool:
        """Takes records of `RequestCache.take_events`, with numbers of their own. False: some are missing, and the
        worker is unknown until they come, or until an event says that all is cleared."""
        array, known = records("events", events, CACHE_EVENT), ctypes.c_int32()
        calls.router_index_hear(self.handle, worker, address(array), len(array), ctypes.byref(known))
        return known.value != 0

    def hear_message(self, worker: int, sequence: int, events: Records) -> bool:
        """The same for the events of one message with a number; theirs have no meaning."""
        array, known = records("events", events, CACHE_EVENT), ctypes.c_int32()
        calls.router_index_hear_message(self.handle, worker, sequence, address(array), len(array), ctypes.byref(known))
        return known.value != 0

    def _worker(self, worker: int) -> tuple[int, bool]:
        following, known = ctypes.c_uint64(), ctypes.c_int32()
        calls.router_index_worker(self.handle, worker, ctypes.byref(following), ctypes.byref(known))
        return following.value, known.value != 0

    def is_known(self, worker: int) -> bool:
        """False: the worker has not joined, or events are missing."""
        return self._worker(worker)[1]

    def next_sequence(self, worker: int) -> int:
        """Of the first event that was not heard; 0: the worker has not joined."""
        return self._worker(worker)[0]

    def find(self, prefixes: Any) -> Records:
        """ROUTER_REACH [n] of the known workers that can reuse a part of a prompt: blocks[m] without a medium slower
        than MEDIA[m], and the slowest `medium` that the longest prefix needs. prefixes [blocks, 2]: as of Hasher."""
        names, count = prefix_rows("prefixes", prefixes), ctypes.c_size_t()
        out = np.empty(self._workers_max, ROUTER_REACH)
        calls.router_index_find(self.handle, address(names), len(names), address(out), len(out), ctypes.byref(count))
        return out[:count.value]

    def _usage(self) -> Any:
        out = _c.RouterUsage()
        calls.router_index_usage(self.handle, ctypes.byref(out))
        return out

    @property
    def prefixes(self) -> int:
        """That are remembered."""
        return int(self._usage().prefixes)

    @property
    def refused(self) -> int:
        """Stored contents that found no room."""
        return int(self._usage().refused)

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError that names the first fault."""
        calls.router_index_check(self.handle)


@dataclasses.dataclass(frozen=True)
class RouterReach:
    """The part of a prompt that a worker can reuse: tokens of the longest prefix, the slowest medium that it needs, and
    tokens without media slower than each one."""

    tokens: int
    medium: str
    tokens_by_medium: Mapping[str, int]


class Router:
    """A RouterIndex that hears messages of engines, in the formats of vLLM and SGLang, and names workers by texts.

        join → hear, for each message → find, for each prompt

    block_size_tokens: of the workers' KV. state_groups: group_idx of the groups whose states a worker needs; (): KV
    alone can be reused. kv_group: of the group of KV that counts; events without a group are of this one. In SGLang's
    format component_types tell states. Other options as of RouterIndex. Not thread-safe."""

    def __init__(self, block_size_tokens: int, *, workers_max: int = 64, kv_group: int = 0,
                 state_groups: Sequence[int] = (1,), prefixes_max: int = 1 << 20, blocks_max: int = 1 << 14) -> None:
        self.block_size_tokens = integer("block_size_tokens", block_size_tokens, 1, 2**31 - 1)
        self._kv_group, self._groups = kv_group, {group: i for i, group in enumerate(state_groups)}
        if len(self._groups) < len(state_groups) or kv_group in self._groups:
            raise InvalidArgument(f"state_groups is {state_groups!r}, and must name each group once, and not that of "
                                  f"KV, {kv_group}")
        self.index = RouterIndex(workers_max, state_groups=len(self._groups), prefixes_max=prefixes_max,
                                 blocks_max=blocks_max)
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._free = list(range(workers_max))[::-1]
        self._joined: set[str] = set()  # those that the index knows by the number of a message
        self._unpack = unpacker()

    def join(self, worker: str, next_number: int | None = None) -> None:
        """A worker comes, or begins anew. next_number: of the first message to be heard; None: of the one that comes
        first. Contents that were announced before count when they are announced again. Raises InvalidArgument if
        workers_max have joined."""
        of_kind("worker", worker, str)
        if worker not in self._numbers:
            if not self._free:
                raise InvalidArgument(f"worker is {worker!r}, and workers_max ({len(self._numbers)}) have joined")
            number = self._free.pop()
            self._numbers[worker], self._names[number] = number, worker
        self.index.leave(self._numbers[worker])
        self._joined.discard(worker)
        if next_number is not None:
            self.index.join(self._numbers[worker], next_number)
            self._joined.add(worker)

    def leave(self, worker: str) -> None:
        """A worker is gone, with all its contents."""
        number = self._number(worker)
        self.index.leave(number)
        del self._numbers[worker], self._names[number]
        self._joined.discard(worker)
        self._free.append(number)

    def hear(self, worker: str, number: int, payload: bytes) -> bool:
        """Takes a message. False: one before it is missing, and the worker is unknown until it comes. Raises
        InvalidArgument, and has changed nothing, for a payload that is no batch of events."""
        place, events = self._number(worker), self._read(payload)
        if worker not in self._joined:
            self.index.join(place, number)
            self._joined.add(worker)
        return self.index.hear_message(place, number, events)

    def missing(self, worker: str) -> int | None:
        """The number from which on messages have to be repeated; None: none is missing."""
        following, known = self.index._worker(self._number(worker))
        return None if known or worker not in self._joined else following

    def find(self, hashes: Sequence[int | bytes] | UInt64s) -> dict[str, RouterReach]:
        """The known workers that can reuse a part of a prompt whose blocks have these hashes of the engine."""
        if isinstance(hashes, np.ndarray) and hashes.dtype == np.uint64 and hashes.ndim == 1:
            names = np.column_stack([hashes, np.zeros_like(hashes)])
        else:
            names = np.array([_words(value) for value in hashes], np.uint64).reshape(-1, 2)
        size = self.block_size_tokens
        return {self._names[reach["worker"]]: RouterReach(
            int(reach["blocks"][-1]) * size, MEDIA[reach["medium"]],
            {medium: int(blocks) * size for medium, blocks in zip(MEDIA, reach["blocks"], strict=False)})
            for reach in self.index.find(names)}

    def find_tokens(self, tokens: Any, *, namespace: Namespace | None = None, fast: bool = False,
                    seed: int = 0, epoch: int = 0) -> dict[str, RouterReach]:
        """The same for a prompt, if the workers announce hashes of stateport (KvEventEncoder.name without hashes). The
        last token counts as one that is computed. Options: as of hash_blocks, and as of the workers' caches."""
        _, prefixes = hash_blocks(tokens, self.block_size_tokens, namespace=namespace, fast=fast, seed=seed,
                                  epoch=epoch)
        return self.find(prefixes[:(len(tokens) - 1) // self.block_size_tokens, 0])

    def _number(self, worker: str) -> int:
        number = self._numbers.get(worker)
        if number is None:
            raise InvalidArgument(f"worker is {worker!r}, which has not joined")
        return number

    # --- Messages ----------------------------------------------------------------------------------------------------

    def _read(self, payload: bytes) -> Records:
        """CACHE_EVENT [n]."""
        rows: list[tuple[int, int, int, tuple[int, int]]] = []  # kind, group, medium, prefix
        try:
            _, events, *_ = self._unpack(payload)
            for event in events:
                kind = event["type"]
                if kind == "AllBlocksCleared":
                    rows.append((_c.EVENT_CLEARED, _KV, 0, (0, 0)))
                elif kind in ("BlockStored", "BlockRemoved"):
                    self._read_blocks(event, kind == "BlockStored", rows)
        except InvalidArgument:
            raise
        except Exception as error:
            raise InvalidArgument(f"payload is no batch of events: {error}") from error
        out = np.zeros(len(rows), CACHE_EVENT)
        out["size"] = CACHE_EVENT.itemsize
        if rows:
            out["kind"], group, out["medium"], out["prefix"] = (
                np.array(column, dtype) for column, dtype in zip(zip(*rows, strict=True), (
                    np.int32, np.int32, np.int32, np.uint64), strict=True))
            out["content"], out["group"] = group != _KV, np.maximum(group, 0)
        return out

    def _read_blocks(self, event: Mapping[str, Any], stored: bool, rows: list[Any]) -> None:
        medium = _MEDIUM_OF.get(event.get("medium"))
        if medium is None:
            return
        prefixes = [_words(value) for value in event["block_hashes"]]
        there = self._groups_of(event)
        if stored and _KV in there and event["block_size"] != self.block_size_tokens:
            raise InvalidArgument(f"payload has blocks of {event['block_size']} tokens, and block_size_tokens is "
                                  f"{self.block_size_tokens}")
        for group, has in there.items():
            kind = _c.EVENT_STORED if stored and has else _c.EVENT_REMOVED
            rows += [(kind, group, medium, prefix) for prefix in prefixes]

    def _groups_of(self, event: Mapping[str, Any]) -> dict[int, bool]:
        """Contents that an event tells of, and whether a block that is stored has them. In SGLang's format an event
        tells of all contents of a block. An event of states without a group is one of each group."""
        group = event.get("group_idx")
        if group is None and event.get("kv_cache_spec_kind") is None:
            components = {str(name).lower() for name in event.get("component_types") or ("full",)}
            return {_KV: "full" in components} | dict.fromkeys(self._groups.values(), "mamba" in components)
        if group in self._groups:
            return {self._groups[group]: True}
        if group is None and event["kv_cache_spec_kind"] == "mamba":
            return dict.fromkeys(self._groups.values(), True)
        return {_KV: True} if group is None or group == self._kv_group else {}


def _words(value: Any) -> tuple[int, int]:
    """A hash of an engine as the name of a prefix. Hashes of 64 bits may come with a sign."""
    if isinstance(value, bytes):
        return int.from_bytes(value[:8], "little"), int.from_bytes(value[8:16], "little")
    return integer("hash", value, -2**63, 2**64 - 1) % 2**64, 0
