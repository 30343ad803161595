# SPDX-License-Identifier: Apache-2.0
"""Images of states and KV below the device, in host memory, in files and in a store that machines share, and their
transfers."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import name_bytes, of_kind
from stateport._arrays import IMAGE_KEY, SLOT_IMAGE, TRANSFER, TRANSFER_RESULT, Int32s, Records, address, records, room
from stateport._library import calls
from stateport._metrics import prometheus_text
from stateport._tensors import stream_handle
from stateport.errors import InvalidArgument
from stateport.model_layout import ModelLayout, Shard, shard_row
from stateport.remote_store import RemoteStore
from stateport.request_cache import RequestCache
from stateport.spec import element_type
from stateport.store import StateStore
from stateport.tier_options import TRANSFER_STATUSES, medium_number


@dataclasses.dataclass(frozen=True)
class SharedLayout:
    """How ranks share a state or a KV block, and which part is in a store of this rank."""

    layout: ModelLayout
    shard: Shard = Shard()

    def _row(self, name: str) -> Any:
        handle = _library.handle_of(f"{name}.layout", self.layout, ModelLayout)
        return _c.SharedLayout(layout=handle, shard=shard_row(f"{name}.shard", self.shard))


@dataclasses.dataclass(frozen=True)
class ObjectEncoding:
    """Element types of the tensors of objects. "default": those of the layout."""

    conv: str = "default"
    recurrent: str = "default"

    def _row(self) -> Any:
        return _c.ObjectEncoding(conv=element_type("conv", self.conv),
                                 recurrent=element_type("recurrent", self.recurrent))


@dataclasses.dataclass(frozen=True)
class RemoteOptions:
    """A store that machines share, as a tier. Checkpoints lie there as objects that do not depend on the topology of
    the writer: the share of rank g, in a tensor-parallel group of head_groups ranks, of some layers.

    store: used by no one else while the tiers exist, and without requests that are not answered. states: one for
    each store of states. kv: of a block. head_groups: a multiple of every tensor-parallel size in use.
    layers_per_object: pipeline stages begin at multiples of it; 0: all layers. encodings: of states; the first is
    written, all are read. staging_bytes: host memory for objects on their way; 0: 256 MiB. Grid and model are equal for
    all that share the store."""

    store: RemoteStore
    states: Sequence[SharedLayout] = ()
    kv: SharedLayout | None = None
    head_groups: int = 1
    layers_per_object: int = 0
    encodings: Sequence[ObjectEncoding] = (ObjectEncoding(),)
    staging_bytes: int = 0

    def _struct(self) -> Any:
        states = (_c.SharedLayout * len(self.states))(*(
            of_kind(f"remote.states[{i}]", layout, SharedLayout)._row(f"remote.states[{i}]")
            for i, layout in enumerate(self.states)))
        encodings = (_c.ObjectEncoding * len(self.encodings))(*(
            of_kind(f"remote.encodings[{i}]", encoding, ObjectEncoding)._row()
            for i, encoding in enumerate(self.encodings)))
        kv = None if self.kv is None else of_kind("remote.kv", self.kv, SharedLayout)._row("remote.kv")
        return _c.RemoteOptions(
            store=_library.handle_of("remote.store", self.store, RemoteStore), states=states, state_count=len(states),
            kv=kv, head_groups=self.head_groups, layers_per_object=self.layers_per_object, encodings=encodings,
            encoding_count=len(encodings), staging_bytes=self.staging_bytes)


@dataclasses.dataclass(frozen=True)
class AttachedImages:
    """Numbers of images. attached: that the cache took. removed: for which it had no room. skipped: that it cannot
    use."""

    attached: int
    removed: int
    skipped: int


def folder_bytes(folder: str | os.PathLike[str]) -> bytes:
    """Raises InvalidArgument for a name that the C interface would cut."""
    try:
        name = os.fsencode(folder)
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgument(f"folder is {folder!r}, and must be a path") from None
    if b"\0" in name:
        raise InvalidArgument(f"folder is {name!r}, and must have no zero byte")
    return name


class StateTiers(_library.Object):
    """Moves states and KV blocks between an engine's stores and the tiers below them. It decides nothing. Nothing waits
    for the device, a file or the network but this constructor and close.

    states: a store for each group of layers: those that checkpoints lie in. kv: the engine's KV, a block in a slot.
    model: names the model: weights, revision, whatever makes states of two models differ; not empty with a folder or a
    remote tier.
    host_bytes: of pinned memory, for images that stay on the host. folder: of the files, made if it is not there;
    several processes may use one. file_bytes: for images in files. free_floor_bytes: writes that would leave the file
    system less are refused. file_queue_bytes, staging_bytes, file_transfers_max, file_lanes: 0: 256 MiB, 64 MiB, 4,096
    and 2. remote: a store that machines share; needs a model. scrub: host memory is set to zero at the end, and the
    bytes of files before they are given back.

    Under a request cache:

        start, plan, insert, commit → begin_transfers, with the transfers of the answer → enqueue all else of it
        once a step, and while requests load → end_transfers

    Without one: put, get, find, lookup, remove, poll."""

    def __init__(self, *, states: Sequence[StateStore] = (), kv: StateStore | None = None, model: str | bytes = b"",
                 shard: Shard | None = None, host_bytes: int = 0, folder: str | os.PathLike[str] | None = None,
                 file_bytes: int = 0, free_floor_bytes: int = 0, file_queue_bytes: int = 0, staging_bytes: int = 0,
                 file_transfers_max: int = 0, file_lanes: int = 0, remote: RemoteOptions | None = None,
                 scrub: bool = False) -> None:
        self._stores = (*states, kv, remote)  # the memory that they view must outlive this
        handles = (ctypes.c_void_p * len(states))(*(
            _library.handle_of(f"states[{i}]", store, StateStore) for i, store in enumerate(states)))
        name = name_bytes("model", model)
        kv_handle = None if kv is None else _library.handle_of("kv", kv, StateStore)
        options = _c.StateTiersOptions(
            states=handles, state_count=len(states), kv=kv_handle, model=name, model_bytes=len(name),
            **dataclasses.asdict(of_kind("shard", shard or Shard(), Shard)), host_bytes=host_bytes,
            folder=None if folder is None else folder_bytes(folder), file_bytes=file_bytes,
            free_floor_bytes=free_floor_bytes, file_queue_bytes=file_queue_bytes, staging_bytes=staging_bytes,
            file_transfers_max=file_transfers_max, file_lanes=file_lanes, scrub=scrub,
            remote=None if remote is None else of_kind("remote", remote, RemoteOptions)._struct())
        super().__init__(calls.state_tiers_create, calls.state_tiers_destroy, ctypes.byref(options))
        if remote is not None:
            _library.close_at_exit(self)

    # --- Under a request cache ---------------------------------------------------------------------------------------

    def begin_transfers(self, cache: RequestCache, transfers: Any, stream: Any = None) -> None:
        """Begins the transfers of an answer of the cache (TRANSFER [n]). Call it before all else of that answer is
        enqueued on this stream."""
        served, array = _library.handle_of("cache", cache, RequestCache), records("transfers", transfers, TRANSFER)
        calls.state_tiers_begin_transfers(self.handle, stream_handle(stream), served, address(array), len(array))

    def end_transfers(self, cache: RequestCache, stream: Any = None) -> int:
        """Reports ended transfers to the cache and begins those that it names then. Call it once a step, before the
        next chunk, also while requests wait for loads. Returns the number of requests whose wait has ended."""
        loaded = ctypes.c_int32()
        served = _library.handle_of("cache", cache, RequestCache)
        calls.state_tiers_end_transfers(self.handle, stream_handle(stream), served, ctypes.byref(loaded))
        return loaded.value

    def take_loads(self, capacity: int = 4096) -> Records:
        """Loads from "elsewhere" (TRANSFER [n]), each once: the engine carries them out, and tells the cache
        (settle)."""
        out, count = room("capacity", capacity, TRANSFER), ctypes.c_size_t()
        calls.state_tiers_take_loads(self.handle, address(out), capacity, ctypes.byref(count))
        return out[:count.value]

    def attach(self, cache: RequestCache, stream: Any = None) -> AttachedImages:
        """Tells a cache of all images in files, which are there from an earlier run."""
        out = _c.AttachedImages()
        served = _library.handle_of("cache", cache, RequestCache)
        calls.state_tiers_attach(self.handle, stream_handle(stream), served, ctypes.byref(out))
        return AttachedImages(out.attached, out.removed, out.skipped)

    def share_forgotten(self, cache: RequestCache) -> str | None:
        """Exchanges records of forgotten namespaces with the remote tier, for all that use the store with this model.
        Begins the exchange, or goes on with it, and waits for nothing: call it until it answers, with end_transfers or
        poll in between; before attach and the first request, after each RequestCache.forget, and now and then, to learn
        what other machines have forgotten: no look-up of a request asks for records. With several ranks the first one
        calls it, and the others adopt its RequestCache.forgotten at the same point. Answers: None, the exchange is
        under way; "done", the store has all that the cache has forgotten, and the cache has forgotten all that the
        store had; "failed"; "no_room", of the store, or there are more than 1,024 records together. Records that were
        read are adopted in any case. The store keeps them in two objects. If it evicts both, they are there again after
        the next call with a cache that knows them. Raises InvalidState without a remote tier."""
        status, served = ctypes.c_int32(), _library.handle_of("cache", cache, RequestCache)
        calls.state_tiers_share_forgotten(self.handle, served, ctypes.byref(status))
        return None if status.value == _c.NONE else TRANSFER_STATUSES[status.value]

    # --- Transfers of an engine's own --------------------------------------------------------------------------------

    def execute(self, transfers: Any, stream: Any = None) -> None:
        """Begins transfers (TRANSFER [n]) in their order; poll tells how they ended. Raises InvalidArgument for one
        that no tier here can carry out; nothing has begun then."""
        array = records("transfers", transfers, TRANSFER)
        calls.state_tiers_execute(self.handle, stream_handle(stream), address(array), len(array))

    def poll(self, stream: Any = None, capacity: int = 4096) -> Records:
        """At most `capacity` transfers that have ended, each once: TRANSFER_RESULT [n]. Lets transfers under way make
        progress: call it in every step, on the stream that reads the loaded memory."""
        out, count = room("capacity", capacity, TRANSFER_RESULT), ctypes.c_size_t()
        calls.state_tiers_poll(self.handle, stream_handle(stream), address(out), capacity, ctypes.byref(count))
        return out[:count.value]

    def put(self, images: Any, medium: str, stream: Any = None) -> int:
        """Stores slots (SLOT_IMAGE [n]) on the "host", in a "file" or "remote". poll answers each: the first one has
        the number that is answered here, those behind it the next ones."""
        array, first = records("images", images, SLOT_IMAGE), ctypes.c_uint64()
        calls.state_tiers_put(self.handle, stream_handle(stream), address(array), len(array), medium_number(medium),
                              ctypes.byref(first))
        return first.value

    def get(self, images: Any, stream: Any = None) -> int:
        """Loads into slots (SLOT_IMAGE [n]), from host memory, a file or else the remote tier, and numbers as put does.
        After a load that was not "done" its slot holds anything."""
        array, first = records("images", images, SLOT_IMAGE), ctypes.c_uint64()
        calls.state_tiers_get(self.handle, stream_handle(stream), address(array), len(array), ctypes.byref(first))
        return first.value

    def find(self, images: Any, stream: Any = None) -> int:
        """Asks the remote tier for images (IMAGE_KEY [n]), and numbers as put does: poll answers done or gone. Raises
        InvalidState without a remote tier."""
        array, first = records("images", images, IMAGE_KEY), ctypes.c_uint64()
        calls.state_tiers_find(self.handle, stream_handle(stream), address(array), len(array), ctypes.byref(first))
        return first.value

    def lookup(self, images: Any) -> Int32s:
        """[n] the fastest tier that each image (IMAGE_KEY) can be got from, as index into MEDIA; -1: none. The remote
        tier is not among them."""
        array = records("images", images, IMAGE_KEY)
        out = np.empty(len(array), np.int32)
        calls.state_tiers_lookup(self.handle, address(array), len(array), address(out))
        return out

    def remove(self, images: Any, stream: Any = None) -> None:
        """Forgets images (IMAGE_KEY [n]) in host memory and files, in order with the enqueued transfers."""
        array = records("images", images, IMAGE_KEY)
        calls.state_tiers_remove(self.handle, stream_handle(stream), address(array), len(array))

    def keys(self, medium: str) -> Records:
        """The keys of all images on the "host" or in a "file": IMAGE_KEY [n]."""
        count, out = ctypes.c_size_t(), np.empty(0, IMAGE_KEY)
        while True:
            calls.state_tiers_keys(self.handle, medium_number(medium), address(out), len(out), ctypes.byref(count))
            if count.value <= len(out):
                return out[:count.value]
            out = np.zeros(count.value, IMAGE_KEY)

    def drain(self, stream: Any = None) -> int:
        """Copies images in host memory that are not in files to files: call it and poll until it answers 0. Give up if
        only failures come. Raises InvalidState without a file tier."""
        left = ctypes.c_size_t()
        calls.state_tiers_drain(self.handle, stream_handle(stream), ctypes.byref(left))
        return left.value

    def info(self) -> dict[str, int | float]:
        """Contents of the tiers, results of opening the folder, and counters of files since then: the members of
        stateport_state_tiers_info."""
        out = _c.StateTiersInfo()
        calls.state_tiers_describe(self.handle, ctypes.byref(out))
        return {name: getattr(out, name) for name, _ in out._fields_ if name != "size"}

    def prometheus(self, prefix: str = "stateport") -> str:
        """Contents of the tiers and durations of transfers in the text format of Prometheus. A service answers it
        behind RequestCache.prometheus: no metric is in both. prefix: of the names of metrics: letters, digits, _ and
        :"""
        return prometheus_text(calls.state_tiers_prometheus, self.handle, prefix)

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        calls.state_tiers_check(self.handle)

    def __repr__(self) -> str:
        if not self._usable:
            return "<StateTiers, closed>"
        info = self.info()
        return (f"<StateTiers: {info['host_images']:,} images of {info['host_image_bytes']:,} bytes on the host, "
                f"{info['file_images']:,} of {info['file_bytes']:,} bytes in files>")
