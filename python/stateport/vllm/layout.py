# SPDX-License-Identifier: Apache-2.0
"""The content of vLLM's pages: its groups of layers, and where the bytes of a block lie in each layer's tensor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stateport._arrays import Int32s
from stateport.errors import InvalidArgument
from stateport.spec import TensorSpec

KV, STATE, WINDOW = "kv", "state", "window"
_TYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}  # others are copied as bytes


@dataclasses.dataclass(frozen=True)
class PageGroup:
    """Layers that share a block table. number: vLLM's. content: KV, STATE or WINDOW. blocks: the last ones before a
    position that are a part of the state there; of a sliding window there may be several."""

    number: int
    content: str
    layers: tuple[str, ...]
    states: tuple[tuple[tuple[tuple[int, ...], str], ...], ...] = ()  # of each layer: shape and type of its states
    blocks: int = dataclasses.field(default=1, repr=False)  # names of images have it where there are several

    def first_column(self, end: int) -> int:
        """Of the block table: what the state at the end of `end` columns has of it begins there."""
        return max(end - self.blocks, 0)

    def places(self, slot: int, first: int, end: int) -> Int32s:
        """The places in the pool for the columns from `first` on, at least first_column, that the state in `slot` at
        the end of `end` columns has: int32 [end - first]. A slot has `blocks` places, and the last column the last
        one."""
        behind = (slot + 1) * self.blocks
        return np.arange(behind - (end - first), behind, dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """The groups of a hybrid model. All have blocks of block_size_tokens.

    speculative: states of decoding lie in other blocks than those that vLLM offers at the time."""

    block_size_tokens: int
    blocks: int
    groups: tuple[PageGroup, ...]
    speculative: bool

    def of(self, content: str) -> tuple[PageGroup, ...]:
        return tuple(group for group in self.groups if group.content == content)

    def pool(self, content: str) -> tuple[PageGroup, ...]:
        """The groups that the pool of KV, or that of states, has."""
        return self.of(KV) if content == KV else self.of(STATE) + self.windows

    @property
    def state_groups(self) -> tuple[int, ...]:
        return tuple(group.number for group in self.of(STATE))

    @property
    def kv_groups(self) -> tuple[int, ...]:
        return tuple(group.number for group in self.of(KV))

    @property
    def windows(self) -> tuple[PageGroup, ...]:
        return self.of(WINDOW)


def read_layout(kv_cache_config: Any) -> PageLayout:
    """Of vLLM's KVCacheConfig. Raises InvalidArgument for a model without full attention or without recurrent states,
    for states that are not kept at the ends of blocks, and for groups of layers that are neither attention, full or in
    a sliding window, nor states. Groups that vLLM itself does not cache by prefix are left out: at the end of a block
    they hold nothing that a prompt needs."""
    groups, sizes, speculative = [], set(), False
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        specs = [_layer_spec(group.kv_cache_spec, name) for name in group.layer_names]
        if not all(getattr(spec, "prefix_cacheable", True) for spec in specs):
            continue
        sizes |= {spec.block_size for spec in specs}
        if all(hasattr(spec, "shapes") and hasattr(spec, "dtypes") for spec in specs):
            speculative |= any(spec.num_speculative_blocks > 0 for spec in specs)
            groups.append(_state_group(number, tuple(group.layer_names), specs))
        elif all(_is("FullAttentionSpec", spec) for spec in specs):
            groups.append(PageGroup(number, KV, tuple(group.layer_names)))
        elif all(_is("SlidingWindowSpec", spec) for spec in specs):
            groups += _window_groups(number, tuple(group.layer_names), specs)
        else:
            raise InvalidArgument(f"KV cache group {number} is of {type(group.kv_cache_spec).__name__}, and must be of "
                                  "full attention, of a sliding window or of recurrent states")
    lacks = {KV: "full attention", STATE: "recurrent states"}
    for content in lacks.keys() - {group.content for group in groups}:
        raise InvalidArgument(f"the model has no layers of {lacks[content]}: other connectors of vLLM serve it")
    if len(sizes) != 1:
        raise InvalidArgument(f"the KV cache groups have blocks of {sorted(sizes)} tokens, and must have equal ones")
    return PageLayout(sizes.pop(), int(kv_cache_config.num_blocks), tuple(groups), speculative)


def _layer_spec(spec: Any, layer: str) -> Any:
    return spec.kv_cache_specs[layer] if hasattr(spec, "kv_cache_specs") else spec


def _is(kind: str, spec: Any) -> bool:
    return kind in {base.__name__ for base in type(spec).__mro__}


def _window_groups(number: int, layers: tuple[str, ...], specs: Sequence[Any]) -> list[PageGroup]:
    """A state has all blocks that vLLM keeps for a prompt that goes on behind it, by its
    SlidingWindowManager.get_num_skipped_tokens: vLLM finds them in its own cache later. A window of one token has none
    behind the end of a block."""
    kept = {spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0) for spec in specs}
    if len(kept) != 1:
        raise InvalidArgument(f"the layers of KV cache group {number} keep {sorted(kept)} tokens of their windows, and "
                              "must keep equally many")
    blocks = -(-kept.pop() // specs[0].block_size)
    return [PageGroup(number, WINDOW, layers, blocks=blocks)] if blocks else []


def _state_group(number: int, layers: tuple[str, ...], specs: Sequence[Any]) -> PageGroup:
    for spec in specs:
        if getattr(spec, "mamba_cache_mode", "align") != "align":
            raise InvalidArgument(f"KV cache group {number} keeps its states in the mode {spec.mamba_cache_mode!r}, "
                                  "and must keep them at the ends of blocks: start vLLM with --enable-prefix-caching")
    states = tuple(tuple((tuple(shape), str(dtype).removeprefix("torch."))
                         for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)) for spec in specs)
    return PageGroup(number, STATE, layers, states)


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of elements that every block of a layer has: element 0 of block b is element first + b * stride of the
    layer's memory."""

    first: int
    stride: int
    elements: int
    dtype: str

    def spec(self, number: int) -> TensorSpec:
        """As a tensor of a state. Parts differ in their layer, so that their order is theirs."""
        return TensorSpec("recurrent", self.dtype, (self.elements,), layer=number)


def kv_parts(shape: Sequence[int], strides: Sequence[int], dtype: str, blocks: int) -> list[Part]:
    """Of a layer of attention, whose tensor has `blocks` blocks in its first dimension, or an equal number of smaller
    blocks of the kernel for each. shape, strides: in elements. Raises InvalidArgument for another tensor."""
    if not shape or blocks < 1 or shape[0] % blocks or min(shape) < 1:
        raise InvalidArgument(f"a KV tensor has the shape {list(shape)}, and must have a multiple of {blocks} blocks "
                              "in its first dimension")
    pieces = shape[0] // blocks
    dims = [(extent, stride) for extent, stride in zip(shape[1:], strides[1:], strict=True) if extent > 1]
    if pieces > 1:
        dims.append((pieces, strides[0]))
    run, loops = _densest_run(dims)
    return [Part(offset, strides[0] * pieces, run, dtype) for offset in _offsets(loops)]


def _densest_run(dims: Iterable[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """The elements from the first one on that lie without a gap, and the dimensions that repeat them."""
    run = 1
    loops: list[tuple[int, int]] = []
    for extent, stride in sorted(dims, key=lambda dim: dim[1]):
        if stride == run and not loops:
            run *= extent
        else:
            loops.append((extent, stride))
    return run, loops


def _offsets(loops: Sequence[tuple[int, int]]) -> list[int]:
    ranges = [range(0, extent * stride, stride) for extent, stride in loops]
    return sorted(sum(choice) for choice in itertools.product(*ranges))


def state_parts(states: Sequence[tuple[tuple[int, ...], str]], page_stride_bytes: int,
                item_bytes: Sequence[int]) -> list[Part]:
    """Of a layer of states, which lie one behind the other at the beginning of its page. Elements of a part are those
    of its type; types that no state has are copied as bytes. Raises InvalidArgument for states that are not aligned."""
    parts, offset = [], 0
    for (shape, dtype), item in zip(states, item_bytes, strict=True):
        elements = 1
        for extent in shape:
            elements *= extent
        size = elements * item
        unit = item if dtype in _TYPES else 1
        if offset % unit or page_stride_bytes % unit:
            raise InvalidArgument(f"a state of {dtype} lies at byte {offset} of pages of {page_stride_bytes} bytes, "
                                  "which is not aligned to its elements")
        parts.append(Part(offset // unit, page_stride_bytes // unit, size // unit, _TYPES.get(dtype, "int8")))
        offset += size
    return parts


@dataclasses.dataclass(frozen=True)
class PoolSizes:
    """How many blocks of KV and how many states the host memory of a worker has room for."""

    kv_blocks: int
    states: int


def pool_sizes(host_bytes: int, kv_block_bytes: int, state_bytes: int, *, blocks_per_state: int,
               state_share: float = 0.0) -> PoolSizes:
    """Without a share: as many states as KV has multiples of blocks_per_state. Raises InvalidArgument if there is no
    room for a state and two blocks, one of which a cache does not use."""
    states = int(host_bytes * state_share // state_bytes) if state_share else (
        host_bytes // (state_bytes + blocks_per_state * kv_block_bytes))
    states = max(states, 1)
    blocks = (host_bytes - states * state_bytes) // kv_block_bytes
    if blocks < 2:
        raise InvalidArgument(f"host_bytes is {host_bytes:,}, and must have room for a state of {state_bytes:,} bytes "
                              f"and two blocks of KV of {kv_block_bytes:,} bytes")
    return PoolSizes(min(blocks, 2**31 - 1), min(states, 2**31 - 1))
