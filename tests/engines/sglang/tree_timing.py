#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Row R3: the same operations on SGLang's tree (its Rust core, its Python core) and on stateport's PrefixTree through
ctypes, in one run, one after the other for each sample. tree_timing.py LIBRARY [--samples 200]

Prompts of 32k tokens in nodes of 2,048 with a state at the end of each. deep: 64 prompts that share nothing. wide:
1,000 that share 30k. Printed: median [p10, p90] in microseconds, the ratio of medians to that of stateport, and the
ratio of a second stateport to the first (A/A). An insert of stateport has the tag of its slot with it, a hash of the
whole prompt. SGLang's pools get no calls, so that its trees alone are timed."""

import argparse
import array
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang_tree import SglangTree, Shape
from stateport_tree import StateportTree, c

SEGMENT, DEPTH = 2048, 16
PROMPTS = {"deep": 64, "wide": 1000}
OPERATIONS = ("match", "match with KV indices", "tag and insert 2k below 30k", "lock and unlock", "evict 2k tokens",
              "evict a state")


def segment(prompt: int, depth: int) -> list[int]:
    base = (prompt * 7919 + depth * 104729) % 150000
    return [(base + i * 31) % 151936 for i in range(SEGMENT)]


def tokens_of(shape: str, prompt: int) -> list[int]:
    shared = DEPTH - 1 if shape == "wide" else 0
    return [token for depth in range(DEPTH) for token in segment(0 if depth < shared else prompt + 1, depth)]


class Row(NamedTuple):
    """Arguments of an insert: KV indices of the whole prompt, and a slot."""

    kv: Any
    slot: Any


class Sglang:
    """The calls that are timed, on buffers that are ready."""

    def __init__(self, shape: Shape, core: str):
        self.tree = SglangTree(shape, core, record=False)
        SglangTree.pools.clear()  # the next one gets its own
        self.cache = self.tree.cache
        for pool in (self.tree.kv, self.tree.slots):  # the time of pools is not the tree's
            for name in [n for n in dir(pool) if n in ("free", "free_segment", "free_full_segment", "free_segments")]:
                setattr(pool, name, lambda *_, **__: None)

    def key(self, tokens: list[int]) -> RadixKey:
        return RadixKey(array.array("q", tokens))

    def match(self, key: RadixKey) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=key))

    def match_kv(self, key: RadixKey) -> tuple[Any, torch.Tensor]:
        found = self.match(key)
        return found, self.cache.path_device_indices(found.last_device_node)

    def hit(self, found: Any) -> int:
        return int(found.device_prefix_len)

    def row(self, key: RadixKey, prev: int) -> Row:
        fresh = self.tree.kv.alloc(len(key) - prev)
        kv = fresh if prev == 0 else torch.cat([self.match_kv(key)[1][:prev], fresh])
        return Row(kv, self.tree.slots.alloc(1))

    def insert(self, key: RadixKey, row: Row, prev: int) -> None:
        self.cache.insert(InsertParams(key=key, value=row.kv, mamba_value=row.slot, prev_prefix_len=prev))

    def pin(self, found: Any) -> None:
        node = found.best_match_node
        self.cache.dec_lock_ref(node, self.cache.inc_lock_ref(node).to_dec_params())

    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        done = self.cache.evict(EvictParams(num_tokens=tokens, mamba_num=states))
        return done.num_tokens_evicted, done.mamba_num_evicted


class Stateport:
    """The same through ctypes."""

    def __init__(self, library: c.Library, shape: Shape):
        self.tree = StateportTree(library, shape, checked=False)
        self.handle = self.tree.tree
        names = ("match", "insert", "evict", "lock_node", "lock_destroy", "tag_slot", "take_freed_kv")
        self.call = {name: getattr(library._library, f"stateport_tree_{name}") for name in names}
        self.next = 0
        self.found, self.done, self.count = c.Match(), c.InsertResult(), c_size_t()
        self.kv, self.freed = (c_int32 * (SEGMENT * DEPTH))(), (c_int32 * shape.kv)()

    def key(self, tokens: list[int]) -> Any:
        return c.int32s(*tokens)

    def match(self, key: Any, kv: Any = None) -> Any:
        self.call["match"](self.handle, key, c_size_t(len(key)), None, kv, byref(self.found))
        return self.found

    def match_kv(self, key: Any) -> tuple[Any, Any]:
        return self.match(key, self.kv), self.kv

    def hit(self, found: Any) -> int:
        return int(found.tokens)

    def row(self, key: Any, prev: int) -> Row:
        first, self.next = self.next, self.next + len(key) - prev
        slot = self.tree.allocate_slot()
        assert slot is not None
        return Row((c_int32 * len(key))(*([0] * prev), *range(first, self.next)), slot - 1)

    def insert(self, key: Any, row: Row, prev: int) -> None:
        self.call["tag_slot"](self.handle, c_int32(row.slot), key, c_size_t(len(key)), None)
        wanted = c.Insert(tokens=key, kv=row.kv, count=len(key), prev_tokens=prev, slot=row.slot)
        assert self.call["insert"](self.handle, byref(wanted), byref(self.done)) == c.OK
        self.take_freed()

    def pin(self, found: Any) -> None:
        lock = c_void_p()
        self.call["lock_node"](self.handle, c_uint64(found.node), byref(lock))
        self.call["lock_destroy"](lock)

    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        gone = c_int64(), c_int64()
        self.call["evict"](self.handle, c_int64(tokens), c_int64(states), byref(gone[0]), byref(gone[1]))
        self.take_freed()
        return gone[0].value, gone[1].value

    def take_freed(self) -> None:
        self.call["take_freed_kv"](self.handle, self.freed, c_size_t(len(self.freed)), byref(self.count))


def fill(engine: Any, shape: str) -> list[Any]:
    """A state at the end of every node. Returns the keys of all prompts."""
    keys = []
    for prompt in range(PROMPTS[shape]):
        tokens = tokens_of(shape, prompt)
        for depth in range(1 if shape == "deep" or prompt == 0 else DEPTH, DEPTH + 1):
            key, prev = engine.key(tokens[:depth * SEGMENT]), (depth - 1) * SEGMENT
            engine.insert(key, engine.row(key, prev), prev)
        keys.append(key)
    return keys


class Timed:
    """Samples of one engine, in nanoseconds."""

    def __init__(self, engine: Any, shape: str):
        self.engine, self.shape, self.keys = engine, shape, fill(engine, shape)
        self.samples: dict[str, list[int]] = {name: [] for name in OPERATIONS}

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter_ns()
        answer = call(*arguments)
        self.samples[name].append(time.perf_counter_ns() - begin)
        return answer

    def sample(self, number: int, prompt: int) -> tuple[Any, ...]:
        """One of each. Returns the results on which all engines must agree."""
        engine = self.engine
        found = self.timed("match", engine.match, self.keys[prompt])
        hit = engine.hit(found)
        found, _ = self.timed("match with KV indices", engine.match_kv, self.keys[prompt])
        self.timed("lock and unlock", engine.pin, found)
        trunk = tokens_of(self.shape, prompt)[:(DEPTH - 1) * SEGMENT]
        key = engine.key(trunk + segment(5000 + number, 77))
        prev = engine.hit(engine.match(engine.key(trunk)))
        self.timed("tag and insert 2k below 30k", engine.insert, key, engine.row(key, prev), prev)
        evicted = [self.timed("evict 2k tokens", engine.evict, SEGMENT, 0)]
        if number % 4 == 0:
            evicted.append(self.timed("evict a state", engine.evict, 0, 1))
        return hit, prev, tuple(evicted)


def microseconds(samples: list[int]) -> tuple[float, str]:
    tenths = [value / 1000 for value in statistics.quantiles(samples, n=10)]
    median = statistics.median(samples) / 1000
    return median, f"{median:7.1f} [{tenths[0]:.1f}, {tenths[-1]:.1f}]"


def run(library: c.Library, shape: str, page: int, samples: int) -> None:
    prompts = PROMPTS[shape]
    size = Shape(page, (prompts + samples + 40) * SEGMENT * (DEPTH if shape == "deep" else 1) + 64 * 32768,
                 prompts * (DEPTH if shape == "deep" else 2) + 4 * samples + 100, max(page, 64))
    engines = {"stateport": Stateport(library, size), "again": Stateport(library, size),
               "Rust core": Sglang(size, "rust"), "Python core": Sglang(size, "python")}
    timed = {name: Timed(engine, shape) for name, engine in engines.items()}
    rng, order = random.Random(5), itertools.cycle(itertools.permutations(timed))
    for number in range(samples):
        prompt = rng.randrange(prompts)
        answers = {timed[name].sample(number, prompt) for name in next(order)}
        assert len(answers) == 1, answers
    print(f"{shape}, page {page}: {prompts} prompts, {samples} samples; microseconds, median [p10, p90]")
    for operation in OPERATIONS:
        ours, text = microseconds(timed["stateport"].samples[operation])
        line = f"  {operation:28} stateport {text:24}"
        for name in ("Rust core", "Python core"):
            median, text = microseconds(timed[name].samples[operation])
            line += f" {name} {text:28} {median / ours:5.1f}x"
        print(line, f" A/A {microseconds(timed['again'].samples[operation])[0] / ours:.2f}", flush=True)
    for name in ("stateport", "again"):
        engines[name].tree.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--samples", type=int, default=200)
    arguments = parser.parse_args()
    library = c.Library(arguments.library)
    for shape in PROMPTS:
        for page in (1, 64):
            run(library, shape, page, arguments.samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
