# SPDX-License-Identifier: Apache-2.0
"""Names of SGLang's pages as keys of images, and which images a tier gives up."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Container, Iterable, Sequence

import numpy as np

from stateport._arrays import IMAGE_KEY, SLOT_IMAGE, TRANSFER, Records
from stateport.errors import InvalidArgument
from stateport.tier_options import CONTENTS, TRANSFER_KINDS

_DIGITS = 48  # of a SHA-256 in hexadecimal: three words


def page_keys(hashes: Sequence[str], content: str, group: int = 0, seed: int = 0) -> Records:
    """IMAGE_KEY [n] of pages, or of states at the ends of pages, by SGLang's hashes of them.

    SGLang names a page by the SHA-256 of its tokens behind the hash of the page before it, from the namespace of the
    request on. Such a hash fixes the tokens, and with them the position, of which SGLang tells nothing else. So a key
    has 191 bits of it: 128 in `prefix`, 63 in `tokens`. seed: not 0: of its hash with this secret. Raises
    InvalidArgument for what is no such hash."""
    try:
        names = [bytes.fromhex(page[:_DIGITS]) for page in hashes]
        if any(len(name) != _DIGITS // 2 for name in names):
            raise ValueError
    except ValueError:
        bad = next((page for page in hashes if len(page) < _DIGITS or not _is_hexadecimal(page)), "")
        raise InvalidArgument(f"keys has the element {bad!r}, and must have hashes of at least {_DIGITS} hexadecimal "
                              "digits") from None
    if seed:
        secret = seed.to_bytes(8, "little")
        names = [hashlib.blake2b(name, digest_size=_DIGITS // 2, key=secret).digest() for name in names]
    words = np.frombuffer(b"".join(names), "<u8").reshape(-1, 3)
    keys = np.zeros(len(words), IMAGE_KEY)
    keys["prefix"], keys["tokens"], keys["group"] = words[:, :2], words[:, 2] >> np.uint64(1), group
    keys["content"] = CONTENTS.index(content)
    return keys


def _is_hexadecimal(text: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in text[:_DIGITS])


def names_of(keys: Records) -> list[bytes]:
    """The keys as values that a dictionary takes."""
    data, size = keys.tobytes(), IMAGE_KEY.itemsize
    return [data[at:at + size] for at in range(0, len(data), size)]


def keys_of(names: Iterable[bytes]) -> Records:
    """The reverse of names_of."""
    return np.frombuffer(b"".join(names), IMAGE_KEY)


def slot_images(names: Sequence[bytes], slots: Sequence[int]) -> Records:
    """SLOT_IMAGE [n]."""
    images = np.zeros(len(names), SLOT_IMAGE)
    images["key"], images["slot"] = keys_of(names), slots
    return images


def transfers(names: Sequence[bytes], kind: str, source: int, destination: int, first: int) -> Records:
    """TRANSFER [n] between tiers, numbered from `first` on; 0: drops, which have no answer."""
    plan = np.zeros(len(names), TRANSFER)
    plan["id"] = np.arange(first, first + len(names)) if first else 0
    plan["kind"], plan["from"], plan["to"] = TRANSFER_KINDS.index(kind), source, destination
    plan["place"] = plan["request"] = -1
    plan["image"] = keys_of(names)
    return plan


class Recency:
    """The images of one tier, from the longest unused to the last used, and their bytes. Not thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self._sizes: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        return name in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: bytes, size: int) -> None:
        """As the last used one. `name` is not held."""
        self._sizes[name] = size
        self.held_bytes += size

    def drop(self, name: bytes) -> None:
        self.held_bytes -= self._sizes.pop(name, 0)

    def touch(self, name: bytes) -> None:
        """Does nothing for an image that is not held."""
        if name in self._sizes:
            self._sizes.move_to_end(name)

    def clear(self) -> None:
        self._sizes.clear()
        self.held_bytes = 0

    def take_victims(self, need_bytes: int, kept: Container[bytes] = ()) -> list[bytes] | None:
        """Drops the longest unused images, but for `kept`, until `need_bytes` more fit, and answers which. None, and
        nothing is dropped: that cannot be."""
        victims, room = [], self.capacity_bytes - self.held_bytes
        for name, size in self._sizes.items():
            if room >= need_bytes:
                break
            if name not in kept:
                victims.append(name)
                room += size
        if room < need_bytes:
            return None
        for name in victims:
            self.drop(name)
        return victims
