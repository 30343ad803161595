# SPDX-License-Identifier: Apache-2.0
"""Images below the device by key, for an engine that keeps its own cache on the device."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stateport import _c, _library
from stateport._arrays import (
    IMAGE_KEY,
    TRANSFER,
    TRANSFER_RESULT,
    Int32s,
    Records,
    address,
    copied,
    int32s,
    int64s,
    records,
)
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.eviction import ORDERS
from stateport.tier_options import medium_number


@dataclasses.dataclass(frozen=True)
class ImagePlan:
    """The answer of a call. request: the number of this put, get or ask; -1: of other calls. transfers: TRANSFER [n],
    to be carried out in this order. ended: requests that have ended, each with the number of its images that are
    missing: of a put those that no tier has, of a get those that were not loaded, of an ask those that are nowhere."""

    request: int
    transfers: Records
    ended: dict[int, int]


@dataclasses.dataclass(frozen=True)
class ImageTierUsage:
    """Contents of one tier, and its work since the cache was made; see stateport_image_tier_usage."""

    images: int
    bytes: int
    written_images: int
    read_images: int
    evicted_images: int
    refused_images: int
    lost_images: int
    asked_images: int
    found_images: int


class ImageCache(_library.Object):
    """Decides which tier has the image of a key and what a full tier evicts, and moves no byte: StateTiers.execute
    carries its transfers out. Each image stands for itself. Any thread may call.

        put, get, ask, remove, drain → execute the transfers of the plan
        poll → settle → execute the transfers of the plan

    host_bytes, file_bytes: for images; 0: no such tier. remote_bytes: of images in the remote tier that this cache
    remembers. kv_image_bytes, state_image_bytes (by group): of one image in a tier (StateSpec.image_bytes).
    write_through: images go to the slowest tier as soon as a faster one has them; else when the faster one evicts them,
    to the next one. queue_bytes: of stores and copies under way into files, and into the remote tier, at most the
    staging_bytes of StateTiers; 0: 64 MiB. eviction: an order other than hix, gdsf and priority. images_under_way_max:
    that requests may wait for; 0: 65,536.

    images: IMAGE_KEY [n]. Of the images of one call the first counts as used last: in a prefix all later images need
    those before them. The same plans come from the same calls, on all ranks."""

    def __init__(self, *, host_bytes: int = 0, file_bytes: int = 0, remote_bytes: int = 0, kv_image_bytes: int = 0,
                 state_image_bytes: Sequence[int] = (), write_through: bool = False, queue_bytes: int = 0,
                 eviction: str = "lru", images_under_way_max: int = 0) -> None:
        if eviction not in ORDERS:
            raise InvalidArgument(f"eviction is {eviction!r}, and must be one of {', '.join(ORDERS)}")
        if eviction == ORDERS[0]:  # a zero in C, which is the default there
            raise InvalidArgument(f"eviction is {eviction!r}, which ranks by facts that a key alone does not tell")
        states = int64s("state_image_bytes", state_image_bytes)
        options = _c.ImageCacheOptions(
            host_bytes=host_bytes, file_bytes=file_bytes, remote_bytes=remote_bytes, kv_image_bytes=kv_image_bytes,
            state_image_bytes=states.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)), state_groups=len(states),
            write_through=write_through, queue_bytes=queue_bytes, eviction=ORDERS.index(eviction),
            images_under_way_max=images_under_way_max)
        super().__init__(calls.image_cache_create, calls.image_cache_destroy, ctypes.byref(options))

    def _call(self, call: Callable[..., None], images: Any, *results: Any) -> None:
        keys = _keys(images)
        call(self.handle, address(keys), len(keys), *results)

    def _plan(self, call: Callable[..., None], *arrays: npt.NDArray[Any]) -> ImagePlan:
        """arrays: as many elements each."""
        out, counts = _c.ImagePlan(), [len(array) for array in arrays[:1]]
        with self._turn:
            call(self.handle, *map(address, arrays), *counts, ctypes.byref(out))
            return ImagePlan(out.request, copied(out.transfers, out.transfer_count, TRANSFER),
                             {row.request: row.missing for row in out.ended[:out.ended_count]})

    def put(self, images: Any, places: Any) -> ImagePlan:
        """Stores images from places on the device ([n] slots, or KV blocks) into the fastest tier. Those that it has,
        and those on their way into any tier, count as stored. Places must stay as they are until the request ends."""
        return self._plan(calls.image_cache_put, *_placed(images, places))

    def get(self, images: Any, places: Any) -> ImagePlan:
        """Loads images into places, each from the fastest tier, up to the first that no tier has. A load that is not
        "done" makes its tier forget the image."""
        return self._plan(calls.image_cache_get, *_placed(images, places))

    def ask(self, images: Any) -> ImagePlan:
        """Asks the remote tier for the images that no tier is known to have. Raises InvalidState without one."""
        return self._plan(calls.image_cache_ask, _keys(images))

    def remove(self, images: Any) -> ImagePlan:
        """Forgets images in host memory and files, pinned ones too; those on their way when they arrive, unless they
        are put again."""
        return self._plan(calls.image_cache_remove, _keys(images))

    def drain(self) -> ImagePlan:
        """Copies images to files, or without these to the remote tier, that neither has, as far as there is room. All
        is written when a call names nothing and nothing is under way."""
        return self._plan(calls.image_cache_drain)

    def settle(self, results: Any) -> ImagePlan:
        """These transfers ended (TRANSFER_RESULT [n]), in any order. Raises InvalidArgument, and has changed nothing,
        for one that is not under way or is named twice."""
        return self._plan(calls.image_cache_settle, records("results", results, TRANSFER_RESULT))

    def find(self, images: Any) -> int:
        """The number of leading images that a tier has."""
        leading = ctypes.c_size_t()
        self._call(calls.image_cache_find, images, None, ctypes.byref(leading))
        return leading.value

    def lookup(self, images: Any) -> Int32s:
        """[n] the fastest tier that has each image, as index into MEDIA; -1: none."""
        media, leading = np.empty(len(_keys(images)), np.int32), ctypes.c_size_t()
        self._call(calls.image_cache_find, images, address(media), ctypes.byref(leading))
        return media

    def touch(self, images: Any) -> None:
        """A use of the images that are known."""
        self._call(calls.image_cache_touch, images)

    def pin(self, images: Any) -> bool:
        """No tier evicts these images before unpin. False, and nothing is pinned: no tier has one of them."""
        pinned = ctypes.c_int32()
        self._call(calls.image_cache_pin, images, ctypes.byref(pinned))
        return pinned.value != 0

    def unpin(self, images: Any) -> None:
        """Undoes one pin of each image. Raises InvalidArgument, and has changed nothing, for one that is not pinned."""
        self._call(calls.image_cache_unpin, images)

    def attach(self, medium: str, images: Any) -> npt.NDArray[np.bool_]:
        """The tier has these images from before the cache was made. [n] False: there is no room for the image, and it
        is to be removed."""
        keys = _keys(images)
        attached = np.zeros(len(keys), np.uint8)
        calls.image_cache_attach(self.handle, medium_number(medium), address(keys), len(keys), address(attached))
        return attached.astype(np.bool_)

    def under_way(self) -> int:
        """Transfers that are not answered, and those that wait."""
        out = ctypes.c_size_t()
        calls.image_cache_under_way(self.handle, ctypes.byref(out))
        return out.value

    def usage(self, medium: str) -> ImageTierUsage:
        """All zero for a medium that is no tier of this cache."""
        out = _c.ImageTierUsage()
        calls.image_cache_usage(self.handle, medium_number(medium), ctypes.byref(out))
        return ImageTierUsage(**{field.name: getattr(out, field.name) for field in dataclasses.fields(ImageTierUsage)})

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError that names what is wrong."""
        calls.image_cache_check(self.handle)

    def __repr__(self) -> str:
        if not self._usable:
            return "<ImageCache, closed>"
        tiers = {medium: self.usage(medium) for medium in ("host", "file", "remote")}
        return f"<ImageCache: {', '.join(f'{tier.images:,} images {name}' for name, tier in tiers.items())}>"


def _keys(images: Any) -> Records:
    return records("images", images, IMAGE_KEY)


def _placed(images: Any, places: Any) -> tuple[Records, Int32s]:
    keys, at = _keys(images), int32s("places", places)
    if len(at) != len(keys):
        raise InvalidArgument(f"places has {len(at)} elements, and images has {len(keys)}")
    return keys, at
