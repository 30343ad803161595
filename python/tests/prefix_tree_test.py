# SPDX-License-Identifier: Apache-2.0
"""PrefixTree against a set of prefixes."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds


def test_random_matches_are_those_of_a_set_of_prefixes() -> None:
    """Without eviction the answer is the longest prefix that was inserted with a state."""
    hits = 0
    for seed in seeds(30):
        print("seed", seed)
        draw, tree, kept, free = random.Random(seed), sp.PrefixTree(200), set[tuple[int, ...]](), iter(range(1 << 20))
        kv_of: dict[tuple[int, ...], int] = {}
        for _ in range(60):
            prompt = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 12)))
            wanted = max((n for n in range(len(prompt) + 1) if prompt[:n] in kept), default=0)
            match = tree.match(prompt, kv=True)
            assert match.tokens == wanted, (seed, prompt)
            assert match.kv is not None
            assert [kv_of[prompt[:n + 1]] for n in range(wanted)] == list(match.kv)
            hits += wanted > 0
            with tree.lock(match.node):
                kv = [*match.kv, *(next(free) for _ in range(len(prompt) - wanted))]
                slot = int(tree.allocate_slots(1)[0])
                tree.tag_slot(slot, prompt)
                done = tree.insert(prompt, kv, slot=slot, prev_tokens=wanted, past=match.past)
                if match.tokens:
                    assert tree.check_restore(match) == "match"
            assert done.state_exists == (prompt in kept)
            if done.state_exists:
                tree.release_slots([slot])
            for n in range(done.prefix_tokens, len(prompt)):
                kv_of[prompt[:n + 1]] = kv[n]
            assert list(tree.take_freed_kv()) == kv[wanted:done.prefix_tokens]
            kept.add(prompt)
            tree.check_invariants()
        assert tree.sizes().evictable_states == len(kept)
    assert hits > 100


def filled(**options: Any) -> tuple[sp.PrefixTree, list[int]]:
    tree, nodes = sp.PrefixTree(8, eviction=sp.Eviction("lru"), **options), []
    for branch in range(3):
        slot = tree.allocate_slots(1)[0]
        tokens = [7, 7, branch]
        tree.tag_slot(int(slot), tokens)
        nodes.append(tree.insert(tokens, np.arange(3) + 10 * branch, slot=int(slot)).node)
    return tree, nodes


def test_victims_are_named_before_they_go() -> None:
    reported: list[sp.Victim] = []
    tree, nodes = filled(on_victim=lambda victim: bool(reported.append(victim)))
    ahead = tree.peek_victims("states", 2)
    assert [victim.node for victim in ahead] == nodes[:2]
    assert tree.evict(states=1)[1] >= 1
    assert [victim.slot for victim in reported] == [ahead[0].slot] and reported[0].end_tokens == 3
    tree.check_invariants()


def test_a_listener_may_keep_a_victim() -> None:
    tree, _ = filled(on_victim=lambda victim: victim.slot >= 0)
    free = tree.sizes().free_slots
    tree.evict(states=3)
    assert tree.sizes().free_slots == free
    tree.release_slots([0])
    assert tree.sizes().free_slots == free + 1


def test_a_listener_that_raises_keeps_no_victim(capfd: pytest.CaptureFixture[str]) -> None:
    def on_victim(victim: sp.Victim) -> bool:
        raise KeyError("no such list")

    tree, _ = filled(on_victim=on_victim)
    free = tree.sizes().free_slots
    tree.evict(states=3)
    assert tree.sizes().free_slots == free + 3
    assert capfd.readouterr().err.count("KeyError: ") == 3


def test_a_lock_protects_until_it_is_closed() -> None:
    tree, nodes = filled()
    with tree.lock(nodes[0]):
        tree.evict(tokens=100, states=100)
        assert tree.match([7, 7, 0]).tokens == 3
        assert tree.match([7, 7, 1]).tokens == 0
    tree.evict(tokens=100, states=100)
    assert tree.match([7, 7, 0]).tokens == 0
    with pytest.raises(sp.InvalidArgument):
        tree.lock(nodes[1])


def test_touch_makes_a_state_recent_and_drop_gives_it_up() -> None:
    tree, nodes = filled()
    tree.touch(nodes[:1])
    assert tree.peek_victims("states", 1)[0].node == nodes[1]
    tree.drop_state(nodes[1])
    assert tree.sizes().evictable_states == 2
    tree.reset()
    assert tree.sizes().free_slots == 8


@pytest.mark.parametrize(("use", "text"), [
    (lambda tree: tree.match([[1]]), "tokens has 2"),
    (lambda tree: tree.insert([1, 2], [1]), "kv has 1 elements, and tokens 2"),
    (lambda tree: tree.insert([1, 2], [1, 2], slot=5), "5"), (lambda tree: tree.release_slots([9]), "9"),
    (lambda tree: tree.peek_victims("all"), "kind is 'all'"), (lambda tree: tree.touch([1 << 40]), ""),
    (lambda tree: tree.evict(tokens=-1), "-1"), (lambda tree: sp.PrefixTree(-1), "slots"),
])
def test_bad_calls_are_refused(use: Any, text: str) -> None:
    tree, _ = filled()
    sizes = tree.sizes()
    with pytest.raises(sp.InvalidArgument) as raised:
        use(tree)
    assert text in str(raised.value)
    tree.check_invariants()
    assert tree.sizes() == sizes
