# SPDX-License-Identifier: Apache-2.0
"""Chained hashes of token blocks, and the namespaces that keep prompts apart."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arrays import Int64s, UInt64s, address, int32s

_hash_blocks = _library.function("hash_blocks", _library.POINTER, _library.POINTER, _library.SIZE, _library.POINTER,
                                 _library.POINTER)


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Prompts of different namespaces never share a prefix. None is none; b"" is a name.

    extra_key: for example the adapter. salt: for example the tenant."""

    extra_key: bytes | None = None
    salt: bytes | None = None

    def struct(self) -> Any:
        """It holds on to the keys."""
        out = _c.Namespace()
        out.keep = [_bytes(out, "extra_key", self.extra_key), _bytes(out, "salt", self.salt)]
        return out


def _bytes(struct: Any, name: str, value: bytes | None) -> Any:
    if value is None:
        return None
    buffer = ctypes.create_string_buffer(value, len(value) + 1)  # not null where there are no bytes
    setattr(struct, name, ctypes.addressof(buffer))
    setattr(struct, f"{name}_bytes", len(value))
    return buffer


def hash_blocks(tokens: Any, block_size_tokens: int, *, namespace: Namespace | None = None,
                fast: bool = False) -> tuple[Int64s, UInt64s]:
    """The chained hashes of the n = len(tokens) // block_size_tokens whole blocks of a prompt: keys [n] for
    SlotAllocator, prefixes [n, 2] for tags and images. fast: xxh3_128, for a single tenant, in place of sha256."""
    array = int32s("tokens", tokens)
    options = _c.HashOptions(block_size_tokens=block_size_tokens, fast=fast)
    namespace = namespace or Namespace()
    keep = [_bytes(options, "salt", namespace.salt), _bytes(options, "adapter", namespace.extra_key)]
    blocks = len(array) // block_size_tokens if block_size_tokens > 0 else 0
    keys, prefixes = np.empty(blocks, np.int64), np.empty((blocks, 2), np.uint64)
    _hash_blocks(ctypes.addressof(options), address(array), len(array), address(keys), address(prefixes))
    del keep
    return keys, prefixes
