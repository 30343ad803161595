# SPDX-License-Identifier: Apache-2.0
"""Images in files, from and to memory of the host that an engine has already."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stateport import _c, _library
from stateport._arguments import name_bytes, of_kind
from stateport._arrays import IMAGE_KEY, TRANSFER_RESULT, Records, address, as_array, ints, records, room
from stateport._library import calls
from stateport.errors import Error, InvalidArgument
from stateport.model_layout import Shard
from stateport.spec import StateSpec
from stateport.tier_options import CONTENTS
from stateport.tiers import folder_bytes

Bytes = npt.NDArray[np.uint8]
PAGE_BYTES = 4096  # sections of images begin at multiples of it


@dataclasses.dataclass(frozen=True)
class ImageLayout:
    """The layout of an image: a header, then the bytes of each tensor of the spec, (begin, bytes)."""

    image_bytes: int
    sections: tuple[tuple[int, int], ...]

    def new_images(self, count: int) -> Bytes:
        """Memory for images, [count, image_bytes], where a file tier reads and writes without a copy of its own."""
        room = np.empty(count * self.image_bytes + PAGE_BYTES, np.uint8)
        begin = -room.ctypes.data % PAGE_BYTES
        return room[begin:begin + count * self.image_bytes].reshape(count, self.image_bytes)


class FileTier(_library.Object):
    """Images in files of one folder. It decides nothing: a write that does not fit raises NoCapacity. Threads of its
    own carry out requests, and poll answers them; nothing waits for the file system but this constructor, wait and
    close. A write is "done" when it survives a crash, a read when key, layout and all checksums fit.

    folder: made if it is not there, for its owner alone; files get its permissions. Several processes may use one.
    states: the tensors in images of states, a spec for each group of layers. kv: the tensors in the image of a KV
    block. model: names the model: weights, revision, whatever makes states of two models differ. file_bytes: for
    images. free_floor_bytes: writes that would leave the file system less are answered "no_room". queue_bytes: of
    images under way, 0: 256 MiB. lanes: files at a time, 0: 2. scrub: bytes are overwritten before they are given
    back."""

    def __init__(self, folder: str | os.PathLike[str], *, states: Sequence[StateSpec] = (),
                 kv: StateSpec | None = None, model: str | bytes, file_bytes: int, shard: Shard | None = None,
                 free_floor_bytes: int = 0, queue_bytes: int = 0, lanes: int = 0,
                 scrub: bool = False) -> None:
        handles = (ctypes.c_void_p * len(states))(*(
            _library.handle_of(f"states[{i}]", spec, StateSpec) for i, spec in enumerate(states)))
        name = name_bytes("model", model)
        kv_handle = None if kv is None else _library.handle_of("kv", kv, StateSpec)
        options = _c.FileTierOptions(
            folder=folder_bytes(folder), file_bytes=file_bytes, free_floor_bytes=free_floor_bytes,
            queue_bytes=queue_bytes, states=handles, state_count=len(states), kv=kv_handle, model=name,
            model_bytes=len(name), **dataclasses.asdict(of_kind("shard", shard or Shard(), Shard)), lanes=lanes,
            scrub=scrub)
        self._under_way: dict[int, Any] = {}  # number of a request: memory that its answer sets free
        self._lock = threading.Lock()
        super().__init__(calls.file_tier_create, calls.file_tier_destroy, ctypes.byref(options))
        self._layouts = {(1, group): self.layout("state", group) for group in range(len(states))}
        if kv is not None:
            self._layouts[0, 0] = self.layout("kv_block")

    def layout(self, content: str, group: int = 0) -> ImageLayout:
        """Of the images of one content, "kv_block" or "state"."""
        if content not in CONTENTS:
            raise InvalidArgument(f"content is {content!r}, and must be one of {', '.join(CONTENTS)}")
        number, out = CONTENTS.index(content), _c.ImageLayout()
        calls.file_tier_layout(self.handle, number, group, ctypes.byref(out))
        begin, size = ctypes.c_uint64(), ctypes.c_uint64()
        sections = []
        for index in range(out.sections):
            calls.file_tier_section(self.handle, number, group, index, ctypes.byref(begin), ctypes.byref(size))
            sections.append((begin.value, size.value))
        return ImageLayout(out.image_bytes, tuple(sections))

    def write(self, number: int, keys: Any, images: Sequence[Bytes]) -> None:
        """Writes images (keys: IMAGE_KEY [n]) into one new file: all or none. poll answers once, by `number`; until
        then the images must stay as they are. Headers are not read. If all are held, none is written again; else all
        are. Raises NoCapacity if they do not fit into file_bytes or the queue now; there is no answer then."""
        named = records("keys", keys, IMAGE_KEY)
        if len(named) != len(images):
            raise InvalidArgument(f"images has {len(images)} elements, and keys has {len(named)}")
        for i, (key, image) in enumerate(zip(named, images, strict=True)):
            self._require(f"images[{i}]", key, image)
        rows = (ctypes.c_void_p * len(images))(*(image.ctypes.data for image in images))
        self._begin(number, tuple(images), calls.file_tier_write, address(named), rows, len(images))

    def read(self, number: int, key: Any, image: Bytes) -> None:
        """Reads the image of one key (IMAGE_KEY [1]) with its header: uint8 [image_bytes], which holds anything until
        the answer is "done". Raises NoCapacity if the queue is full; there is no answer then."""
        named = records("key", key, IMAGE_KEY)
        if len(named) != 1:
            raise InvalidArgument(f"key has {len(named)} elements, and must have one")
        self._require("image", named[0], image)
        if not image.flags.writeable:
            raise InvalidArgument("image is read-only, and must be writable")
        self._begin(number, image, calls.file_tier_read, address(named), image.ctypes.data, image.nbytes)

    def _require(self, name: str, key: Any, image: Bytes) -> None:
        layout = self._layouts.get((int(key["content"]), int(key["group"])))
        if layout is None:
            raise InvalidArgument(f"{name} is of content {key['content']} and group {key['group']}, of which this tier "
                                  "has no images")
        if not isinstance(image, np.ndarray):
            raise InvalidArgument(f"{name} is a {type(image).__name__}, and must be an array of bytes")
        if image.dtype != np.uint8 or image.shape != (layout.image_bytes,) or not image.flags.c_contiguous:
            raise InvalidArgument(f"{name} has the type {image.dtype} and the shape {list(image.shape)}, and must be "
                                  f"{layout.image_bytes} contiguous bytes")

    def _begin(self, number: int, memory: Any, call: Any, *arguments: Any) -> None:
        if not isinstance(number, int) or not 0 <= number < 2**64:
            raise InvalidArgument(f"number is {number!r}, and must be from 0 to 2^64 - 1")
        with self._lock:
            if number in self._under_way:
                raise InvalidArgument(f"number is {number}, which another request has that was not answered")
            self._under_way[number] = memory
        try:
            call(self.handle, number, *arguments)
        except Error:  # an interrupt may come after the request was accepted: its answer sets the memory free
            with self._lock:
                del self._under_way[number]
            raise

    def poll(self, capacity: int = 4096) -> Records:
        """At most `capacity` answers, in the order in which requests ended: TRANSFER_RESULT [n]."""
        out, count = room("capacity", capacity, TRANSFER_RESULT), ctypes.c_size_t()
        calls.file_tier_poll(self.handle, address(out), capacity, ctypes.byref(count))
        answers = out[:count.value]
        with self._lock:
            for number in answers["id"].tolist():
                self._under_way.pop(number, None)
        return answers

    def wait(self) -> None:
        """Waits until every request has an answer, every removal is done, and all of them survive a crash of the
        machine: no later process finds those images. (Where the file system makes no holes, a removed image is gone
        when all images of its file are.)"""
        calls.file_tier_wait(self.handle)

    def lookup(self, keys: Any) -> npt.NDArray[np.bool_]:
        """[n] whether each image (IMAGE_KEY) can be read."""
        named = records("keys", keys, IMAGE_KEY)
        held = np.empty(len(named), np.uint8)
        calls.file_tier_lookup(self.handle, address(named), len(named), address(held))
        return held.astype(np.bool_)

    def remove(self, keys: Any) -> None:
        """Forgets images (IMAGE_KEY [n]), also those that are being written. Reads that were accepted find them."""
        named = records("keys", keys, IMAGE_KEY)
        calls.file_tier_remove(self.handle, address(named), len(named))

    def keys(self) -> Records:
        """The keys of all images, by tokens and then prefix: IMAGE_KEY [n]."""
        count, out = ctypes.c_size_t(), np.empty(0, IMAGE_KEY)
        while True:
            calls.file_tier_keys(self.handle, address(out), len(out), ctypes.byref(count))
            if count.value <= len(out):
                return out[:count.value]
            out = np.zeros(count.value, IMAGE_KEY)

    def info(self) -> dict[str, int | float]:
        """Contents of the tier, results of opening the folder, and counters since then: the members of
        stateport_file_tier_info."""
        out = _c.FileTierInfo()
        calls.file_tier_describe(self.handle, ctypes.byref(out))
        return {name: getattr(out, name) for name, _ in out._fields_ if name != "size"}

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        calls.file_tier_check(self.handle)

    def __repr__(self) -> str:
        if not self._usable:
            return "<FileTier, closed>"
        info = self.info()
        return f"<FileTier: {info['images']:,} images of {info['file_bytes']:,} bytes>"


def image_keys(prefixes: Any, tokens: Any, content: str, group: int | Iterable[int] = 0) -> Records:
    """Keys of images: IMAGE_KEY [n]. prefixes: [n, 2] of all tokens up to `tokens` ([n] or one number), with their
    namespace (see hash_blocks). content: "kv_block" or "state"."""
    if content not in CONTENTS:
        raise InvalidArgument(f"content is {content!r}, and must be one of {', '.join(CONTENTS)}")
    words = as_array("prefixes", prefixes)
    if words.ndim == 2:
        words = ints("prefixes", words.reshape(-1), np.uint64).reshape(words.shape)
    if words.ndim != 2 or words.shape[1] != 2:
        raise InvalidArgument(f"prefixes has the shape {words.shape}, and must be [n, 2]")
    keys = np.zeros(len(words), IMAGE_KEY)
    for name, values in (("tokens", tokens), ("group", group)):
        column = ints(name, np.atleast_1d(as_array(name, values)), IMAGE_KEY[name])
        if len(column) not in (1, len(words)):
            raise InvalidArgument(f"{name} has {len(column)} elements, and prefixes {len(words)}")
        keys[name] = column
    keys["prefix"] = words
    keys["content"] = CONTENTS.index(content)
    return keys
