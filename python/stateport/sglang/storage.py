# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage below its host memory (HiCache): pages and states in stateport's files."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from stateport._arrays import Records
from stateport.errors import InvalidArgument
from stateport.file_tier import Bytes, FileTier
from stateport.image_cache import ImageCache
from stateport.sglang._events import TierEvents
from stateport.sglang._files import WaitingFiles
from stateport.sglang._keys import leading, page_keys
from stateport.sglang._metrics import open_metrics
from stateport.sglang._options import Options
from stateport.spec import StateSpec, TensorSpec

logger = logging.getLogger(__name__)

_QUEUE_BYTES = 256 << 20  # of images under way
_BATCH_BYTES = _QUEUE_BYTES // 8  # that one thread writes or reads at a time


@dataclasses.dataclass
class _Pool:
    """A host pool of SGLang, and the images of its pages."""

    pool: Any
    dtype: torch.dtype  # of a flat page
    page_bytes: int
    content: str
    group: int
    hash_seed: int

    def keys(self, hashes: Sequence[str]) -> Records:
        return page_keys(hashes, self.content, self.group, self.hash_seed)

    def spec(self) -> StateSpec:
        return StateSpec([TensorSpec("recurrent", "int8", (self.page_bytes,))])


class StateportStorage(HiCacheStorage):  # type: ignore[misc]
    """`--hicache-storage-backend dynamic` with `--hicache-storage-backend-extra-config '{"backend_name": "stateport",
    "module_path": "stateport.sglang", "class_name": "StateportStorage", "interface_v1": 1, "stateport": {"folder": …,
    "file_bytes": …}}'`.

    Every image is checked when it is read: key, model, layout, checksums. What is damaged is answered as missing. The
    longest unused images go when the folder is full. A page or state is in SGLang's name for it (see page_keys), the
    model, the layout of the host pool and the rank. SGLang's threads may call at the same time."""

    def __init__(self, storage_config: HiCacheStorageConfig, arguments: Any = None) -> None:
        extra = storage_config.extra_config or {}
        self._options = Options.read('"stateport" of the extra config', extra.get("stateport", {}))
        if not self._options.folder or self._options.host_bytes:
            raise InvalidArgument('"stateport" of the extra config must have folder and file_bytes, and no host_bytes: '
                                  "the memory of the host is SGLang's")
        if storage_config.is_mla_model and storage_config.tp_size > 1:
            # Rank 0 alone writes then, and others would not see its images before they start again.
            raise InvalidArgument(f"tp_size is {storage_config.tp_size}, and must be 1 for a model with MLA")
        self._config, self._hash_seed = storage_config, self._options.hash_seed()
        self._given: dict[str, Any] = {}
        self._pools: dict[str, _Pool] = {}
        self._files: WaitingFiles | None = None
        self._room = threading.local()
        self._unknown: set[str] = set()

    # ---- what there is

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._given.setdefault(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._given[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """Opens the folder. Raises InvalidArgument or BackendError if that cannot be."""
        kv, others = str(PoolName.KV), sorted(name for name in self._given if name != str(PoolName.KV))
        for name in (kv, *others):
            page = self._given[name].get_dummy_flat_data_page()
            self._pools[name] = _Pool(self._given[name], page.dtype, page.numel() * page.element_size(),
                                      "kv_block" if name == kv else "state", 0 if name == kv else others.index(name),
                                      self._hash_seed)
        events = self._make_events(len(others))  # refuses before the folder is opened
        tier = FileTier(self._options.folder, states=[self._pools[name].spec() for name in others],
                        kv=self._pools[kv].spec(), model=self._identity(), file_bytes=self._options.file_bytes,
                        free_floor_bytes=self._options.free_floor_bytes, queue_bytes=_QUEUE_BYTES,
                        lanes=self._options.lanes, scrub=self._options.scrub)
        cache = ImageCache(file_bytes=self._options.file_bytes, queue_bytes=_QUEUE_BYTES,
                           kv_image_bytes=tier.layout("kv_block").image_bytes,
                           state_image_bytes=[tier.layout("state", i).image_bytes for i in range(len(others))])
        config = self._config
        metrics = open_metrics(config.enable_storage_metrics, str(config.model_name), config.tp_rank,
                               {"host": 0, "file": self._options.file_bytes})
        self._files = WaitingFiles(tier, cache, metrics, events)
        logger.info("stateport storage: %s", tier)

    def _make_events(self, state_groups: int) -> TierEvents | None:
        if not self._options.kv_events:
            return None
        from stateport.sglang._publisher import open_events
        pool = self._given[str(PoolName.KV)]
        return open_events(pool.page_size, state_groups, pool.size // pool.page_size, self._hash_seed)

    def _identity(self) -> str:
        """Whatever makes equal hashes name other bytes."""
        config = self._config
        pools = [f"{name} {type(pool.pool).__name__} {getattr(pool.pool, 'layout', '')} {pool.dtype} "
                 f"{getattr(pool.pool, 'dtype', '')} "
                 f"{getattr(pool.pool, 'page_size', 1)}" for name, pool in self._pools.items()]
        ranks = (config.tp_rank, config.tp_size, config.pp_rank, config.pp_size, config.attn_cp_rank,
                 config.attn_cp_size, config.dcp_rank, config.dcp_size)
        return "; ".join(["SGLang storage", self._options.weights(str(config.model_name)), str(ranks), *pools])

    def _pool(self, name: Any) -> _Pool | None:
        """None, and said once: a pool that was registered after the folder was opened."""
        pool = self._pools.get(str(name))
        if pool is None and str(name) not in self._unknown:
            self._unknown.add(str(name))
            logger.warning("stateport storage knows no pool %s: its pages are not kept", name)
        return pool

    @property
    def files(self) -> WaitingFiles:
        """Raises InvalidArgument before on_host_pools_registered."""
        if self._files is None:
            raise InvalidArgument("no host pool was registered")
        return self._files

    # ---- lookups

    def _held(self, name: Any, hashes: Sequence[str]) -> npt.NDArray[np.bool_]:
        pool = self._pool(name)
        return np.zeros(len(hashes), np.bool_) if pool is None else self.files.lookup(pool.keys(hashes))

    def _touch(self, name: Any, hashes: Sequence[str]) -> None:
        pool = self._pool(name)
        if pool is not None:
            self.files.touch(pool.keys(hashes))

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: Any = None) -> PoolTransferResult:
        pages = leading(self._held(PoolName.KV, keys))
        hits: dict[Any, int] = {PoolName.KV: pages} if pages else {}
        restorable = np.ones(pages, np.bool_)  # [i]: the first i + 1 pages
        for transfer in pool_transfers or []:
            held = self._held(transfer.name, keys[:pages])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                good = np.arange(pages) < leading(held)
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                good = _trailing(held, max(1, len(transfer.keys or ())))
            else:
                raise ValueError(f"hit policy {transfer.hit_policy} of pool {transfer.name} is not known to stateport")
            if good.any():
                hits[transfer.name] = int(np.flatnonzero(good)[-1]) + 1
            restorable &= good
        lengths = (np.flatnonzero(restorable) + 1).tolist()
        final = lengths[-1] if lengths else 0
        for transfer in pool_transfers or []:
            self._touch(transfer.name, keys[:final])
        self._touch(PoolName.KV, keys[:final])
        return PoolTransferResult(final, hits, lengths)

    def exists(self, key: str) -> bool:
        return bool(self._held(PoolName.KV, [key])[0])

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        pages = leading(self._held(PoolName.KV, keys))
        self._touch(PoolName.KV, keys[:pages])
        return pages

    # ---- bytes

    def _batches(self, pool: _Pool, indices: npt.NDArray[np.intp]) -> Iterator[tuple[npt.NDArray[np.intp], Bytes]]:
        """Parts of `indices`, each with images that this thread may use until the next part."""
        layout = self.files.tier.layout(pool.content, pool.group)
        size = max(1, min(_BATCH_BYTES, self._options.file_bytes // 4) // layout.image_bytes)
        for at in range(0, len(indices), size):
            part = indices[at:at + size]
            room: Bytes | None = getattr(self._room, "images", None)
            if room is None or len(room) < len(part) or room.shape[1] != layout.image_bytes:
                room = self._room.images = layout.new_images(len(part))
            try:
                yield part, room[:len(part)]
            finally:
                if self._options.scrub:
                    room[:len(part)] = 0

    def _section(self, pool: _Pool) -> slice:
        begin, size = self.files.tier.layout(pool.content, pool.group).sections[0]
        return slice(begin, begin + size)

    def _store(self, name: Any, hashes: Sequence[str], page: Callable[[int], torch.Tensor]) -> list[bool]:
        """Writes those pages that are not held. Answers which are held then."""
        pool = self._pool(name)
        if pool is None:
            return [False] * len(hashes)
        keys, where = pool.keys(hashes), self._section(pool)
        held = self.files.lookup(keys)
        self.files.touch(keys[held])
        # From the last pages to the first, so that the first ones are the last used.
        for backwards, images in self._batches(pool, np.flatnonzero(~held)[::-1]):
            part = backwards[::-1]
            for image, i in zip(images, part, strict=True):
                data = page(int(i)).contiguous().view(torch.uint8).reshape(-1)
                if data.numel() != pool.page_bytes:
                    raise InvalidArgument(f"a page of pool {name} has {data.numel()} bytes, and must have "
                                          f"{pool.page_bytes}")
                image[where] = data.numpy()
            held[part] = self.files.write(keys[part], list(images))
        return list(held.tolist())

    def _load(self, name: Any, hashes: Sequence[str], place: Callable[[int, torch.Tensor], object]) -> list[bool]:
        """Reads pages. Answers which were there as they should be."""
        pool = self._pool(name)
        if pool is None:
            return [False] * len(hashes)
        keys, where, loaded = pool.keys(hashes), self._section(pool), [False] * len(hashes)
        for part, images in self._batches(pool, np.arange(len(hashes))):
            for i, image, status in zip(part, images, self.files.read(keys[part], list(images)), strict=True):
                if status == "done":
                    place(int(i), torch.from_numpy(image[where]).view(pool.dtype))
                    loaded[i] = True
                else:
                    logger.warning("page %s of pool %s was not read: %s", hashes[i], name, status)
        self.files.touch(keys)
        return loaded

    # ---- SGLang's calls

    def _pages(self, transfer: PoolTransfer) -> tuple[Any, list[int]] | None:
        """The pool, and the first index of each page. None: not whole pages, or a pool that is not known."""
        pool, indices = self._pool(transfer.name), transfer.host_indices
        page = (getattr(pool.pool, "page_size", 1) or 1) if pool else 1
        if pool is None or indices is None or indices.numel() != len(transfer.keys or ()) * page:
            return None
        return pool.pool, indices[::page].tolist()

    def _set(self, transfer: PoolTransfer) -> list[bool]:
        hashes, found = transfer.keys or [], self._pages(transfer)
        if found is None:
            return [False] * len(hashes)
        pool, at = found
        return self._store(transfer.name, hashes, lambda i: pool.get_data_page(at[i], flat=True))

    def _get(self, transfer: PoolTransfer) -> list[bool]:
        hashes, found = transfer.keys or [], self._pages(transfer)
        if found is None:
            return [False] * len(hashes)
        pool, at = found
        return self._load(transfer.name, hashes, lambda i, page: pool.set_from_flat_data_page(at[i], page))

    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._set(transfer) for transfer in transfers}

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._get(transfer) for transfer in transfers}

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._set(PoolTransfer(PoolName.KV, host_indices, keys=keys))

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._get(PoolTransfer(PoolName.KV, host_indices, keys=keys))

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return all(self._store(PoolName.KV, keys, lambda i: values[i]))

    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[torch.Tensor | None]:
        loaded = self._load(PoolName.KV, keys, lambda i, page: target_locations[i].copy_(page))
        return [target if good else None for target, good in zip(target_locations, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    def clear(self) -> None:
        """Forgets every image of this model in the folder."""
        self.files.clear()

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def _trailing(held: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """[i] whether the last `count` of the first i + 1 are held, or all if there are fewer."""
    total = np.concatenate([[0], np.cumsum(held)])
    first = np.maximum(np.arange(1, len(held) + 1) - count, 0)
    return np.asarray(total[1:] - total[first] == np.arange(1, len(held) + 1) - first)
