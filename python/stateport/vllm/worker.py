# SPDX-License-Identifier: Apache-2.0
"""A worker's side: pools on the host, copies between them and vLLM's pages, and the tiers below the pools."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stateport import _library
from stateport._arrays import IMAGE_KEY, TRANSFER_RESULT, Records
from stateport.copier import SlotCopier
from stateport.errors import Error, InvalidArgument
from stateport.remote_store import RemoteStore
from stateport.runtime import synchronize
from stateport.spec import StateSpec
from stateport.store import StateStore
from stateport.tiers import RemoteOptions, StateTiers
from stateport.vllm.layout import KV, STATE, PageGroup, PageLayout, Part, kv_parts, pool_sizes, state_parts
from stateport.vllm.metadata import PageCopies, PlaceClears, StepPlan, WorkerInfo
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.sharing import open_store, unsplit
from stateport.vllm.statistics import Counters

logger = logging.getLogger(__name__)

_LAYOUT_NAMES = ("VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_ATTENTION_BACKEND",
                 "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT")
_CLOSE_S_MAX = 60.0  # for writes that are under way when the engine ends
# By the first tensor of vLLM's KV caches: its id, while a connector of this process serves them.
_served: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


@dataclasses.dataclass
class _Group:
    """Copies of one of vLLM's groups, in both directions and between its pages."""

    to_host: SlotCopier
    to_pages: SlotCopier
    between_pages: SlotCopier


class WorkerSide:
    """Carries out the plans of the scheduler's side. Made once vLLM has made its KV caches (`register`)."""

    def __init__(self, layout: PageLayout, options: ConnectorOptions, *, model: str) -> None:
        self.layout, self.options = layout, options
        self._model = model
        self._groups: dict[int, _Group] = {}
        self._tiers: StateTiers | None = None
        self._store: RemoteStore | None = None
        self._pools: list[StateStore] = []  # of KV and of states
        self._host: dict[str, list[torch.Tensor]] = {}  # memory of the pools, by content
        self._kv_caches: dict[str, torch.Tensor] = {}
        self.info: WorkerInfo | None = None
        self.counters = Counters()

    # --- The pools ---------------------------------------------------------------------------------------------------

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> WorkerInfo:
        """kv_caches: vLLM's, by layer. Raises InvalidArgument for tensors that hold no pages of the layout, for tensors
        that another connector of this process serves, and for host_bytes without room."""
        first = next(iter(kv_caches.values()))
        if _served.get(id(first)) is first:
            raise InvalidArgument("another StateportConnector serves this engine: under a MultiConnector there may be "
                                  "one, because vLLM tells the scheduler of the first connector's pools alone")
        self._kv_caches = dict(kv_caches)
        pages = self._all_pages()
        kv, states = (_spec(self._parts(content, pages)) for content in (KV, STATE))
        sizes = pool_sizes(self.options.host_bytes, kv.slot_bytes, states.slot_bytes,
                           blocks_per_state=max(self.options.checkpoint_tokens // self.layout.block_size_tokens, 1),
                           state_share=self.options.state_share)
        self._pools = [self._pool(content, spec, slots, first.device, pages)
                       for content, spec, slots in ((KV, kv, sizes.kv_blocks), (STATE, states, sizes.states))]
        self.attach_pages()
        if self.options.has_tiers:
            try:
                self._tiers = StateTiers(states=self._pools[1:], kv=self._pools[0], model=self._name(kv_caches),
                                         folder=self.options.folder, file_bytes=self.options.file_bytes,
                                         remote=self._remote(kv, states), scrub=self.options.scrub)
            except BaseException:
                self.close()
                raise
        self.info = WorkerInfo(sizes.kv_blocks, sizes.states, kv.slot_bytes, states.slot_bytes, kv.image_bytes,
                               states.image_bytes, states.fingerprint, self.images(),
                               tuple(_spec([part for part, _ in pages[group.number]]).slot_bytes
                                     for group in self.layout.windows))
        _served[id(first)] = first
        return self.info

    def _all_pages(self) -> dict[int, list[tuple[Part, torch.Tensor]]]:
        return {group.number: self._pages(group, self._kv_caches) for group in self.layout.groups}

    def attach_pages(self) -> None:
        """Makes the copiers between the pools and vLLM's pages. Does nothing if they are there."""
        if self._groups:
            return
        pages = self._all_pages()
        for content in (KV, STATE):
            first = 0
            for group in self.layout.pool(content):
                own = pages[group.number]
                spec = _spec([part for part, _ in own])
                host = StateStore.view(spec, [_reachable(memory.view(-1, part.elements)) for memory, (part, _) in zip(
                    self._host[content][first:first + len(own)], own, strict=True)])
                device_pages = StateStore.view(spec, [view for _, view in own])
                self._groups[group.number] = _Group(SlotCopier(device_pages, host), SlotCopier(host, device_pages),
                                                    SlotCopier(device_pages, device_pages))
                first += len(own)

    def detach_pages(self) -> None:
        """Ends all use of vLLM's pages: its memory goes away while the engine sleeps. The pools stay. Waits for copies
        that are under way."""
        synchronize(_stream())
        self._groups.clear()

    def _remote(self, kv: StateSpec, states: StateSpec) -> RemoteOptions | None:
        """Its objects are images of this rank: the model's name says which one it is."""
        if self.options.remote is None:
            return None
        self._store = open_store(self.options.remote)
        return RemoteOptions(self._store, states=[unsplit(states)], kv=unsplit(kv))

    def _name(self, kv_caches: Mapping[str, torch.Tensor]) -> str:
        """The model, and how the values of a page lie in it: an image has the bytes of a page as they are."""
        facts = [repr(self.layout.groups), *(f"{group.number} {group.blocks}" for group in self.layout.windows),
                 *(os.environ.get(name, "") for name in _LAYOUT_NAMES)]
        for layer in (layer for group in self.layout.groups for layer in group.layers):
            tensor = kv_caches[layer]
            facts.append(f"{layer} {tuple(tensor.shape[1:])} {tensor.stride()[1:]} {tensor.dtype}")
        return f"{self._model} {hashlib.sha256(chr(10).join(facts).encode()).hexdigest()}"

    def _pages(self, group: PageGroup, kv_caches: Mapping[str, torch.Tensor]) -> list[tuple[Part, torch.Tensor]]:
        """The parts of all layers of a group, each with its view of vLLM's memory: [blocks, elements]."""
        found = []
        for i, layer in enumerate(group.layers):
            tensor = kv_caches[layer]
            if group.content != STATE:
                typed = tensor if tensor.dtype in _TYPED else tensor.view(torch.int8)
                parts = kv_parts(tuple(typed.shape), typed.stride(), str(typed.dtype).removeprefix("torch."),
                                 self.layout.blocks)
            else:
                typed = tensor.view(torch.int8)
                parts = state_parts(group.states[i], typed.stride(0),
                                    [getattr(torch, dtype).itemsize for _, dtype in group.states[i]])
            found += [(part, _view(typed, part, self.layout.blocks)) for part in parts]
        return found

    def _parts(self, content: str, pages: Mapping[int, Sequence[tuple[Part, torch.Tensor]]]) -> list[Part]:
        """Of a place in a pool: those of all its blocks of a group lie one behind the other."""
        return [dataclasses.replace(part, elements=group.blocks * part.elements)
                for group in self.layout.pool(content) for part, _ in pages[group.number]]

    def _pool(self, content: str, spec: StateSpec, slots: int, device: torch.device,
              pages: Mapping[int, Sequence[tuple[Part, torch.Tensor]]]) -> StateStore:
        """Memory of the host for `slots` of a content."""
        self._host[content] = [_host_memory(slots, part, device) for part in self._parts(content, pages)]
        return StateStore.view(spec, [_reachable(memory) for memory in self._host[content]])

    # --- A step ------------------------------------------------------------------------------------------------------

    def restore(self, plan: StepPlan) -> tuple[set[str], set[str]]:
        """Answers the requests whose pages are there in the order of the stream, and those whose pages are not: all or
        none of a step, beside those that the plan refuses."""
        names, refused = set(plan.restored), set(plan.refused)
        begun_s = time.monotonic()
        try:
            for group, pairs in plan.moves.pages.items():
                self._groups[group].between_pages.copy(pairs, _stream())
            for group, pairs in plan.restores.pages.items():
                self._groups[group].to_pages.copy(pairs[:, ::-1], _stream())
            _settle_copies()
        except Error:
            logger.exception("stateport: %d prompts could not be restored", len(names))
            return set(), names | refused
        if plan.restores.pages:
            self.counters.observe("restore_seconds", time.monotonic() - begun_s)
        return names, refused

    def save(self, plan: StepPlan) -> None:
        """After the forward. When this returns (on a device: in the order of its stream) vLLM may reuse the pages."""
        begun_s = time.monotonic()
        if self._tiers is not None and len(plan.removed):
            self._tiers.remove(plan.removed, _stream())
        for save in plan.saves:
            if isinstance(save, PageCopies):
                for group, pairs in save.pages.items():
                    self._groups[group].to_host.copy(pairs, _stream())
            elif isinstance(save, PlaceClears):
                self._pools[0 if save.content == KV else 1].clear(save.places, _stream())
            elif self._tiers is not None:
                self._tiers.execute(save, _stream())
        _settle_copies()
        if plan.saves:
            self.counters.observe("save_seconds", time.monotonic() - begun_s)

    def results(self) -> Records:
        """Ended transfers between the pools and the tiers below: TRANSFER_RESULT [n]."""
        if self._tiers is None:
            return np.empty(0, TRANSFER_RESULT)
        return self._tiers.poll(_stream())

    def images(self) -> Records:
        """Images in files: IMAGE_KEY [n]."""
        if self._tiers is None or self.options.folder is None:
            return np.empty(0, IMAGE_KEY)
        return self._tiers.keys("file")

    def close(self) -> None:
        """Waits for writes under way, at most a minute, and then for a running call of the store. With scrub the pools
        are set to zero."""
        tiers, self._tiers = self._tiers, None
        store, self._store = self._store, None
        if tiers is not None:
            end = time.monotonic() + _CLOSE_S_MAX
            while tiers.info()["in_flight"] and time.monotonic() < end:
                tiers.poll(_stream())
                time.sleep(0.001)
            tiers.close()
        if store is not None:
            store.close()
        if self.info is not None and self._kv_caches:
            _served.pop(id(next(iter(self._kv_caches.values()))), None)
        self._groups, self._kv_caches, self._host = {}, {}, {}
        pools, self._pools = self._pools, []
        for pool in pools if self.options.scrub else ():
            pool.clear(np.arange(pool.slots), _stream())
            synchronize(_stream())


_TYPED = (torch.float32, torch.bfloat16, torch.float16)


def _spec(parts: Sequence[Part]) -> StateSpec:
    return StateSpec([part.spec(i) for i, part in enumerate(parts)])


def _view(tensor: torch.Tensor, part: Part, blocks: int) -> torch.Tensor:
    """[blocks, elements] of a layer's tensor, or for a state of its bytes."""
    dtype: torch.dtype = getattr(torch, part.dtype)
    if tensor.dtype != dtype:  # bytes of pages
        begin = part.first * dtype.itemsize
        flat = tensor.as_strided((blocks, part.elements * dtype.itemsize), (tensor.stride(0), 1),
                                 tensor.storage_offset() + begin)
        return flat.view(dtype)
    return tensor.as_strided((blocks, part.elements), (part.stride, 1), tensor.storage_offset() + part.first)


class _Pinned:
    """Pinned memory as kernels of a device see it. torch's DLPack calls it memory of the CPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        typestr = {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<u2", torch.int8: "|i1"}[tensor.dtype]
        self.__cuda_array_interface__ = {"data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape),
                                         "strides": None, "typestr": typestr, "version": 3}


def _host_memory(slots: int, part: Part, device: torch.device) -> torch.Tensor:
    """[slots, elements] of the host, which kernels of the device reach."""
    dtype: torch.dtype = getattr(torch, part.dtype)
    return torch.empty((slots, part.elements), dtype=dtype, pin_memory=device.type != "cpu")


def _reachable(memory: torch.Tensor) -> Any:
    """As kernels of the device take it."""
    return _Pinned(memory) if memory.is_pinned() else memory


def _stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() else None


def _settle_copies() -> None:
    if _library.backend() == "OpenMP":
        synchronize()
