# SPDX-License-Identifier: Apache-2.0
"""SGLang's linker from its device pools to stateport's tiers: host memory and files, no host pool of SGLang between."""

from __future__ import annotations

import collections
import dataclasses
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from stateport._arrays import IMAGE_KEY, Int32s, Records
from stateport.errors import BackendError, InvalidArgument
from stateport.sglang._keys import leading, page_keys
from stateport.sglang._metrics import make_metrics
from stateport.sglang._mover import Job, Mover
from stateport.sglang._options import Options
from stateport.sglang._pools import DevicePools

logger = logging.getLogger(__name__)

_CONTENTS = {PoolName.KV: "kv_block", PoolName.MAMBA: "state"}


@dataclasses.dataclass
class _Offload:
    finished: bool = False
    good: bool = False


class StateportLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """`--enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "StateportLinker", "linker_module_path": "stateport.sglang",
    "linker_extra_config": {"host_bytes": …, "folder": …, "file_bytes": …}}'`: host memory, files or both.

    Pages of KV and Mamba states of hybrid models, with full attention of either kind (K and V, or MLA). A prefix is
    restorable where its pages are there and the state of exactly its end. Every image from a file is checked when it is
    read: key, model, layout, checksums; SGLang then aborts the requests of the batch that was to use a damaged one, and
    the next ones compute it again. The longest unused images go when a tier is full.

    The scheduler's calls only look up and queue; one thread of the linker moves the bytes, on a stream of its own."""

    def __init__(self, server_args: Any, params: Any, *, components: set[Any],
                 extra_config: Mapping[str, Any] | None = None, forward_stream: Any = None) -> None:
        options = Options.read("linker_extra_config", extra_config or {})
        if not options.host_bytes and not options.folder:
            raise InvalidArgument("linker_extra_config has neither host_bytes nor folder: there is nowhere to keep "
                                  "anything")
        self.forward_stream = forward_stream
        self._hash_seed, self._keeps = options.hash_seed(), options.keep_on_flush
        self._pools = DevicePools(params, set(components))
        self.pools = dict.fromkeys(self._pools.names, self._pools)
        events = self._pools.make_events(options, self._hash_seed)  # refuses before anything is opened
        rank, ranks = _rank(params)
        tiers = self._pools.make_tiers(options, params, rank, ranks)
        metrics = make_metrics(server_args, rank, {"host": options.host_bytes, "file": options.file_bytes})
        self._mover = Mover(tiers, self._pools.make_cache(options, tiers, events), self._pools.device, metrics, events)
        self.layer_done_counter = LayerWiseLoadCounter(self._pools.layers)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._queued: dict[str, list[PoolTransfer]] = {}
        self._lost: set[str] = set()  # of these: images that were given up
        self._alone = ranks == 1
        self._offloads: collections.deque[_Offload] = collections.deque()
        self._lock = threading.Lock()  # of _offloads
        logger.info("stateport linker, rank %d of %d: %s", rank, ranks, tiers)

    # ---- lookups

    def _keys(self, *transfers: PoolTransfer) -> Records:
        return np.concatenate([np.empty(0, IMAGE_KEY), *(
            page_keys(transfer.keys, _CONTENTS[transfer.name], seed=self._hash_seed) for transfer in transfers)])

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        kv = next((transfer for transfer in transfers if transfer.name == PoolName.KV), None)
        if kv is None or not kv.keys or {transfer.name for transfer in transfers} != self.pools.keys():
            return []
        keys = self._keys(kv)
        pages = leading(self._mover.held(keys))
        if PoolName.MAMBA not in self.pools:
            lengths = list(range(1, pages + 1))
        else:
            # A state is there for the ends of nodes that were inserted, under the name of the last page.
            states = self._keys(PoolTransfer(PoolName.MAMBA, keys=kv.keys[:pages]))
            lengths = (np.flatnonzero(self._mover.held(states)) + 1).tolist()
            if lengths:
                self._mover.cache.touch(states[lengths[-1] - 1:lengths[-1]])
        if lengths:
            self._mover.cache.touch(keys[:lengths[-1]])
        return lengths

    # ---- loads

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        if rid in self._queued:
            raise InvalidArgument(f"rid is {rid!r}, for which a load is queued already")
        wanted = [transfer for transfer in transfers if transfer.keys]
        if not wanted or not {transfer.name for transfer in wanted} <= self.pools.keys():
            return False
        if not self._mover.promise(self._keys(*wanted)):  # given up since the lookup
            if self._alone:
                return False
            # Every rank must answer alike, and only this one knows: the load will fail, for all of them.
            self._lost.add(rid)
        self._queued[rid] = wanted
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        transfers = self._queued.pop(rid, None)
        if transfers is None:
            return False
        if rid in self._lost:
            self._lost.discard(rid)
        else:
            self._mover.cache.unpin(self._keys(*transfers))
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        queued = [transfer for rid, transfers in self._queued.items() if rid not in self._lost
                  for transfer in transfers]
        lost = bool(self._lost)
        self._queued.clear()
        self._lost.clear()
        index, keys = self.layer_done_counter.update_producer(), self._keys(*queued)

        pinned = [keys]

        def done(good: bool) -> None:  # again, if that raised
            if pinned:
                self._mover.cache.unpin(pinned.pop())
            if good and not lost:
                for layer in range(self._pools.layers):
                    self.layer_done_counter.complete(index, layer)
            else:
                self.layer_done_counter.fail(index, BackendError("images were not loaded as they should be"))

        self._mover.start(Job(False, lambda: self._images(queued), done, self._ready()))
        return int(index)

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    # ---- offloads

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        wanted = [transfer for transfer in transfers if transfer.keys]
        if not any(transfer.name == PoolName.KV for transfer in wanted):
            return False
        offload = _Offload()

        def done(good: bool) -> None:
            with self._lock:
                offload.finished, offload.good = True, good

        with self._lock:
            self._offloads.append(offload)
        self._mover.start(Job(True, lambda: self._images(wanted), done, self._ready()))
        return True

    def num_completed_offloads(self) -> int:
        """SGLang takes them in the order in which it gave them: those before the first that is under way."""
        with self._lock:
            return next((i for i, offload in enumerate(self._offloads) if not offload.finished), len(self._offloads))

    def pop_completed_offload(self) -> bool:
        with self._lock:
            if not self._offloads or not self._offloads[0].finished:
                raise InvalidArgument("no offload is completed")
            return self._offloads.popleft().good

    # ---- both

    def _ready(self) -> list[Any]:
        """Events after which device pages may be read and written."""
        return list(self.record_offload_ready()) if self._pools.device.type != "cpu" else []

    def _images(self, transfers: Sequence[PoolTransfer]) -> tuple[Records, Int32s]:
        """Keys and slots."""
        slots = [np.empty(0, np.int32)]
        for transfer in transfers:
            slots.append(self._pools.slots(transfer.name, transfer.device_indices.detach().to("cpu")))
            if len(slots[-1]) != len(transfer.keys):
                raise InvalidArgument(f"device_indices of pool {transfer.name} are {len(slots[-1])} slots, and there "
                                      f"are {len(transfer.keys)} keys")
        return self._keys(*transfers), np.concatenate(slots)

    def counts(self) -> dict[str, int]:
        """How often each transfer ended in each way, and images that were dropped, since the start."""
        return dict(self._mover.counts)

    def reset(self) -> None:
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        self._mover.wait()
        with self._lock:
            self._offloads.clear()
        self.layer_done_counter.reset()
        if not self._keeps:
            self._hash_seed = secrets.randbelow((1 << 64) - 1) + 1
            if self._mover.events is not None:
                self._mover.events.reset(self._hash_seed)

    def close(self) -> None:
        """Waits until files have what they have room for."""
        self.reset()
        self._mover.close()


def _rank(params: Any) -> tuple[int, int]:
    """Of this process among those that hold parts of the same states."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    group = params.attn_tp_cache_group or params.tp_cache_group
    return int(torch.distributed.get_rank(group=group)), int(torch.distributed.get_world_size(group=group))
