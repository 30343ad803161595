# SPDX-License-Identifier: Apache-2.0
"""The tensors that a DynamicCache keeps of a sequence: their names in its layers, how they are read, and how they are
put back."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from stateport.spec import TensorSpec
from stateport.transformers.errors import UnsupportedModel

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}
_STATE_EXTENTS_MAX = 3  # of a recurrent tensor in a StateSpec
# Attributes of a layer: dictionaries of tensors [batch, …] by the index of a state.
_STATES = ("conv_states", "recurrent_states")
# Attributes of a layer: tensors with an element for each token. The axes of the batch and of the tokens.
_TOKENS = {"keys": (0, 2), "values": (0, 2), "indexer_keys": (0, 1), "indexer_position_ids": (1, 2)}
_SHAPES = {"keys": "[1, heads, {}, dim]", "values": "[1, heads, {}, dim]", "indexer_keys": "[1, {}, dim]",
           "indexer_position_ids": "[dims, 1, {}]"}  # by the number of tokens
_WINDOWS = ("keys", "values")  # of a layer with a sliding window: they have the last tokens alone


@dataclasses.dataclass(frozen=True)
class StateTensor:
    """A tensor of a layer that has one size after any number of tokens.

    name, index: the attribute of the layer, and the index in it. shape: without the batch. A sliding window is
    [heads, window - 1, dim] of `keys` and of `values`: the last tokens come last, and zeros before the first token."""

    layer: int
    name: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_window(self) -> bool:
        """Whether the tensor has the last keys or values of a sliding window."""
        return self.name in _WINDOWS

    @property
    def kind(self) -> str:
        """For messages: "conv", "recurrent" or "window"; with the index of one of several states."""
        kind = "window" if self.is_window else self.name.removesuffix("_states")
        return f"{kind}[{self.index}]" if self.index else kind

    def spec(self, layer: int) -> TensorSpec:
        """Of one slot. layer: its number in the StateSpec."""
        if self.name == "conv_states" and len(self.shape) == 2 and self.dtype in _DTYPES:
            dim, window = self.shape
            return TensorSpec("conv", _DTYPES[self.dtype], (window, dim), layer=layer, conv_layout="ds")
        return _spec(self.shape, self.dtype, layer)

    def read(self, cache: DynamicCache) -> torch.Tensor:
        """[batch, *shape] of the cache's own memory; of a window only the tokens that there are."""
        held = getattr(cache.layers[self.layer], self.name)
        found: torch.Tensor = held if self.is_window else held[self.index]
        return found

    def save(self, cache: DynamicCache, row: int, slot: torch.Tensor) -> None:
        """Copies one row to `slot`, which has as many elements as `shape`."""
        held = self.read(cache)[row]
        if self.is_window:
            absent = self.shape[1] - held.shape[1]
            slot = slot.view(self.shape)
            slot[:, :absent].zero_()
            slot = slot[:, absent:]
        slot.copy_(held.reshape(slot.shape))


@dataclasses.dataclass(frozen=True)
class KvTensor:
    """A tensor of a layer that grows by each token. name: the attribute of the layer. shape: of one token."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def spec(self, layer: int, page_tokens: int) -> TensorSpec:
        """Of one page: [page_tokens, *shape]."""
        return _spec((page_tokens, *self.shape), self.dtype, layer)

    def read(self, cache: DynamicCache) -> torch.Tensor:
        """[batch, tokens, *shape], a view of the cache's own memory."""
        held: torch.Tensor = getattr(cache.layers[self.layer], self.name)
        return held.movedim(_TOKENS[self.name], (0, 1))


def _spec(shape: tuple[int, ...], dtype: torch.dtype, layer: int) -> TensorSpec:
    """Elements that no store has a name for are kept as their bytes."""
    name = _DTYPES.get(dtype, "int8")
    if dtype not in _DTYPES:
        shape = (*shape[:-1], shape[-1] * dtype.itemsize)
    while len(shape) > _STATE_EXTENTS_MAX:
        shape = (shape[0] * shape[1], *shape[2:])
    return TensorSpec("recurrent", name, shape, layer=layer)


def bytes_of(tensors: Sequence[StateTensor | KvTensor]) -> int:
    """Of one state, or of the KV of one token."""
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)


# --- What a layer has ------------------------------------------------------------------------------------------------

def tensors_of(layer: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yields (attribute, index, tensor) of each tensor that a restore puts back. A tensor without elements is none."""
    for name in _STATES:
        for index, tensor in getattr(layer, name, {}).items():
            if tensor is not None:
                yield name, index, tensor
    for name in _TOKENS:
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.numel() > 0:
            yield name, 0, tensor


def states_of(architecture: str, number: int, layer: Any, tokens: int) -> list[StateTensor]:
    """The states of a layer that has seen `tokens` tokens. Raises UnsupportedModel."""
    found = []
    for name, index, tensor in tensors_of(layer):
        shape = tuple(tensor.shape[1:])
        if name in _WINDOWS and is_sliding(layer):
            window = layer.sliding_window - 1
            _require_tokens(architecture, number, name, tensor, min(tokens, window))
            shape = (tensor.shape[1], window, tensor.shape[3])
        elif name not in _STATES:
            continue
        found.append(StateTensor(number, name, index, shape, tensor.dtype))
    if hasattr(layer, _STATES[0]) and all(tensor.is_window for tensor in found):
        raise UnsupportedModel(f"{architecture} leaves layer {number} of its DynamicCache empty: it keeps state "
                               "elsewhere")
    return found


def kv_of(architecture: str, number: int, layer: Any, tokens: int) -> list[KvTensor]:
    """The KV of a layer that has seen `tokens` tokens. Raises UnsupportedModel."""
    found = []
    for name, _, tensor in tensors_of(layer):
        if name in _STATES or (name in _WINDOWS and is_sliding(layer)):
            continue
        _require_tokens(architecture, number, name, tensor, tokens)
        shape = tensor.movedim(_TOKENS[name], (0, 1)).shape[2:]
        found.append(KvTensor(number, name, tuple(shape), tensor.dtype))
    return found


def is_sliding(layer: Any) -> bool:
    """Whether the layer keeps only its last keys and values."""
    return bool(getattr(layer, "is_sliding", False))


def _require_tokens(architecture: str, number: int, name: str, tensor: torch.Tensor, tokens: int) -> None:
    batch_axis, token_axis = _TOKENS[name]
    wanted = _SHAPES[name].format(tokens)
    if (tensor.ndim != wanted.count(",") + 1 or tensor.shape[batch_axis] != 1
            or tensor.shape[token_axis] != tokens):
        raise UnsupportedModel(f"{architecture} has {name} of the shape {list(tensor.shape)} in layer {number}, and "
                               f"must have {wanted}")


def require_all_restored(architecture: str, number: int, layer: Any, restored: Any) -> None:
    """Raises UnsupportedModel that names an attribute of `layer` which `restored` lacks: a tensor with an unknown name,
    or a number that differs."""
    known = {id(tensor) for _, _, tensor in tensors_of(layer)}
    for name, held in vars(layer).items():
        other = getattr(restored, name, None)
        for tensor in _within(held):
            if tensor.numel() > 0 and id(tensor) not in known and not _is_constant(held, other):
                raise UnsupportedModel(f"{architecture} keeps {name} in layer {number} of its DynamicCache, which this "
                                       "adapter does not restore")
        if isinstance(held, int) and held != other:
            raise UnsupportedModel(f"{architecture} keeps {name} = {held} in layer {number} of its DynamicCache, and a "
                                   f"restored layer has {other}")


def _is_constant(held: Any, other: Any) -> bool:
    """Whether a tensor is one number that every new layer has: the size of a window, for example."""
    return (isinstance(held, torch.Tensor) and isinstance(other, torch.Tensor) and held.ndim == 0
            and torch.equal(held, other))


def _within(held: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, and of the containers in it."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _within(value)
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from _within(value)


# --- A cache from tensors --------------------------------------------------------------------------------------------

def layers_alike(architecture: str, cache: DynamicCache, config: Any) -> tuple[int, ...]:
    """For each layer that the model appended to a cache of its configuration, the number of a layer of the
    configuration that has the same class and sizes. Raises UnsupportedModel if there is none."""
    made = [_made(layer) for layer in DynamicCache(config=config).layers]
    appended = cache.layers[len(made):]
    for layer in appended:
        if _made(layer) not in made:
            raise UnsupportedModel(f"{architecture} appends a {type(layer).__name__} to its DynamicCache, which is "
                                   "like no layer of its configuration")
    return tuple(made.index(_made(layer)) for layer in appended)


def _made(layer: Any) -> tuple[Any, ...]:
    return type(layer), getattr(layer, "sliding_window", 0), getattr(layer, "number_of_states", 0)


def new_cache(config: Any, appended: tuple[int, ...]) -> DynamicCache:
    """An empty cache that has the layers which the model appends. appended: of layers_alike."""
    cache = DynamicCache(config=config)
    cache.layers += [copy.deepcopy(cache.layers[number]) for number in appended]
    return cache


def restore_layer(cache: DynamicCache, number: int, held: dict[tuple[str, int], torch.Tensor], tokens: int) -> None:
    """Puts the tensors of one layer into an empty one, by (attribute, index): states [batch, *shape], KV
    [batch, tokens, *shape]. They go in through the cache's own methods: a layer whose tensors are only set takes its
    next tokens for a prompt's first."""
    layer = cache.layers[number]
    for (name, index), value in held.items():
        if name == "conv_states":
            cache.update_conv_state(value, number, index)
        elif name == "recurrent_states":
            cache.update_recurrent_state(value, number, index)
        elif name == "indexer_keys":
            cache.update_indexer(_as_held(name, value), number)
        elif name == "indexer_position_ids":
            layer.indexer_position_ids = _as_held(name, value)
    if ("keys", 0) not in held:
        return
    if is_sliding(layer):
        keys, values = (held[name, 0][:, :, max(layer.sliding_window - 1 - tokens, 0):] for name in _WINDOWS)
        cache.update(keys, values, number)
        layer.cumulative_length = tokens
        return
    keys = _as_held("keys", held["keys", 0])
    values = _as_held("values", held["values", 0]) if ("values", 0) in held else keys[..., :0]
    cache.update(keys, values, number)


def _as_held(name: str, value: torch.Tensor) -> torch.Tensor:
    return value.movedim((0, 1), _TOKENS[name]).contiguous()
