#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random streams of match, insert, lock, evict and start from a state, on SGLang's own prefix cache and on stateport's
PrefixTree: every answer, freed index, slot number and size is compared after every step.

    tree_streams.py LIBRARY [--core rust|python] [--seeds 0:500] [--steps 220] [--policy lru|all]

A stream is a list of steps that is drawn from its seed before it runs, so a part of it is a stream too: a stream that
differs is shrunk, and the rest is printed."""

import argparse
import collections
import random
import reprlib
import sys
import time
from typing import Any, NamedTuple

from sglang_tree import NO_NAMESPACE, Namespace, PoolPinned, SglangTree, Shape
from stateport_tree import POLICIES, StateportTree, c

NAMESPACES: list[Namespace] = [NO_NAMESPACE, NO_NAMESPACE, NO_NAMESPACE, ("a", None), (None, "s"), ("a", "s")]
LOCKS_MAX, NODES_MAX = 6, 13
ALL = 10**6
SHOWN = 10  # streams that differ


class Step(NamedTuple):
    """`draw` in [0, 1) chooses a node, a lock or a slot of those that exist when the step runs."""

    kind: str
    draw: float = 0.0
    tokens: tuple[int, ...] = ()
    space: Namespace = NO_NAMESPACE
    counts: tuple[int, int] = (0, 0)  # evict: tokens, states
    matched: bool = False  # insert: it is matched and locked first
    kept: bool = False  # insert: that lock stays; start: the request has a slot
    priority: int = 0
    chunked: bool = False


class Differs(Exception):
    """The two trees answered differently."""


def shape_of(seed: int, policy: str) -> Shape:
    rng = random.Random(seed * 7919 + 13)
    page = rng.choice([1, 1, 1, 4, 16, 64])
    pages = rng.choice([24, 40, 80, 160]) if page < 64 else rng.choice([16, 32, 48])
    return Shape(page=page, kv=pages * page, slots=rng.choice([3, 5, 8, 12, 20, 40]),
                 chunk=rng.choice([1, 2, 3, 4, 8, 64]) if page == 1 else page * rng.choice([1, 1, 2, 4]),
                 states_per_path=rng.choice([-1, -1, -1, 1, 2, 3]),
                 policy=rng.choice(list(POLICIES)) if policy == "all" else policy)


class Draw:
    """Draws the steps of one stream."""

    def __init__(self, seed: int, shape: Shape):
        self.rng, self.shape = random.Random(seed), shape
        self.vocabulary = self.rng.choice([2, 2, 3, 5])
        self.max_pages = self.rng.choice([4, 8, 12])
        self.spaces = NAMESPACES if self.rng.random() < 0.4 else NAMESPACES[:1]
        self.known: collections.deque[tuple[tuple[int, ...], Namespace]] = collections.deque(maxlen=24)

    def pages(self, count: int) -> tuple[int, ...]:
        """Of few patterns, so that pages are equal often; some differ inside."""
        out: list[int] = []
        for _ in range(count):
            kind = self.rng.randrange(self.vocabulary)
            page = [kind * 10 + i % 3 for i in range(self.shape.page)]
            if self.shape.page > 1 and self.rng.random() < 0.15:
                page[self.rng.randrange(self.shape.page)] = 99
            out += page
        return tuple(out)

    def key(self, known: float) -> tuple[tuple[int, ...], Namespace]:
        """A prefix of a key that was inserted, often with more behind it, or a new one."""
        rng, page = self.rng, self.shape.page
        if self.known and rng.random() < known:
            tokens, space = rng.choice(self.known)
            if rng.random() < 0.05:
                space = rng.choice(self.spaces)
            cut = rng.randrange(len(tokens) + 1) if rng.random() < 0.75 else len(tokens)
            if rng.random() < 0.7:
                cut = cut // page * page
            tokens = tokens[:cut] + (self.pages(rng.randint(1, 3)) if rng.random() < 0.6 else ())
        else:
            tokens, space = self.pages(rng.randint(1, self.max_pages)), rng.choice(self.spaces)
        if page > 1 and rng.random() < 0.25:
            tokens += self.pages(1)[:rng.randrange(page)]
        return tokens[:self.max_pages * 3 * page], space

    def insert(self) -> Step:
        rng = self.rng
        tokens, space = self.key(0.8)
        if len(tokens) >= self.shape.page:
            self.known.append((tokens, space))
        return Step("insert", rng.random(), tokens, space, matched=rng.random() < 0.5, kept=rng.random() < 0.2,
                    priority=rng.randrange(3), chunked=rng.random() < 0.2)

    def evict(self) -> Step:
        rng, page = self.rng, self.shape.page
        tokens = rng.choice([0, 1, page, 2 * page, 5 * page, rng.randrange(self.shape.kv)])
        return Step("evict", counts=(tokens, rng.choice([0, 0, 1, 1, 2, 4, self.shape.slots])))

    def step(self) -> Step:
        rng = self.rng
        kind = rng.choices(["insert", "match", "start", "lock", "unlock", "evict", "release"],
                           [36, 23, 8, 8, 10, 11, 4])[0]
        if kind == "insert":
            return self.insert()
        if kind == "evict":
            return self.evict()
        if kind in ("match", "start"):
            return Step(kind, rng.random(), *self.key(0.75), kept=rng.random() < 0.4)
        return Step(kind, rng.random())


class Stream:
    """Runs steps on two trees."""

    def __init__(self, shape: Shape, theirs: SglangTree, ours: StateportTree):
        self.shape, self.theirs, self.ours = shape, theirs, ours
        self.nodes: list[tuple[Any, int]] = []  # of late answers
        self.locks: list[tuple[Any, Any]] = []
        self.held: list[int] = []  # slots of requests
        self.counts: collections.Counter[str] = collections.Counter()

    @staticmethod
    def same(what: str, theirs: Any, ours: Any) -> None:
        if isinstance(theirs, dict) and isinstance(ours, dict):
            fields = [name for name in theirs if theirs[name] != ours.get(name)]
            theirs, ours = ({name: answer.get(name) for name in fields} for answer in (theirs, ours))
        if theirs != ours:
            raise Differs(f"{what}: SGLang {reprlib.repr(theirs)}, stateport {reprlib.repr(ours)}")

    def match(self, tokens: tuple[int, ...], space: Namespace, start: bool = False,
              live: int | None = None) -> tuple[dict[str, Any], bool] | None:
        """The answer, and whether something was hit. None: no slot to start from."""
        answers: list[Any] = []
        for tree in (self.theirs, self.ours):
            try:
                answers.append(tree.match(tokens, space, start, live))
            except PoolPinned:
                answers.append(({"pinned": tree.take_freed()}, None))
        (theirs, their_node), (ours, our_node) = answers
        self.same("start" if start else "match", theirs, ours)
        self.counts["pinned" if "pinned" in theirs else "hits" if our_node else "misses"] += 1
        if "pinned" in theirs:
            return None
        if our_node:
            self.remember(their_node, our_node)
        return theirs, our_node is not None

    def remember(self, their_node: Any, our_node: int) -> None:
        self.nodes = [pair for pair in self.nodes if pair[1] != our_node][1 - NODES_MAX:] + [(their_node, our_node)]

    def lock(self, pair: tuple[Any, int]) -> bool:
        theirs, ours = self.theirs.lock(pair[0]), self.ours.lock(pair[1])
        self.same("lock: the node is there", theirs is not None, ours is not None)
        if theirs is None:
            self.nodes.remove(pair)
            return False
        self.locks.append((theirs, ours))
        return True

    def unlock(self, index: int) -> None:
        theirs, ours = self.locks.pop(index)
        self.theirs.unlock(theirs)
        self.ours.unlock(ours)

    def evict(self, tokens: int, states: int) -> None:
        theirs, ours = self.theirs.evict(tokens, states), self.ours.evict(tokens, states)
        self.same("evict", theirs, ours)
        self.counts["tokens evicted"] += theirs["tokens"]
        self.counts["states evicted"] += theirs["states"]

    def slot(self) -> int | None:
        theirs, ours = self.theirs.allocate_slot(), self.ours.allocate_slot()
        self.same("allocate a slot", theirs, ours)
        return theirs

    def free_slot(self, slot: int) -> None:
        self.theirs.free_slot(slot)
        self.ours.free_slot(slot)

    def insert(self, step: Step) -> None:
        """As an engine does it: match and lock, room for the rest (evicting if needed), insert, unlock."""
        row: list[int] = []
        locked = False
        if step.matched:
            found = self.match(step.tokens, step.space)
            if found is not None and found[1]:
                locked = self.lock(self.nodes[-1])
                row = found[0]["kv"]
                if step.draw < 0.2:
                    row = row[:int(step.draw * 5 * (len(row) // self.shape.page + 1)) * self.shape.page]
        need = len(step.tokens) - len(row)
        ids = self.theirs.allocate_kv(need)
        if ids is None:
            self.evict(-(-need // self.shape.page) * self.shape.page - self.theirs.free_kv_tokens(), 0)
            ids = self.theirs.allocate_kv(need)
        slot = None if ids is None else self.slot()
        if ids is not None and slot is None:
            self.evict(0, 1)
            slot = self.slot()
        if ids is not None and slot is not None:
            self.insert_in(step, row, ids, slot)
        elif ids:
            self.theirs.free_kv(ids)
        if locked and not (step.kept and ids is not None and slot is not None):
            self.unlock(len(self.locks) - 1)

    def insert_in(self, step: Step, row: list[int], ids: list[int], slot: int) -> None:
        arguments = (step.tokens, row + ids, slot, step.space, len(row), step.priority, step.chunked)
        (theirs, their_node), (ours, our_node) = self.theirs.insert(*arguments), self.ours.insert(*arguments)
        self.same("insert", theirs, ours)
        self.counts["inserts"] += 1
        cut = len(step.tokens) // self.shape.page * self.shape.page
        self.theirs.free_kv((row + ids)[max(cut, len(row)):])  # the tokens behind the last whole page
        if theirs["exists"]:
            self.free_slot(slot)
        if their_node is not None and our_node:
            self.remember(their_node, our_node)

    def run_step(self, step: Step) -> None:
        if step.kind == "insert":
            self.insert(step)
        elif step.kind == "match":
            self.match(step.tokens, step.space)
        elif step.kind == "start":
            live = self.held[int(step.draw * len(self.held))] if self.held and step.kept else None
            found = self.match(step.tokens, step.space, True, live)
            if found is not None and live is None and found[0]["live"] is not None:
                self.held.append(found[0]["live"])
        elif step.kind == "lock" and self.nodes and len(self.locks) < LOCKS_MAX:
            self.lock(self.nodes[int(step.draw * len(self.nodes))])
        elif step.kind == "unlock" and self.locks:
            self.unlock(int(step.draw * len(self.locks)))
        elif step.kind == "evict":
            self.evict(*step.counts)
        elif step.kind == "release" and self.held:
            self.free_slot(self.held.pop(int(step.draw * len(self.held))))
        self.same("evictable and protected tokens, evictable and protected states, free slots", self.theirs.sizes(),
                  self.ours.sizes())

    def run(self, steps: list[Step]) -> None:
        for number, step in enumerate(steps):
            try:
                self.run_step(step)
            except Differs as difference:
                raise Differs(f"step {number}, {step.kind}: {difference}") from None
            if number % 8 == 0:
                self.ours.check()
            if number % 64 == 63 and not self.locks:
                self.theirs.check()
        while self.locks:
            self.unlock(len(self.locks) - 1)
        for counts in ((0, 2), (ALL, ALL)):
            self.run_step(Step("evict", counts=counts))
        self.same("free slots at the end, in order", self.theirs.free_slots(), self.ours.free_slots())


def difference_of(library: c.Library, core: str, shape: Shape, steps: list[Step],
                  counts: collections.Counter[str]) -> str | None:
    """The difference between two new trees that run these steps."""
    stream = Stream(shape, SglangTree(shape, core), StateportTree(library, shape, PoolPinned))
    try:
        stream.run(steps)
        return None
    except (Differs, AssertionError) as difference:
        return str(difference) or type(difference).__name__
    finally:
        counts.update(stream.counts)
        for lock in stream.locks:
            stream.ours.unlock(lock[1])
        stream.ours.close()


def shrink(library: c.Library, core: str, shape: Shape, steps: list[Step]) -> list[Step]:
    """Leaves out parts, from halves to single steps, as long as the rest differs somewhere."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            rest = steps[:at] + steps[at + size:]
            if rest and difference_of(library, core, shape, rest, collections.Counter()) is not None:
                steps = rest
            else:
                at += size
        size //= 2
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--core", default="rust", choices=["rust", "python"])
    parser.add_argument("--seeds", default="0:500", help="FIRST:END")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--policy", default="lru", choices=["all", *POLICIES])
    arguments = parser.parse_args()
    library = c.Library(arguments.library)
    first, end = map(int, arguments.seeds.split(":"))
    begin, differing, counts = time.monotonic(), 0, collections.Counter()
    for seed in range(first, end):
        shape = shape_of(seed, arguments.policy)
        draw = Draw(seed, shape)
        steps = [draw.step() for _ in range(arguments.steps)]
        difference = difference_of(library, arguments.core, shape, steps, counts)
        if difference is None:
            continue
        differing += 1
        if differing <= SHOWN:
            print(f"seed {seed} {shape} DIFFERS at {difference}", flush=True)
        if differing == 1:
            steps = shrink(library, arguments.core, shape, steps)
            again = difference_of(library, arguments.core, shape, steps, collections.Counter())
            print(f"shrunk to {len(steps)} steps, {again}:", *steps, sep="\n  ", flush=True)
    print(f"{arguments.core} core, policy {arguments.policy}: {end - first - differing} of {end - first} streams of "
          f"{arguments.steps} steps equal (seeds {arguments.seeds}, {time.monotonic() - begin:.0f} s); {dict(counts)}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
