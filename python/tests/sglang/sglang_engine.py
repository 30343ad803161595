# SPDX-License-Identifier: Apache-2.0
"""An engine in small over SGLang's own tree and pools: the bytes of KV and states are functions of the tokens, so a
wrong one is seen. SGLang is what tests/engines/sglang/run.sh installs; without it nothing here runs."""

from __future__ import annotations

import pathlib
import sys
import time
import types
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("sglang.srt.mem_cache", reason="tests/engines/sglang/run.sh installs SGLang")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "engines" / "sglang"))
import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang_tree import SglangTree, Shape, make_cache, make_pools

from stateport.sglang import StateportLinker

LAYERS = 2
FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


def bytes_of(seed: object, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


class Engine:
    """One process: pools, tree and linker. `request` is what a scheduler does for one prompt."""

    def __init__(self, config: dict[str, Any], core: str = "rust", page: int = 4, kv: int = 256, slots: int = 12,
                 events: bool = False):
        self.shape = Shape(page=page, kv=kv, slots=slots, chunk=page)
        self.requests, self.kv = make_pools(self.shape, LAYERS)
        self.cache = make_cache(self.shape, core, self.requests, self.kv, events)
        self.linker = StateportLinker(None, self.cache_params(), components={FULL, MAMBA}, extra_config=config)
        self.cache.init_cache_linker(self.linker)
        self.kv.get_kvcache().register_layer_transfer_counter(self.linker.layer_done_counter)
        self.count = 0

    def cache_params(self) -> Any:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        return CacheInitParams(req_to_token_pool=self.requests, token_to_kv_pool_allocator=self.kv,
                               page_size=self.shape.page, disable=False, tree_components=(FULL, MAMBA))

    def close(self) -> None:
        self.settle()
        self.linker.close()

    def settle(self) -> None:
        """Until every offload is done, as the scheduler's loop would see it."""
        end = time.monotonic() + 60
        while self.cache.linker.pending_offloads:
            self.cache.check_hicache_events()
            assert time.monotonic() < end, "offloads do not end"

    def reset(self) -> None:
        """As flush_cache: the device forgets everything."""
        self.settle()
        self.cache.reset()
        self.kv.clear()
        self.requests.mamba_allocator.clear()

    # ---- bytes
    def kv_rows(self) -> list[torch.Tensor]:
        pool = self.kv.get_kvcache().full_kv_pool
        return [*pool.k_buffer, *pool.v_buffer]

    def state_rows(self) -> list[torch.Tensor]:
        cache = self.requests.mamba_pool.mamba_cache
        return [state[layer] for state in (*cache.conv, cache.temporal) for layer in range(LAYERS)]

    def write(self, rows: Sequence[torch.Tensor], index: int, seed: object) -> None:
        for i, row in enumerate(rows):
            row[index] = bytes_of((seed, i), row[index].shape, row.dtype)

    def holds(self, rows: Sequence[torch.Tensor], index: int, seed: object) -> bool:
        return all(torch.equal(row[index].contiguous().view(torch.uint8),
                               bytes_of((seed, i), row[index].shape, row.dtype).view(torch.uint8))
                   for i, row in enumerate(rows))

    # ---- one request
    def request(self, tokens: Sequence[int], space: tuple[str | None, str | None] = (None, None)) -> tuple[int, int]:
        """Runs a prompt of whole pages. Returns the tokens that were hit on the device, and those that were loaded."""
        assert len(tokens) % self.shape.page == 0
        self.count += 1
        if self.requests.mamba_allocator.available_size() < 3:
            self.settle()  # nodes on their way out are locked
        key = SglangTree.key(self, tokens, space)  # type: ignore[arg-type]
        request = types.SimpleNamespace(rid=f"r{self.count}", session=None, session_id=None, kv=ReqKvInfo(),
                                        last_node=None, swa_branching_seqlen=None, lock=None)
        found = self.cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=True, req=request))
        request.last_node = found.last_device_node
        hit = found.device_prefix_len
        row = self.cache.path_device_indices(found.last_device_node)[:hit]
        lock = self.cache.inc_lock_ref(found.last_device_node)
        loaded = self.load(request, found, hit)
        row = torch.cat([row, *loaded])
        have = len(row)
        self.check(tokens, space, row, request)
        row = torch.cat([row, self.allocate(len(tokens) - have)])
        for position in range(have, len(tokens)):
            self.write(self.kv_rows(), int(row[position]), ("kv", tuple(tokens[:position + 1]), space))
        self.finish(tokens, space, key, row, request, hit)
        self.cache.dec_lock_ref(found.last_device_node, lock.to_dec_params())
        return hit, have - hit

    def load(self, request: Any, found: Any, hit: int) -> list[torch.Tensor]:
        if found.host_hit_length == 0:
            return []
        count, _ = self.cache.init_load_back(InitLoadBackParams(
            best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=request))
        if count == 0:
            return []
        indices = self.cache.linker.private_load_indices[request.rid]
        index = self.cache.ready_to_load_host_cache()
        counter = self.linker.layer_done_counter
        counter.set_consumer(index)
        for layer in range(2 * LAYERS):
            counter.wait_until(layer)
        failed = self.cache.linker.finish_loads()
        if failed:
            self.kv.free(indices)
            raise LoadFailed(failed)
        return [indices]

    def check(self, tokens: Sequence[int], space: Any, row: torch.Tensor, request: Any) -> None:
        """What was hit or loaded is what these tokens made."""
        for position, index in enumerate(row.tolist()):
            assert self.holds(self.kv_rows(), index, ("kv", tuple(tokens[:position + 1]), space)), position
        if len(row):
            source = request.kv.mamba_cow_src_index
            slot = int(request.kv.mamba_pool_idx if source is None else source[0])
            assert self.holds(self.state_rows(), slot, ("state", tuple(tokens[:len(row)]), space))

    def allocate(self, count: int) -> torch.Tensor:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams
        if count > self.kv.available_size():
            self.settle()
            self.cache.evict(EvictParams(num_tokens=count - self.kv.available_size()))
        index = self.kv.alloc(count) if count else torch.empty(0, dtype=torch.int64)
        assert index is not None
        return index

    def finish(self, tokens: Sequence[int], space: Any, key: Any, row: torch.Tensor, request: Any, hit: int) -> None:
        """The state of the whole prompt goes to the tree, in the request's slot or a new one."""
        slot = request.kv.mamba_pool_idx
        if slot is None:
            slot = self.requests.mamba_allocator.alloc(1)
            if slot is None:
                from sglang.srt.mem_cache.base_prefix_cache import EvictParams
                self.settle()
                self.cache.evict(EvictParams(num_tokens=0, mamba_num=1))
                slot = self.requests.mamba_allocator.alloc(1)
        slot = slot.reshape(1)
        self.write(self.state_rows(), int(slot[0]), ("state", tuple(tokens), space))
        done = self.cache.insert(InsertParams(key=key, value=row, mamba_value=slot, prev_prefix_len=hit))
        if done.mamba_exist:
            self.requests.mamba_allocator.free(slot)


class LoadFailed(Exception):
    """SGLang aborts these requests."""
