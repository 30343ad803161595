# SPDX-License-Identifier: Apache-2.0
"""The index by tokens: a radix tree, for engines that schedule otherwise than RequestCache does."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import struct_of
from stateport._arrays import Int32s, address, copied, int32s, ints, room
from stateport._library import calls
from stateport.cache_options import LOST_REASONS
from stateport.errors import InvalidArgument
from stateport.eviction import Eviction, ReuseHint
from stateport.hashing import Namespace

NO_SLOT = -1
RESTORE_CHECKS: tuple[str, ...] = _c.TAG_CHECK
VICTIM_KINDS: tuple[str, ...] = _c.VICTIM_KIND
Past = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Match:
    """The deepest prefix with a state.

    node: to lock; 0: the root, nothing is usable. tokens: usable. walked_tokens: whose KV is there.
    branching_position: where a checkpoint would make the next request hit; 0: nowhere. slot: state@tokens, or NO_SLOT.
    live_slot: where to copy it, if asked for. lost: why not all of walked_tokens is usable. past: hix's record of the
    prompt, for the inserts of the request. kv_node: the deepest node that ends within walked_tokens. kv: int32 [tokens]
    the KV indices of the usable tokens, if asked for."""

    node: int
    tokens: int
    walked_tokens: int
    branching_position: int
    slot: int
    live_slot: int
    lost: str
    past: Past
    kv_node: int
    kv: Int32s | None
    struct: Any = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Inserted:
    """prefix_tokens: in the tree before; kv[prev_tokens:prefix_tokens] are freed. state_exists: the slot stays the
    caller's."""

    prefix_tokens: int
    node: int
    state_exists: bool


@dataclasses.dataclass(frozen=True)
class Victim:
    """A victim of the tree: the state in `slot` after end_tokens, or NO_SLOT; and the tokens and KV indices of its
    node, none if the state goes alone."""

    node: int
    end_tokens: int
    slot: int
    prefix: tuple[int, int]
    tokens: Int32s
    kv: Int32s


@dataclasses.dataclass(frozen=True)
class TreeSizes:
    evictable_tokens: int
    protected_tokens: int
    evictable_states: int
    protected_states: int
    free_slots: int


class Lock(_library.Object):
    """A pin on a path of a tree and the state at its end, until it is closed."""


def _victim(struct: Any) -> Victim:
    return Victim(struct.node, struct.end_tokens, struct.slot, tuple(struct.prefix),
                  copied(struct.tokens, struct.count, np.int32), copied(struct.kv, struct.count, np.int32))


class PrefixTree(_library.Object):
    """A radix tree over tokens. It owns KV indices (numbers of the caller) and slots 0 … slots - 1.

    page_size, chunk_size: in tokens. max_states_per_path: 0: no limit. layout_fingerprint: StateSpec.fingerprint.
    kv_indices: > 0: KV indices are below this, and one that the tree owns already is refused. hash_seed: a secret where
    tenants are not trusted. position_tokens: hix: distance of the positions whose history is kept.
    eviction: None: hix. on_victim: called for every state or node before it leaves the tree; it may use other objects,
    not this tree. True keeps the slot for the caller, until release_slots."""

    def __init__(self, slots: int, *, page_size: int = 1, chunk_size: int = 1, max_states_per_path: int = 0,
                 eviction: Eviction | None = None, layout_fingerprint: int = 0, kv_indices: int = 0, hash_seed: int = 0,
                 position_tokens: int = 0, on_victim: Callable[[Victim], bool] | None = None) -> None:
        # Its exceptions are printed, and the slot is not kept.
        keeps = None if on_victim is None else _library.answering(
            lambda victim, _: int(bool(on_victim(_victim(victim.contents)))), 0)
        options = _c.TreeOptions(
            slots=slots, page_size=page_size, chunk_size=chunk_size, max_states_per_path=max_states_per_path,
            eviction_options=(eviction or Eviction("hix")).struct(), layout_fingerprint=layout_fingerprint,
            kv_indices=kv_indices, hash_seed=hash_seed, position_tokens=position_tokens, on_victim=keeps)
        self._options = options  # holds on to the callback
        super().__init__(calls.tree_create, calls.tree_destroy, ctypes.byref(options))

    def set_time(self, now_s: float) -> None:
        """The clock of hix; never goes back."""
        calls.tree_set_time(self.handle, now_s)

    def match(self, tokens: Any, *, namespace: Namespace | None = None, kv: bool = False, again: bool = False) -> Match:
        """Looks a prompt up (int32 [n]). kv: also tell the KV indices of the usable tokens. again: a request that was
        looked up before: hix counts it once."""
        return self._matched(calls.tree_match_again if again else calls.tree_match, tokens, namespace, kv)

    def match_with_live_slot(self, tokens: Any, live_slot: int = NO_SLOT, *, namespace: Namespace | None = None,
                             kv: bool = False) -> Match:
        """As match, for a request that starts from the state, in `live_slot`, or in one that is taken."""
        return self._matched(calls.tree_match_with_live_slot, tokens, namespace, kv, live_slot)

    def _matched(self, call: Callable[..., None], tokens: Any, namespace: Namespace | None, kv: bool,
                 *live_slot: int) -> Match:
        array, out = int32s("tokens", tokens), _c.Match()
        indices = np.empty(len(array), np.int32) if kv else None
        keys = None if namespace is None else namespace.struct()
        call(self.handle, address(array), len(array), None if keys is None else ctypes.addressof(keys),
             None if indices is None else address(indices), *live_slot, ctypes.addressof(out))
        return Match(out.node, out.tokens, out.walked_tokens, out.branching_position, out.slot, out.live_slot,
                     LOST_REASONS[out.lost], tuple(out.past), out.kv_node,
                     None if indices is None else indices[:out.tokens], out)

    def check_restore(self, match: Match) -> str:
        """Compares the content of a match's slot with the matched state, one of RESTORE_CHECKS: "match" while
        locked."""
        out = ctypes.c_int32()
        calls.tree_check_restore(self.handle, ctypes.addressof(match.struct), ctypes.byref(out))
        return RESTORE_CHECKS[out.value]

    def insert(self, tokens: Any, kv: Any, *, slot: int = NO_SLOT, namespace: Namespace | None = None,
               prev_tokens: int = 0, priority: int = 0, chunked: bool = False, past: Past = (0, 0),
               hint: ReuseHint | None = None, request_tokens: int = 0) -> Inserted:
        """Keeps a prefix: only whole pages. kv: int32 [n], [0, prev_tokens) are not read. slot: a checkpoint to donate,
        tagged with the whole pages of `tokens`. See stateport_insert for the rest."""
        array, indices, out = int32s("tokens", tokens), int32s("kv", kv), _c.InsertResult()
        if len(indices) != len(array):
            raise InvalidArgument(f"kv has {len(indices)} elements, and tokens {len(array)}")
        prefix = _c.Insert(tokens=address(array), kv=address(indices), count=len(array), prev_tokens=prev_tokens,
                           slot=slot, priority=priority, chunked=chunked, past=past, request_tokens=request_tokens,
                           name_space=struct_of("namespace", namespace, Namespace),
                           hint=struct_of("hint", hint, ReuseHint))
        calls.tree_insert(self.handle, ctypes.addressof(prefix), ctypes.addressof(out))
        return Inserted(out.prefix_tokens, out.node, bool(out.state_exists))

    def touch(self, nodes: Any) -> None:
        """Makes the paths to these nodes (uint64 [n]), and their states, the ones used last."""
        array = ints("nodes", nodes, np.uint64)
        calls.tree_touch(self.handle, address(array), len(array))

    def lock(self, node: int) -> Lock:
        """Pins the path to a node of a match or an insert, and the state that it has or gets. Use it in a `with`
        statement, or close it. Raises InvalidArgument for a node that has been evicted."""
        return Lock(calls.tree_lock_node, calls.tree_lock_destroy, self.handle, node)

    def evict(self, *, tokens: int = 0, states: int = 0, total_bytes: int = 0) -> tuple[int, int]:
        """Frees at least the demand, or all that is not locked if that is less. Returns the tokens and states that were
        freed."""
        demand, out = _c.EvictDemand(tokens=tokens, states=states, bytes=total_bytes), _c.EvictResult()
        calls.tree_evict_demand(self.handle, ctypes.addressof(demand), ctypes.addressof(out))
        return out.tokens, out.states

    def drop_state(self, node: int) -> None:
        """Gives up the state of a node, which keeps its KV."""
        calls.tree_drop_state(self.handle, node)

    def peek_victims(self, kind: str, capacity: int = 16) -> Sequence[Victim]:
        """The next victims for a demand of one of VICTIM_KINDS, in order. Nothing changes."""
        if kind not in VICTIM_KINDS:
            raise InvalidArgument(f"kind is {kind!r}, and must be one of {', '.join(VICTIM_KINDS)}")
        rows, count = (_c.Victim * len(room("capacity", capacity, np.int8)))(), ctypes.c_size_t()
        for row in rows:
            row.__init__()
        with self._turn:
            calls.tree_peek_victims(self.handle, VICTIM_KINDS.index(kind), rows, capacity, ctypes.byref(count))
            return [_victim(rows[i]) for i in range(count.value)]

    def take_freed_kv(self, capacity: int = 1 << 16) -> Int32s:
        """KV indices that left the tree and are the caller's again, oldest first, each once: at most `capacity`, the
        next call tells the rest."""
        out, count = room("capacity", capacity, np.int32), ctypes.c_size_t()
        calls.tree_take_freed_kv(self.handle, address(out), capacity, ctypes.byref(count))
        return out[:count.value]

    def allocate_slots(self, count: int) -> Int32s:
        """Free slots for the caller; all, or NoCapacity is raised."""
        out = room("count", count, np.int32)
        calls.tree_allocate_slots(self.handle, address(out), count)
        return out

    def release_slots(self, slots: Any) -> None:
        array = int32s("slots", slots)
        calls.tree_release_slots(self.handle, address(array), len(array))

    def tag_slot(self, slot: int, tokens: Any, *, namespace: Namespace | None = None) -> None:
        """Says that a slot of the caller holds the state after exactly these tokens, once the copy into it was
        enqueued."""
        array, keys = int32s("tokens", tokens), None if namespace is None else namespace.struct()
        calls.tree_tag_slot(self.handle, slot, address(array), len(array),
                            None if keys is None else ctypes.addressof(keys))

    def sizes(self) -> TreeSizes:
        out = _c.TreeSizes()
        calls.tree_describe(self.handle, ctypes.byref(out))
        return TreeSizes(*(getattr(out, field.name) for field in dataclasses.fields(TreeSizes)))

    def reset(self) -> None:
        """Forgets everything: slots of the tree are free, locks hold nothing."""
        calls.tree_reset(self.handle)

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        calls.tree_check(self.handle)

    def __repr__(self) -> str:
        return f"<PrefixTree: {self.sizes()}>" if self._usable else "<PrefixTree, closed>"
