# SPDX-License-Identifier: Apache-2.0
"""SGLang's linker from its device pools to stateport's tiers: host memory and files, no host pool of SGLang between."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from stateport.errors import BackendError, InvalidArgument
from stateport.sglang._keys import names_of, page_keys
from stateport.sglang._mover import Job, Mover, Place
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
        self._hash_seed = options.hash_seed()
        self._pools = DevicePools(params, set(components))
        self.pools = dict.fromkeys(self._pools.names, self._pools)
        rank, ranks = _rank(params)
        tiers = self._pools.make_tiers(options, params, rank, ranks)
        sizes = [self._pools.image_bytes(name) for name in (PoolName.KV, PoolName.MAMBA)]
        self._mover = Mover(tiers, options, self._pools.device, lambda content: sizes[content])
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

    def _names(self, transfer: PoolTransfer, keys: Sequence[str] | None = None) -> list[bytes]:
        return names_of(page_keys(transfer.keys if keys is None else keys, _CONTENTS[transfer.name],
                                  seed=self._hash_seed))

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        kv = next((transfer for transfer in transfers if transfer.name == PoolName.KV), None)
        if kv is None or not kv.keys or {transfer.name for transfer in transfers} != self.pools.keys():
            return []
        names = self._names(kv)
        held = self._mover.held(names)
        pages = held.index(False) if False in held else len(held)
        if PoolName.MAMBA not in self.pools:
            lengths = list(range(1, pages + 1))
        else:
            # A state is there for the ends of nodes that were inserted, under the name of the last page.
            state = next(transfer for transfer in transfers if transfer.name == PoolName.MAMBA)
            states = self._names(state, kv.keys[:pages])
            lengths = [page + 1 for page, there in enumerate(self._mover.held(states)) if there]
            if lengths:
                self._mover.touch([states[lengths[-1] - 1]])
        if lengths:
            self._mover.touch(names[:lengths[-1]])
        return lengths

    # ---- loads

    def _all_names(self, transfers: Sequence[PoolTransfer]) -> list[bytes]:
        return [name for transfer in transfers for name in self._names(transfer)]

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        if rid in self._queued:
            raise InvalidArgument(f"rid is {rid!r}, for which a load is queued already")
        wanted = [transfer for transfer in transfers if transfer.keys]
        if not wanted or not {transfer.name for transfer in wanted} <= self.pools.keys():
            return False
        if not self._mover.promise(self._all_names(wanted)):  # given up since the lookup
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
            self._mover.release(self._all_names(transfers))
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        queued = [transfer for rid, transfers in self._queued.items() if rid not in self._lost
                  for transfer in transfers]
        lost = bool(self._lost)
        self._queued.clear()
        self._lost.clear()
        index, names = self.layer_done_counter.update_producer(), self._all_names(queued)

        def done(good: bool) -> None:
            self._mover.release(names)
            if good and not lost:
                for layer in range(self._pools.layers):
                    self.layer_done_counter.complete(index, layer)
            else:
                self.layer_done_counter.fail(index, BackendError("images were not loaded as they should be"))

        self._mover.start(Job(False, lambda: self._places(queued), done, self._ready()))
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
        self._mover.start(Job(True, lambda: self._places(wanted), done, self._ready()))
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

    def _places(self, transfers: Sequence[PoolTransfer]) -> list[Place]:
        places = []
        for transfer in transfers:
            names, size = self._names(transfer), self._pools.image_bytes(transfer.name)
            slots = self._pools.slots(transfer.name, transfer.device_indices.detach().to("cpu")).tolist()
            if len(slots) != len(names):
                raise InvalidArgument(f"device_indices of pool {transfer.name} are {len(slots)} slots, and there are "
                                      f"{len(names)} keys")
            places += [Place(name, slot, size) for name, slot in zip(names, slots, strict=True)]
        return places

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
