# SPDX-License-Identifier: Apache-2.0
"""Events of the cache on the host and below it, for vLLM's publisher."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from stateport._arrays import Int32s, UInt64s
from stateport.hashing import Hasher, MediaKey
from stateport.kv_events import KvEventEncoder
from stateport.request_cache import RequestCache
from stateport.vllm.layout import PageLayout
from stateport.vllm.prompts import media_of, namespace_of

_AT_ONCE = 4096


@dataclasses.dataclass
class _Names:
    """The names of a request's blocks: prefixes [n, 2]. hasher has taken tokens and media of these blocks."""

    made_for: tuple[int, int]
    hasher: Hasher
    tokens: Int32s
    media: list[MediaKey]
    prefixes: UInt64s

    def begins(self, made_for: tuple[int, int], tokens: Int32s, media: Sequence[MediaKey]) -> bool:
        """Whether these are more tokens of the same, or fewer: a request that takes more input may change its last
        ones."""
        shared = min(len(tokens), len(self.tokens))
        return (made_for == self.made_for and np.array_equal(tokens[:shared], self.tokens[:shared]) and
                [key for key in self.media if key.first_token < shared] ==
                [key for key in media if key.first_token < shared])


class PoolEvents:
    """Names the contents of a cache by vLLM's block hashes, and collects changes. Pools on the host are "CPU".

    KV counts as that of the first group of attention, a state as that of the first group of states: the pools have all
    groups of a block, or none."""

    def __init__(self, layout: PageLayout, hash_seed: int) -> None:
        self._block, self._hash_seed = layout.block_size_tokens, hash_seed
        self._encoder = KvEventEncoder(
            "vllm", block_size_tokens=self._block, shared=True, kv_group=layout.kv_groups[0],
            state_groups=layout.state_groups[:1], media={"device": "CPU", "host": ""})
        self._names: dict[str, _Names] = {}  # by request

    def name(self, request: Any, tokens: Int32s, resets: int, epoch: int) -> None:
        """A prompt that the cache has taken, or the first tokens of a request. Each token of a request is hashed once.
        Without hashes of vLLM its contents have no names."""
        hashes = _block_hashes(request, len(tokens), self._block)
        if not hashes:
            return
        prefixes = self._prefixes(request, tokens[:len(hashes) * self._block], resets, epoch)
        lora = getattr(request, "lora_request", None)
        self._encoder.name(prefixes, tokens, hashes=hashes, lora_id=getattr(lora, "adapter_id", None),
                           lora_name=getattr(lora, "lora_name", None), salt=getattr(request, "cache_salt", None),
                           session_id=getattr(request, "session_id", None))

    def _prefixes(self, request: Any, tokens: Int32s, resets: int, epoch: int) -> UInt64s:
        """tokens: of whole blocks."""
        made_for, media = (resets, epoch), media_of(request, len(tokens))
        known = self._names.get(request.request_id)
        if known is None or not known.begins(made_for, tokens, media):
            self.ended(request.request_id)
            hasher = Hasher(self._block, namespace=namespace_of(request, resets), seed=self._hash_seed, epoch=epoch)
            known = _Names(made_for, hasher, tokens[:0], [], np.empty((0, 2), np.uint64))
            self._names[request.request_id] = known
        done = len(known.tokens)
        if len(tokens) > done:
            _, more = known.hasher.append(tokens[done:], [key for key in media if key.first_token >= done])
            known.prefixes = np.concatenate([known.prefixes, more])
            known.tokens, known.media = tokens, media
        return known.prefixes[:len(tokens) // self._block]

    def ended(self, request_id: str) -> None:
        """No more tokens of the request are named."""
        known = self._names.pop(request_id, None)
        if known is not None:
            known.hasher.close()

    def take(self, cache: RequestCache) -> list[dict[str, Any]]:
        """All changes since the last call."""
        while len(events := cache.take_events(_AT_ONCE)):
            self._encoder.add(events)
        return self._encoder.take_events()


def _block_hashes(request: Any, tokens: int, block: int) -> Sequence[bytes]:
    """vLLM's hash of each whole block of the first tokens: of its last part, if vLLM hashes parts of blocks. Empty: it
    hashes none."""
    hashes, known = getattr(request, "block_hashes", None) or (), len(request.all_token_ids)
    for parts in range(1, block + 1):
        if block % parts == 0 and hashes and known // (block // parts) == len(hashes):
            return [bytes(value) for value in hashes[parts - 1::parts]][:tokens // block]
    return ()


def of_vllm(events: Iterable[dict[str, Any]]) -> list[Any]:
    """As vLLM's own classes."""
    classes, convert = _vllm()
    out = []
    for event in events:
        fields = {name: value for name, value in event.items() if name != "type"}
        fields["block_hashes"] = [convert(name) for name in event["block_hashes"]]
        if event.get("parent_block_hash") is not None:
            fields["parent_block_hash"] = convert(event["parent_block_hash"])
        out.append(classes[event["type"]](**fields))
    return out


@functools.cache
def _vllm() -> tuple[dict[str, Any], Callable[[bytes], int | bytes]]:
    """Classes by the names of events, and the hash of a block as vLLM announces it."""
    from vllm.distributed import kv_events
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    class StateportBlockStored(kv_events.BlockStored, tag="BlockStored"):  # type: ignore[misc, call-arg]
        """With the keys that vLLM does not know."""

        component_types: list[str] | None = None
        state_tokens: int | None = None

    return {"BlockStored": StateportBlockStored, "BlockRemoved": kv_events.BlockRemoved}, maybe_convert_block_hash
