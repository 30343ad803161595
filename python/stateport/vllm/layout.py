# SPDX-License-Identifier: Apache-2.0
"""The content of vLLM's pages: its groups of layers, and where the bytes of a block lie in each layer's tensor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from stateport.errors import InvalidArgument
from stateport.spec import TensorSpec

KV, STATE = "kv", "state"
_TYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}  # others are copied as bytes


@dataclasses.dataclass(frozen=True)
class PageGroup:
    """Layers that share a block table. number: vLLM's. content: KV or STATE."""

    number: int
    content: str
    layers: tuple[str, ...]
    states: tuple[tuple[tuple[tuple[int, ...], str], ...], ...] = ()  # of each layer: shape and type of its states


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

    @property
    def state_groups(self) -> tuple[int, ...]:
        return tuple(group.number for group in self.of(STATE))

    @property
    def kv_groups(self) -> tuple[int, ...]:
        return tuple(group.number for group in self.of(KV))


def read_layout(kv_cache_config: Any) -> PageLayout:
    """Of vLLM's KVCacheConfig. Raises InvalidArgument for a model without recurrent states, for states that are not
    kept at the ends of blocks, and for groups of layers that are neither full attention nor states. Groups that vLLM
    itself does not cache by prefix are left out: at the end of a block they hold nothing that a prompt needs."""
    groups, sizes, speculative = [], set(), False
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        specs = [_layer_spec(group.kv_cache_spec, name) for name in group.layer_names]
        if not all(getattr(spec, "prefix_cacheable", True) for spec in specs):
            continue
        sizes |= {spec.block_size for spec in specs}
        if all(hasattr(spec, "shapes") and hasattr(spec, "dtypes") for spec in specs):
            speculative |= any(spec.num_speculative_blocks > 0 for spec in specs)
            groups.append(_state_group(number, tuple(group.layer_names), specs))
        elif all("FullAttentionSpec" in {base.__name__ for base in type(spec).__mro__} for spec in specs):
            groups.append(PageGroup(number, KV, tuple(group.layer_names)))
        else:
            raise InvalidArgument(f"KV cache group {number} is of {type(group.kv_cache_spec).__name__}, and must be of "
                                  "full attention or of recurrent states")
    if len({group.content for group in groups}) < 2:
        raise InvalidArgument("the model has layers of full attention or of recurrent states alone: other connectors "
                              "of vLLM serve it")
    if len(sizes) != 1:
        raise InvalidArgument(f"the KV cache groups have blocks of {sorted(sizes)} tokens, and must have equal ones")
    return PageLayout(sizes.pop(), int(kv_cache_config.num_blocks), tuple(groups), speculative)


def _layer_spec(spec: Any, layer: str) -> Any:
    return spec.kv_cache_specs[layer] if hasattr(spec, "kv_cache_specs") else spec


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
