# SPDX-License-Identifier: Apache-2.0
"""SGLang's own prefix cache of hybrid models (UnifiedRadixCache over its real pools, on the CPU), behind the few calls
that tree_streams.py compares and tree_timing.py times. Nothing of SGLang is replaced; the slots and KV indices that it
gives back to its pools are recorded."""

import array
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.managers.schedule_batch import ReqKvInfo  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: E402

torch.set_num_threads(1)
FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA
Namespace = tuple[str | None, str | None]  # extra key, salt
NO_NAMESPACE: Namespace = (None, None)


class Shape(NamedTuple):
    """The sizes of both trees, in tokens, but for slots and states."""

    page: int
    kv: int
    slots: int
    chunk: int
    states_per_path: int = -1  # -1: no limit
    policy: str = "lru"


class PoolPinned(Exception):
    """A match was to start from a state and no slot is free or can be evicted."""


def request(slot: int | None) -> Any:
    """The members of a request, with or without a live slot, that match_prefix(cow_mamba=True) reads and writes."""
    index = None if slot is None else torch.tensor(slot, dtype=torch.int64)
    return types.SimpleNamespace(session=None, session_id=None, rid="r", kv=ReqKvInfo(mamba_pool_idx=index))


def make_pools(shape: Shape, layers: int = 1) -> tuple[Any, Any]:
    """SGLang's pools on the CPU: of requests with their states, and the allocator of KV. Small states of bfloat16;
    layers 0 … layers - 1 are Mamba, the next ones attention."""
    with envs.SGLANG_MAMBA_SSM_DTYPE.override("bfloat16"):
        state = Mamba2StateShape.create(tp_world_size=1, intermediate_size=32, n_groups=1, num_heads=1, head_dim=8,
                                        state_size=8, conv_kernel=2)
        params = Mamba2CacheParams(shape=state, layers=list(range(layers)))
    common = {"device": "cpu", "enable_memory_saver": False}
    requests = HybridReqToTokenPool(
        size=8, mamba_size=shape.slots, mamba_spec_state_size=4, max_context_len=4096, cache_params=params,
        mamba_layer_ids=list(range(layers)), enable_mamba_extra_buffer=shape.page > 1, **common)
    kv = HybridLinearKVPool(size=shape.kv, dtype=torch.bfloat16, page_size=shape.page, head_num=1, head_dim=2,
                            full_attention_layer_ids=list(range(layers, 2 * layers)), mamba_pool=requests.mamba_pool,
                            **common)
    wanted = {"size": shape.kv, "dtype": torch.bfloat16, "device": "cpu", "kvcache": kv, "need_sort": False}
    if shape.page == 1:
        return requests, TokenToKVPoolAllocator(**wanted)
    return requests, PagedTokenToKVPoolAllocator(page_size=shape.page, **wanted)


def make_cache(shape: Shape, core: str, requests: Any, kv: Any, events: bool = False) -> UnifiedRadixCache:
    """The tree over these pools. core: "python" or "rust". events: it records events."""
    arguments = ServerArgs(model_path="dummy", page_size=shape.page, mamba_max_states_per_path=shape.states_per_path)
    arguments._mamba_cache_chunk_size = shape.chunk
    set_global_server_args_for_scheduler(arguments)
    cache = UnifiedRadixCache(params=CacheInitParams(
        req_to_token_pool=requests, token_to_kv_pool_allocator=kv, page_size=shape.page, disable=False,
        tree_components=(FULL, MAMBA), enable_mamba_extra_buffer=shape.page > 1, eviction_policy=shape.policy,
        tree_core_backend=core, enable_kv_cache_events=events))
    assert ("Rust" in type(cache.tree_core).__name__) == (core == "rust"), type(cache.tree_core)
    return cache


class SglangTree:
    """One tree over pools of its own."""

    pools: dict[tuple[int, int, int], tuple[Any, Any]] = {}  # the last one made: they are slow to make

    def __init__(self, shape: Shape, core: str = "rust", record: bool = True):
        key = (shape.page, shape.kv, shape.slots)
        if key not in self.pools:
            self.pools.clear()
            self.pools[key] = make_pools(shape)
        self.requests, self.kv = self.pools[key]
        self.page = shape.page
        self.slots = self.requests.mamba_allocator
        self.freed: list[int] = []
        for pool in (self.kv, self.slots):
            for name in [n for n in vars(pool) if n.startswith("free") and callable(vars(pool)[n])]:
                delattr(pool, name)  # an earlier tree's records
        self.kv.clear()
        self.slots.clear()
        self.cache = make_cache(shape, core, self.requests, self.kv)
        if record:
            self._record()

    def _record(self) -> None:
        """Notes the KV indices that the cache gives back, in order. The pools' own methods do the work; a method that
        calls another one is noted once."""
        inside = [False]

        def noted(name: str, indices: Callable[[Any], list[int]]) -> None:
            real = getattr(self.kv, name)

            def call(first: Any, *rest: Any, **named: Any) -> Any:
                if inside[0]:
                    return real(first, *rest, **named)
                self.freed += indices(first)
                inside[0] = True
                try:
                    return real(first, *rest, **named)
                finally:
                    inside[0] = False

            setattr(self.kv, name, call)

        for name in ("free", "free_segment", "free_full_segment"):
            if hasattr(self.kv, name):
                noted(name, lambda index: index.tolist())
        if hasattr(self.kv, "free_segments"):
            noted("free_segments", lambda segments: [i for index, _ in segments for i in index.tolist()])

    def take_freed(self) -> list[int]:
        freed = self.freed[:]
        self.freed.clear()
        return freed

    # ---- pools
    def allocate_kv(self, count: int) -> list[int] | None:
        """Room for `count` tokens, in whole pages."""
        index = self.kv.alloc(-(-count // self.page) * self.page) if count else torch.empty(0, dtype=torch.int64)
        return None if index is None else index.tolist()[:count]

    def free_kv(self, ids: Sequence[int]) -> None:
        if ids:
            self.kv.free_segment(torch.tensor(ids, dtype=torch.int64), start_pos=0)
        self.take_freed()

    def free_kv_tokens(self) -> int:
        return int(self.kv.available_size())

    def allocate_slot(self) -> int | None:
        index = self.slots.alloc(1)
        return None if index is None else int(index[0])

    def free_slot(self, slot: int) -> None:
        self.slots.free(torch.tensor([slot], dtype=torch.int64))

    # ---- the tree
    def key(self, tokens: Sequence[int], space: Namespace = NO_NAMESPACE) -> RadixKey:
        return RadixKey(array.array("q", tokens), space[0], cache_salt=space[1])

    def _state(self, node: Any) -> int | None:
        core = self.cache.tree_core
        value = None if core.is_root(node) else core.get_component_device_value(node, MAMBA)
        return None if value is None else int(value[0])

    def match(self, tokens: Sequence[int], space: Namespace, start: bool = False,
              live: int | None = None) -> tuple[dict[str, Any], Any]:
        """The answer, and the node of the hit or None. start: for a request that starts from the state, in its slot
        `live`, or in one that is taken for it."""
        starting = request(live) if start else None
        try:
            found = self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens, space), cow_mamba=start,
                                                              req=starting))
        except AssertionError as error:
            if "alloc mamba" not in str(error):
                raise
            raise PoolPinned from None
        kv = self.cache.path_device_indices(found.last_device_node).tolist() if found.device_prefix_len else []
        slot = self._state(found.best_match_node)
        answer = {"tokens": len(kv), "kv": kv, "walked": found.full_kv_hit_length, "slot": slot,
                  "branching": found.mamba_branching_seqlen, "freed": self.take_freed()}
        if start:
            taken, source = starting.kv.mamba_pool_idx, starting.kv.mamba_cow_src_index
            assert slot is None or int(source[0]) == slot
            if slot is None and live is not None:
                assert int(taken) == live
                taken = None  # a miss leaves the request's slot as it was
            answer["live"] = None if taken is None else int(taken)
        return answer, found.best_match_node if kv else None

    def insert(self, tokens: Sequence[int], kv: Sequence[int], slot: int, space: Namespace, prev: int, priority: int,
               chunked: bool) -> tuple[dict[str, Any], Any]:
        done = self.cache.insert(InsertParams(
            key=self.key(tokens, space), value=torch.tensor(kv, dtype=torch.int64),
            mamba_value=torch.tensor([slot], dtype=torch.int64), prev_prefix_len=prev, priority=priority,
            inserted_len=len(tokens) if chunked else 0))
        return {"prefix": done.prefix_len, "exists": bool(done.mamba_exist), "freed": self.take_freed()}, \
            done.last_device_node

    def evict(self, tokens: int, states: int) -> dict[str, Any]:
        done = self.cache.evict(EvictParams(num_tokens=tokens, mamba_num=states))
        return {"tokens": done.num_tokens_evicted, "states": done.mamba_num_evicted, "freed": self.take_freed()}

    def lock(self, node: Any) -> Any:
        """None: the node was evicted."""
        try:
            return node, self.cache.inc_lock_ref(node)
        except KeyError:
            return None

    def unlock(self, lock: Any) -> None:
        self.cache.dec_lock_ref(lock[0], lock[1].to_dec_params())

    def sizes(self) -> tuple[int, ...]:
        """Evictable and protected tokens, evictable and protected states, free slots."""
        cache = self.cache
        return (cache.full_evictable_size(), cache.full_protected_size(), cache.mamba_evictable_size(),
                cache.mamba_protected_size(), self.slots.available_size())

    def check(self) -> None:
        self.cache.sanity_check()

    def free_slots(self) -> list[int]:
        """In the order in which they would be taken."""
        return list(self.slots.free_slots.tolist())
