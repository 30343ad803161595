# SPDX-License-Identifier: Apache-2.0
"""The memory of cached states and KV, and copies between it and a DynamicCache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from stateport.store import StateStore
from stateport.transformers.layout import CacheLayout, StateTensor, fill


class Stores:
    """Two stores over torch tensors: of states (a slot is one state) and of KV (a slot is one page).

    slots, pages: of each. Raises torch's own exception if there is no memory."""

    def __init__(self, config: Any, layout: CacheLayout, page_tokens: int, slots: int, pages: int) -> None:
        self._config, self._layout = config, layout
        self.state_spec, self.page_spec = layout.state_spec(), layout.page_spec(page_tokens)

        def pool(tensor: Any, count: int, shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty((count, *shape), dtype=tensor.dtype, device=layout.device)

        self._states = [pool(tensor, slots, spec.memory_shape())
                        for tensor, spec in zip(layout.states, self.state_spec, strict=True)]
        self._kv = [pool(tensor, pages, spec.memory_shape())
                    for tensor, spec in zip(layout.kv, self.page_spec, strict=True)]
        self.states = StateStore.view(self.state_spec, self._states)
        self.pages = StateStore.view(self.page_spec, self._kv)
        # By token: [pages * page_tokens, heads, dim].
        self._tokens = [memory.view(-1, tensor.heads, tensor.dim)
                        for memory, tensor in zip(self._kv, layout.kv, strict=True)]

    def close(self, *, scrub: bool = False) -> None:
        """Gives the memory back once nothing else uses it. scrub: after it was set to zero."""
        for memory in (*self._states, *self._kv) if scrub else ():
            memory.zero_()
        self.states.close()
        self.pages.close()
        self._states, self._kv, self._tokens = [], [], []

    @property
    def tokens(self) -> int:
        """For whose KV there is room."""
        return int(self._tokens[0].shape[0])

    def restore(self, slot: int, kv: np.ndarray[Any, Any]) -> DynamicCache:
        """A DynamicCache with the state of `slot` and the KV of the tokens that lie at kv [tokens]."""
        places = self._places(kv)
        states = [memory[slot].reshape(1, *tensor.shape)
                  for memory, tensor in zip(self._states, self._layout.states, strict=True)]
        # [tokens, heads, dim] → [1, heads, tokens, dim]
        rows = [memory.index_select(0, places).transpose(0, 1).unsqueeze(0).contiguous() for memory in self._tokens]
        return fill(self._config, self._layout, states, rows)

    def save_state(self, cache: DynamicCache, slot: int) -> None:
        """Copies the recurrent tensors of a cache to `slot`."""
        for memory, tensor in zip(self._states, self._layout.states, strict=True):
            memory[slot].copy_(_state(cache, tensor).reshape(memory.shape[1:]))

    def save_kv(self, cache: DynamicCache, first: int, kv: np.ndarray[Any, Any]) -> None:
        """Copies the KV of tokens [first, first + n) of a cache to the places kv [n]."""
        places = self._places(kv)
        for memory, tensor in zip(self._tokens, self._layout.kv, strict=True):
            held: torch.Tensor = getattr(cache.layers[tensor.layer], tensor.which)
            memory.index_copy_(0, places, held[0, :, first:first + len(kv)].transpose(0, 1))

    def _places(self, kv: np.ndarray[Any, Any]) -> torch.Tensor:
        places = torch.from_numpy(kv.astype(np.int64))
        if self._layout.device.type == "cpu":
            return places
        # From pinned memory the copy is only enqueued: a pass does not wait for the one before.
        return places.pin_memory().to(self._layout.device, non_blocking=True)


def _state(cache: DynamicCache, tensor: StateTensor) -> torch.Tensor:
    layer = cache.layers[tensor.layer]
    held: torch.Tensor = (layer.conv_states if tensor.kind == "conv" else layer.recurrent_states)[0]
    return held[0]


def kv_bytes_per_token(layout: CacheLayout) -> int:
    """Of all attention layers."""
    return sum(tensor.heads * tensor.dim * tensor.dtype.itemsize for tensor in layout.kv)


def state_bytes(layout: CacheLayout) -> int:
    """Of one state."""
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in layout.states)
