# SPDX-License-Identifier: Apache-2.0
"""Prefixes that a request cache keeps or loads although no request runs that needs them."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import Records
from stateport._library import calls
from stateport._prompts import prompt_of
from stateport.cache_options import plain
from stateport.cache_tiers import answered_transfers
from stateport.hashing import MediaKey, Namespace
from stateport.tier_options import MEDIA


@dataclasses.dataclass(frozen=True)
class PinnedPrefix:
    """pin: its number; 0: nothing was pinned. tokens: length of the longest cached prefix, which the pin keeps; without
    a pin: that it would have kept. refused: it is cached and was not pinned: all pins are taken, pinned_bytes would be
    exceeded, or too little memory would be left."""

    pin: int
    tokens: int
    refused: bool


@dataclasses.dataclass(frozen=True)
class Prefetch:
    """prefetch: its number; 0: nothing is on its way. cached_tokens: length of the longest prefix that is cached on the
    device already. load_tokens, load_bytes, load_medium: the load that was begun, as of StartedRequest; "device": none.
    refused: all prefetches are taken, so no tier was searched. transfers: TRANSFER [n], see CacheTiers."""

    prefetch: int
    cached_tokens: int
    load_tokens: int
    load_bytes: int
    load_medium: str
    refused: bool
    transfers: Records = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class PrefixUsage:
    """Pins and prefetches: how much they hold now, and their numbers since the cache was made. pinned_kv_tokens: of
    whole blocks; pinned_states: in columns blocks of states; contents that several pins keep are counted once.
    prefetches: under way. ended_leases: pins that ended by their lease. refused_prefetches: not begun, or without room
    for their load. prefetched_tokens: that completed prefetches added to the cached prefixes of the device."""

    pins: int
    pinned_kv_tokens: int
    pinned_states: int
    pinned_bytes: int
    prefetches: int
    made_pins: int
    refused_pins: int
    ended_leases: int
    made_prefetches: int
    refused_prefetches: int
    prefetched_tokens: int


class CachePrefixes(_library.Object):
    """The part of RequestCache for pins and prefetches. A pin holds a prefix as a running request holds its hit:
    neither its KV nor its state is evicted. A prefetch loads a prefix from the tiers; when its load has ended
    (`settle`) the prefix is cached on the device like any other. Neither takes a request number nor a live slot.
    Pins and loads of prefetches always leave the memory that one request of max_request_tokens needs. Contents that
    are forgotten end their pins. Prompts have at most max_request_tokens - 1 tokens. These methods raise
    InvalidState without CacheOptions.prefixes."""

    def pin(self, tokens: Any, *, namespace: Namespace | None = None, media: Sequence[MediaKey] = (),
            now_s: float = 0.0, lease_s: float = 0.0) -> PinnedPrefix:
        """Pins the longest cached prefix of the prompt (int32 [n]), also all of it. The pin ends with `unpin`, or with
        the first start, pin or prefetch at least lease_s seconds later; 0: it has no lease."""
        prompt, _keep = prompt_of(tokens, namespace=namespace, media=media, now_s=now_s)
        out = _c.PinnedPrefix()
        calls.request_cache_pin(self.handle, ctypes.byref(prompt), lease_s, ctypes.byref(out))
        return PinnedPrefix(out.pin, out.tokens, bool(out.refused))

    def unpin(self, pin: int) -> bool:
        """The pin ends. False: it had ended before, by its lease or because its contents were forgotten. Raises
        InvalidArgument for a number that no pin has had."""
        out = ctypes.c_uint8()
        calls.request_cache_unpin(self.handle, integer("pin", pin, 0, (1 << 64) - 1), ctypes.byref(out))
        return bool(out.value)

    def prefetch(self, tokens: Any, *, namespace: Namespace | None = None, media: Sequence[MediaKey] = (),
                 now_s: float = 0.0, search: str = "everywhere") -> Prefetch:
        """Loads the longest prefix of the prompt that the tiers have, if it is longer than the one on the device and
        worth its load. The load takes memory that is free or can be evicted. search: "everywhere" or "known"."""
        prompt, _keep = prompt_of(tokens, namespace=namespace, media=media, now_s=now_s, search=search)
        out = _c.Prefetch()
        with self._turn:
            calls.request_cache_prefetch(self.handle, ctypes.byref(prompt), ctypes.byref(out))
            return Prefetch(out.prefetch, out.cached_tokens, out.load_tokens, out.load_bytes, MEDIA[out.load_medium],
                            bool(out.refused), answered_transfers(out))

    def prefetching(self, prefetch: int) -> bool:
        """The prefetch is under way. Raises InvalidArgument for a number that no prefetch has had."""
        out = ctypes.c_uint8()
        number = integer("prefetch", prefetch, 0, (1 << 64) - 1)
        calls.request_cache_prefetching(self.handle, number, ctypes.byref(out))
        return bool(out.value)

    @property
    def prefix_usage(self) -> PrefixUsage:
        out = _c.PrefixUsage()
        calls.request_cache_prefix_usage(self.handle, ctypes.byref(out))
        usage: PrefixUsage = plain(PrefixUsage, out)
        return usage
