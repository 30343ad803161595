# SPDX-License-Identifier: Apache-2.0
"""Names of blocks, sessions and tenants in a trace, which tell nothing without a key."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from stateport.hashing import MediaKey
from stateport.record.key import check_key

BITS = 53  # of a name: a number that every reader of JSON holds exactly
_UNNAMED = bytes(8)
_SLICE_BLOCKS = 64  # between two of them another thread may run


class Names:
    """Keyed BLAKE2b of 53 bits. Two keys have no name in common, but by chance."""

    def __init__(self, key: bytes | None, block_tokens: int) -> None:
        """key: None: a random one. Raises InvalidArgument for one that is no key."""
        if key is not None:
            check_key(key)
        self._key, self._block = secrets.token_bytes(32) if key is None else key, block_tokens

    def _hash(self, person: bytes, data: bytes) -> Any:
        return hashlib.blake2b(data, digest_size=8, key=self._key, person=person)

    def name(self, kind: str, text: bytes) -> int:
        """kind: "session", "namespace" or "prefix". Equal texts of two kinds have different names."""
        return _number(self._hash(kind.encode(), text).digest())

    def blocks(self, tokens: Any, namespace: bytes | None = None, media: Sequence[MediaKey] = ()) -> list[int]:
        """A name for each prefix of whole blocks: of its tokens, of the inputs that begin among them, and of the
        namespace. O(tokens)."""
        begins: dict[int, list[tuple[int, bytes]]] = {}
        for key in sorted(media, key=lambda key: (key.first_token, key.id)):
            begins.setdefault(key.first_token // self._block, []).append((key.first_token, key.id))
        running = self._hash(b"blocks", _UNNAMED if namespace is None else
                             self._hash(b"namespace", namespace).digest())
        names: list[int] = []
        whole = len(tokens) // self._block
        for first in range(0, whole, _SLICE_BLOCKS):
            time.sleep(0)
            part = np.asarray(tokens[first * self._block:min(first + _SLICE_BLOCKS, whole) * self._block], "<i4")
            for row in part.reshape(-1, self._block):
                begun = begins.get(len(names))
                running.update((b"\1" + repr(begun).encode() if begun else b"\0") + row.tobytes())
                names.append(_number(running.copy().digest()))
        return names


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little") >> (64 - BITS)
