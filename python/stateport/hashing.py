# SPDX-License-Identifier: Apache-2.0
"""Chained hashes of token blocks, and the namespaces that keep prompts apart."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import Int64s, UInt64s, address, int32s
from stateport._library import calls
from stateport.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Prompts of different namespaces never share a prefix. None is none; b"" is a name.

    extra_key: for example the adapter. salt: for example the tenant."""

    extra_key: bytes | None = None
    salt: bytes | None = None

    def struct(self) -> Any:
        """It holds on to the keys."""
        return _c.Namespace(**_bytes("extra_key", self.extra_key), **_bytes("salt", self.salt))


@dataclasses.dataclass(frozen=True)
class MediaKey:
    """An image or another input at position `first_token` of a prompt; id: of its content, for example a hash."""

    id: bytes
    first_token: int

    def __post_init__(self) -> None:
        if not isinstance(self.id, bytes):
            raise InvalidArgument(f"id is {self.id!r}, and must be bytes")


def media_rows(media: Sequence[MediaKey]) -> Any:
    """The array of the C interface; None without media. It holds on to their names."""
    if not media:
        return None
    return (_c.MediaKey * len(media))(*(_c.MediaKey(id=key.id, id_bytes=len(key.id), first_token=key.first_token)
                                        for key in media))


def _bytes(name: str, value: bytes | None) -> dict[str, Any]:
    """The members of a struct for a key; null differs from no bytes."""
    if value is not None and not isinstance(value, bytes):
        raise InvalidArgument(f"{name} is {value!r}, and must be bytes")
    return {name: value, f"{name}_bytes": len(value or b"")}


def random_seed(*, lasts: bool) -> int:
    """A seed for a cache that was given none. lasts: its states outlive it, so that every later cache must have the
    same seed: 0."""
    return 0 if lasts else secrets.randbelow((1 << 64) - 1) + 1


def seed_of_variable(name: str, variable: str) -> int:
    """A secret seed, from 1 to 2^64 - 1, in the environment: a decimal number, or 0x and a hexadecimal one. `name`: the
    argument that named the variable. Raises InvalidArgument, which does not tell the value."""
    if variable not in os.environ:
        raise InvalidArgument(f"{name} is {variable!r}, which is no environment variable here")
    try:
        seed = int(os.environ[variable], 0)
    except ValueError:
        seed = 0
    if not 1 <= seed < 1 << 64:
        raise InvalidArgument(f"{name} is {variable!r}, whose value must be a whole number from 1 to 2^64 - 1")
    return seed


def check_seed(name: str, seed: Any) -> None:
    """The error does not tell the value, which may be a secret."""
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise InvalidArgument(f"{name} must be a whole number from 0 to 2^64 - 1")


def _options(block_size_tokens: int, namespace: Namespace | None, fast: bool, seed: int, epoch: int) -> Any:
    check_seed("seed", seed)
    names = namespace or Namespace()
    return _c.HashOptions(block_size_tokens=block_size_tokens, fast=fast, seed=seed, **_bytes("salt", names.salt),
                          **_bytes("adapter", names.extra_key), epoch=integer("epoch", epoch, 0, (1 << 64) - 1))


def hash_blocks(tokens: Any, block_size_tokens: int, *, namespace: Namespace | None = None, fast: bool = False,
                seed: int = 0, epoch: int = 0) -> tuple[Int64s, UInt64s]:
    """The chained hashes of the n = len(tokens) // block_size_tokens whole blocks of a prompt: keys [n] for
    SlotAllocator, prefixes [n, 2] for tags and images. fast: xxh3_128 in place of sha256. seed: two seeds share
    nothing; a secret where tenants are not trusted, without which fast is for a single tenant; 0: none. epoch: of the
    weights, as of RequestCache.epoch."""
    array = int32s("tokens", tokens)
    options = _options(block_size_tokens, namespace, fast, seed, epoch)
    blocks = len(array) // block_size_tokens if block_size_tokens > 0 else 0
    keys, prefixes = np.empty(blocks, np.int64), np.empty((blocks, 2), np.uint64)
    calls.hash_blocks(ctypes.addressof(options), address(array), len(array), address(keys), address(prefixes))
    return keys, prefixes


class Hasher(_library.Object):
    """The chained hashes of a request whose tokens come little by little: each token is hashed once."""

    def __init__(self, block_size_tokens: int, *, namespace: Namespace | None = None, fast: bool = False,
                 seed: int = 0, epoch: int = 0) -> None:
        options = _options(block_size_tokens, namespace, fast, seed, epoch)
        super().__init__(calls.hasher_create, calls.hasher_destroy, ctypes.byref(options))
        self.block_size_tokens = block_size_tokens

    def append(self, tokens: Any, media: Sequence[MediaKey] = ()) -> tuple[Int64s, UInt64s]:
        """Appends tokens, and answers keys [n] and prefixes [n, 2] of the blocks that they complete. media: those that
        begin among these tokens; first_token counts from the start of the prompt. Raises InvalidArgument for media
        elsewhere; nothing is appended then."""
        array, rows = int32s("tokens", tokens), media_rows(media)
        room = len(array) // self.block_size_tokens + 1
        keys, prefixes = np.empty(room, np.int64), np.empty((room, 2), np.uint64)
        blocks = ctypes.c_size_t()
        calls.hasher_append(self.handle, address(array), len(array), rows, len(media), address(keys), address(prefixes),
                            room, ctypes.byref(blocks))
        return keys[:blocks.value], prefixes[:blocks.value]

    def reset(self) -> None:
        """Begins another prompt, with the same options."""
        calls.hasher_reset(self.handle)
