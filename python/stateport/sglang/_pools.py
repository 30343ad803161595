# SPDX-License-Identifier: Apache-2.0
"""SGLang's device pools as stores: the KV of a page in a slot, a state in its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_memory, get_model, get_parallel

from stateport._arrays import Int32s, int32s
from stateport.errors import InvalidArgument
from stateport.image_cache import ImageCache
from stateport.model_layout import Shard
from stateport.sglang._events import TierEvents
from stateport.sglang._options import Options
from stateport.spec import StateSpec, TensorSpec
from stateport.store import StateStore
from stateport.tier_options import MEDIA
from stateport.tiers import StateTiers

_ELEMENTS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64",
             torch.int8: "int8", torch.uint8: "float8", torch.float8_e4m3fn: "float8", torch.float8_e5m2: "float8"}
_SHAPE_EXTENTS_MAX = 3
_STAGING_BYTES = 256 << 20  # of pinned memory, on the way to and from files
_IMAGES_UNDER_WAY = 2048  # to files; of 4,096 that StateTiers takes


class DevicePools:
    """Views of the pools of full attention and, in a hybrid model, of Mamba. Raises InvalidArgument for what cannot be
    kept byte for byte: other attention, scaled KV, int8 checkpoints, side states, unified memory, drafts."""

    def __init__(self, params: Any, components: set[ComponentType]) -> None:
        unknown = components - {ComponentType.FULL, ComponentType.MAMBA}
        _refuse(bool(unknown), f"a model with {', '.join(sorted(component.name for component in unknown))}")
        _refuse(bool(params.mtp_draft_device_pools or params.sidecar_draft_device_pools), "KV of draft models")
        _refuse(bool(get_memory().enable_unified_memory), "--enable-unified-memory")
        _refuse(get_parallel().attn_dcp_size > 1, "decode context parallelism")
        self.page_size = int(params.page_size)
        self._types: list[str] = []
        cache = params.token_to_kv_pool_allocator.get_kvcache()
        pool = getattr(cache, "full_kv_pool", cache)
        self.device = torch.device(pool.device)
        self.kv = self._store(_kv_tensors(pool, self.page_size))
        self.states: StateStore | None = None
        layers = set(getattr(cache, "full_attention_layer_id_mapping", range(pool.layer_num)))
        if ComponentType.MAMBA in components:
            self.states = self._store(_state_tensors(params.req_to_token_pool))
            layers |= set(params.req_to_token_pool.mamba_map)
        # The counter of layers is asked for layer - start_layer.
        self.layers = max(layers) - int(getattr(cache, "start_layer", 0) or 0) + 1
        self.names = {PoolName.KV, *([PoolName.MAMBA] if self.states else [])}

    def _store(self, tensors: Sequence[torch.Tensor]) -> StateStore:
        # An element of a store has a size alone: what its bits mean is in the model's name.
        self._types += [f"{tensor.dtype} {tuple(tensor.shape[1:])}" for tensor in tensors]
        return _store(tensors)

    def image_bytes(self, name: PoolName) -> int:
        store = self.kv if name == PoolName.KV else self.states
        return store.spec.image_bytes if store else 0

    def slots(self, name: PoolName, indices: torch.Tensor) -> Int32s:
        """The slots of a transfer's indices (in host memory): [n] pages of KV, or [n] states. Raises InvalidArgument
        for KV that is not whole pages."""
        values = indices.flatten().to(torch.int64).numpy()
        if name != PoolName.KV:
            return int32s("device_indices", values)
        if values.size % self.page_size:
            raise InvalidArgument(f"device_indices has {values.size} elements, and must have whole pages of "
                                  f"{self.page_size}")
        pages = values.reshape(-1, self.page_size)
        first = pages[:, :1]
        if (first % self.page_size).any() or (pages != first + np.arange(self.page_size)).any():
            raise InvalidArgument("device_indices has tokens of one page in several places")
        return int32s("device_indices", pages[:, 0] // self.page_size)

    def make_tiers(self, options: Options, params: Any, rank: int, ranks: int) -> StateTiers:
        """rank: of `ranks` tensor-parallel ones, each of which keeps its own part."""
        weights = options.weights(str(get_model().model_path))
        model = "; ".join(["SGLang linker", weights, *self._types, f"page {self.page_size}",
                           f"pp {params.pp_rank}/{params.pp_size}", f"cp {params.attn_cp_rank}/{params.attn_cp_size}"])
        staging = max(_STAGING_BYTES, 4 * max(self.image_bytes(name) for name in self.names))
        return StateTiers(states=[self.states] if self.states else [], kv=self.kv, model=model,
                          shard=Shard(head_group=rank, head_groups=ranks) if ranks > 1 else None,
                          host_bytes=options.host_bytes, folder=options.folder or None, file_bytes=options.file_bytes,
                          free_floor_bytes=options.free_floor_bytes, file_queue_bytes=staging,
                          staging_bytes=staging if options.folder else 0, file_lanes=options.lanes,
                          scrub=options.scrub)

    def make_events(self, options: Options, hash_seed: int) -> TierEvents | None:
        if not options.kv_events:
            return None
        from stateport.sglang._publisher import open_events
        return open_events(self.page_size, 1 if self.states else 0, self.kv.slots, hash_seed)

    def make_cache(self, options: Options, tiers: StateTiers, events: TierEvents | None = None) -> ImageCache:
        """The cache of images over these tiers, which knows those in files from before."""
        kv, states = self.image_bytes(PoolName.KV), self.image_bytes(PoolName.MAMBA)
        cache = ImageCache(host_bytes=int(tiers.info()["host_bytes"]), file_bytes=options.file_bytes,
                           kv_image_bytes=kv, state_image_bytes=[states] if states else [], write_through=True,
                           queue_bytes=min(_STAGING_BYTES // 2, _IMAGES_UNDER_WAY * min(kv, states or kv)),
                           # Of everything on the device a store and a load.
                           images_under_way_max=2 * (self.kv.slots + (self.states.slots if self.states else 0)))
        if options.folder:
            found = tiers.keys("file")
            attached = cache.attach("file", found)
            tiers.remove(found[~attached])
            if events is not None:
                events.stored(found[attached], MEDIA.index("file"))
        return cache


def _refuse(bad: bool, what: str) -> None:
    if bad:
        raise InvalidArgument(f"stateport's linker does not keep {what}")


def _kv_tensors(pool: Any, page_size: int) -> list[torch.Tensor]:
    _refuse(getattr(pool, "k_scale_buffer", None) is not None
            or getattr(pool, "native_k_scale_buffer", None) is not None, "scaled KV")
    buffers = [*pool.k_buffer, *pool.v_buffer] if hasattr(pool, "k_buffer") else list(pool.kv_buffer)
    tensors = []
    for buffer in buffers:
        _refuse(buffer.shape[0] % page_size != 0 or not buffer.is_contiguous(), "KV that does not lie in whole pages")
        tensors.append(buffer.view(-1, page_size, *buffer.shape[1:]))
    return tensors


def _state_tensors(requests: Any) -> list[torch.Tensor]:
    pool = requests.mamba_pool
    cache = pool.mamba_cache
    _refuse(requests.mamba_ckpt_pool is not None, "int8 Mamba checkpoints")
    _refuse(bool(pool._slot_siblings), "Mamba side states")
    _refuse(cache.replayssm_d is not None, "the ring buffers of --enable-linear-replayssm")
    kinds = [state for state in (*cache.conv, cache.temporal) if state.numel() > 0]  # some have conv states alone
    return [state[layer] for layer in range(pool.num_mamba_layers) for state in kinds]


def _store(tensors: Sequence[torch.Tensor]) -> StateStore:
    """A store whose slot s has tensors[i][s] of each i. They are copied as they are, so each is a recurrent one."""
    specs, views = [], []
    for i, tensor in enumerate(tensors):
        _refuse(tensor.dtype not in _ELEMENTS, f"elements of type {tensor.dtype}")
        shape = tuple(extent for extent in tensor.shape[1:] if extent != 1) or (1,)
        if len(shape) > _SHAPE_EXTENTS_MAX:
            shape = (math.prod(shape[:-2]), *shape[-2:])
        specs.append(TensorSpec("recurrent", _ELEMENTS[tensor.dtype], shape, layer=i))
        views.append(tensor.detach().reshape(len(tensor), *shape))
        _refuse(views[-1].data_ptr() != tensor.data_ptr(), "tensors with gaps inside a slot")
    return StateStore.view(StateSpec(specs), views)
