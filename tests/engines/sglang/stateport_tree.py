# SPDX-License-Identifier: Apache-2.0
"""stateport's PrefixTree through its C interface, behind the same calls as sglang_tree.SglangTree. SGLang keeps slot 0
for itself, so slot numbers here are stateport's + 1."""

import ctypes
import pathlib
import sys
from collections.abc import Sequence
from ctypes import byref, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "c" / "python"))
import stateport_c as c  # noqa: E402

POLICIES = {"lru": c.EVICT_LRU, "lfu": c.EVICT_LFU, "fifo": c.EVICT_FIFO, "slru": c.EVICT_SLRU,
            "priority": c.EVICT_PRIORITY, "mru": c.EVICT_MRU,
            "filo": c.EVICT_FILO}
LOCKED_POOL = 5  # stateport_lost_hit


class StateportTree:
    """shape: sglang_tree.Shape. pinned: the exception of a match that finds no slot to start from. checked: KV indices
    that the tree owns already are refused."""

    def __init__(self, library: c.Library, shape: Any, pinned: type[Exception] = RuntimeError, checked: bool = True):
        self.c, self.pinned, self.page = library, pinned, shape.page
        options = c.TreeOptions(page_size=shape.page, slots=shape.slots, chunk_size=shape.chunk,
                                max_states_per_path=max(shape.states_per_path, 0), eviction=POLICIES[shape.policy],
                                layout_fingerprint=7,
                                kv_indices=shape.kv + shape.page + 1 if checked else 0)
        self.tree = library.make("tree_create", byref(options))
        self.room = (c_int32 * (shape.kv + shape.page))()

    def close(self) -> None:
        self.c.tree_destroy(self.tree)

    @staticmethod
    def _space(space: tuple[str | None, str | None]) -> c.Namespace | None:
        if space == (None, None):
            return None
        parts = [None if part is None else ctypes.create_string_buffer(part.encode()) for part in space]
        extra, salt = (None if part is None else ctypes.addressof(part) for part in parts)
        named = c.Namespace(extra_key=extra, extra_key_bytes=len(space[0] or ""), salt=salt,
                            salt_bytes=len(space[1] or ""))
        named.__dict__["parts"] = parts  # kept alive; the struct takes its own members alone
        return named

    def take_freed(self) -> list[int]:
        count = c_size_t()
        self.c.tree_take_freed_kv(self.tree, self.room, len(self.room), byref(count))
        return self.room[:count.value]

    def allocate_slot(self) -> int | None:
        slot = c_int32()
        status = self.c.status("tree_allocate_slots", self.tree, byref(slot), 1)
        return slot.value + 1 if status == c.OK else None

    def free_slot(self, slot: int) -> None:
        self.c.tree_release_slots(self.tree, c.int32s(slot - 1), 1)

    def match(self, tokens: Sequence[int], space: tuple[str | None, str | None], start: bool = False,
              live: int | None = None) -> tuple[dict[str, Any], int | None]:
        data, kv, found, named = c.int32s(*tokens), (c_int32 * len(tokens))(), c.Match(), self._space(space)
        where = None if named is None else byref(named)
        if start:
            self.c.tree_match_with_live_slot(self.tree, data, len(tokens), where, kv,
                                             c_int32(c.NONE if live is None else live - 1), byref(found))
            if found.lost == LOCKED_POOL:
                raise self.pinned
        else:
            self.c.tree_match(self.tree, data, len(tokens), where, kv, byref(found))
        slot, taken = (None if s == c.NONE else s + 1 for s in (found.slot, found.live_slot))
        answer = {"tokens": found.tokens, "kv": kv[:found.tokens], "walked": found.walked_tokens, "slot": slot,
                  "branching": found.branching_position or None, "freed": self.take_freed()}
        if start:
            answer["live"] = taken
        return answer, found.node or None

    def insert(self, tokens: Sequence[int], kv: Sequence[int], slot: int, space: tuple[str | None, str | None],
               prev: int, priority: int, chunked: bool) -> tuple[dict[str, Any], int]:
        data, ids, named = c.int32s(*tokens), c.int32s(*kv), self._space(space)
        where = None if named is None else byref(named)
        self.c.tree_tag_slot(self.tree, c_int32(slot - 1), data, len(tokens) // self.page * self.page, where)
        wanted = c.Insert(tokens=data, kv=ids, count=len(tokens), prev_tokens=prev, slot=slot - 1, priority=priority,
                          chunked=int(chunked), name_space=None if named is None else ctypes.addressof(named))
        done = c.InsertResult()
        self.c.tree_insert(self.tree, byref(wanted), byref(done))
        return {"prefix": done.prefix_tokens, "exists": bool(done.state_exists), "freed": self.take_freed()}, done.node

    def evict(self, tokens: int, states: int) -> dict[str, Any]:
        tokens_freed, states_freed = c_int64(), c_int64()
        self.c.tree_evict(self.tree, c_int64(tokens), c_int64(states), byref(tokens_freed), byref(states_freed))
        return {"tokens": tokens_freed.value, "states": states_freed.value, "freed": self.take_freed()}

    def lock(self, node: int) -> c_void_p | None:
        """None: the node was evicted."""
        handle = c_void_p()
        status = self.c.status("tree_lock_node", self.tree, c_uint64(node), byref(handle))
        return handle if status == c.OK else None

    def unlock(self, lock: c_void_p) -> None:
        self.c.tree_lock_destroy(lock)

    def sizes(self) -> tuple[int, ...]:
        out = c.TreeSizes()
        self.c.tree_describe(self.tree, byref(out))
        return (out.evictable_tokens, out.protected_tokens, out.evictable_states, out.protected_states, out.free_slots)

    def check(self) -> None:
        self.c.tree_check(self.tree)

    def free_slots(self) -> list[int]:
        """Takes all slots that are free, in order."""
        return list(iter(self.allocate_slot, None))
