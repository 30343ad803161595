# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model's DynamicCache for one sequence, found by running the model over a few tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

from stateport.spec import StateSpec, TensorSpec
from stateport.transformers.errors import UnsupportedModel

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}
_STATE_EXTENTS_MAX = 3  # of a recurrent tensor in a StateSpec
_PROBE_TOKENS = (1, 2, 3, 4, 5, 6)
_PROBE_PART = 3  # tokens after which the probe goes on from a cache
_OTHER_TOKENS = (6, 4, 2, 5, 3, 1)
_NOISES = 4.0  # a copy may differ by this multiple of the difference between two runs of the same passes
# Their scan of several tokens begins with the empty state whatever the cache holds (transformers 5.24, Mamba-1): behind
# a cached prefix they run one token at a time.
_STEPWISE = ("jamba",)
CACHE_ARGUMENTS = frozenset(("cache", "past_key_values"))


@dataclasses.dataclass(frozen=True)
class StateTensor:
    """One recurrent tensor of a layer. kind "conv": shape (dim, window); "recurrent": as the layer has it, without the
    batch."""

    layer: int
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class KvTensor:
    """The keys or the values of one attention layer, [1, heads, tokens, dim]. which: "keys" or "values"."""

    layer: int
    which: str
    heads: int
    dim: int
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    """All tensors of one sequence, in the order of the stores: by layer, conv before recurrent, keys before values.

    stepwise: behind a cached prefix the model must run one token at a time."""

    architecture: str
    device: torch.device
    stepwise: bool
    states: tuple[StateTensor, ...]
    kv: tuple[KvTensor, ...]

    def state_spec(self) -> StateSpec:
        """Of one state: the recurrent tensors of all layers."""
        return StateSpec([_state_tensor(index, tensor) for index, tensor in _numbered(self.states)])

    def page_spec(self, page_tokens: int) -> StateSpec:
        """Of one page of KV: [page_tokens, heads, dim] of each tensor."""
        return StateSpec([
            TensorSpec("recurrent", _DTYPES[tensor.dtype], (page_tokens, tensor.heads, tensor.dim), layer=index)
            for index, tensor in enumerate(self.kv)
        ])


def probe(model: Any) -> CacheLayout:
    """Runs the model over a few tokens, and behind them from its own cache, from a restored copy, and from wrong ones.

    The copy must answer as the cache that it was made from: bit for bit, or, where the model itself answers the same
    passes differently each time, no further from it than that. Each wrong cache must answer further from it. A
    prompt in two parts may differ from the prompt in one part by any amount: scores of 16 bits choose other experts
    there. Raises UnsupportedModel if the model does not keep everything that a sequence needs in the recurrent and
    attention layers of a DynamicCache."""
    architecture = type(model).__name__
    if not CACHE_ARGUMENTS & inspect.signature(model.forward).parameters.keys():
        raise UnsupportedModel(f"{architecture} takes no DynamicCache: its forward has none of the arguments "
                               f"{', '.join(sorted(CACHE_ARGUMENTS))}")
    ids, others = (torch.tensor([tokens], device=next(model.parameters()).device)
                   for tokens in (_PROBE_TOKENS, _OTHER_TOKENS))
    cache = _begun(model, ids)
    layout = _read(architecture, cache, getattr(model.config, "model_type", "") in _STEPWISE)
    copied = _copied(cache, layout)
    wanted = _answer(model, ids, cache, layout)
    # The other prompt runs last before the copies answer: state that a model keeps elsewhere belongs to it then.
    other = _copied(_begun(model, others), layout)

    def apart(states: list[torch.Tensor], kv: list[torch.Tensor]) -> float:
        held = fill(model.config, layout, [state.clone() for state in states], [part.clone() for part in kv])
        return _apart(_answer(model, ids, held, layout), wanted)

    restored, noise = apart(*copied), 0.0
    if restored != 0.0:
        noise = _NOISES * _apart(_answer(model, ids, _begun(model, ids), layout), wanted)
    if not restored <= noise:
        raise UnsupportedModel(f"{architecture} answers differently from a copy of its DynamicCache, by {restored:g} "
                               f"(its own answers differ by up to {noise:g}): it keeps state elsewhere")
    for fault, wrong in _wrong(layout, copied, other):
        if not apart(*wrong) > noise:
            raise UnsupportedModel(f"{architecture} answers the same from a DynamicCache {fault}, so that a wrong one "
                                   "cannot be told from a right one: it keeps state elsewhere, or does not read it")
    return layout


_Held = tuple[list[torch.Tensor], list[torch.Tensor]]  # states and KV, in the order of the layout


def _wrong(layout: CacheLayout, right: _Held, other: _Held) -> Iterator[tuple[str, _Held]]:
    """(fault, cache): wrong caches, from which the model must not answer as from the right one."""
    (states, kv), (other_states, other_kv) = right, other
    yield "with the states of another prompt", (other_states, kv)
    for kind in sorted({tensor.kind for tensor in layout.states}):
        yield f"whose {kind} states are zero", ([
            torch.zeros_like(state) if tensor.kind == kind else state
            for tensor, state in zip(layout.states, states, strict=True)], kv)
    yield "with the keys and values of another prompt", (states, other_kv)


def _begun(model: Any, ids: torch.Tensor) -> DynamicCache:
    """A cache of the first part of these tokens."""
    cache = DynamicCache(config=model.config)
    _run(model, ids, cache, [_PROBE_PART])
    return cache


def _answer(model: Any, ids: torch.Tensor, cache: DynamicCache, layout: CacheLayout) -> torch.Tensor:
    """The logits behind the second part."""
    count = ids.shape[1]
    return _run(model, ids, cache, list(range(_PROBE_PART + 1, count + 1)) if layout.stepwise else [count])


def _apart(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference; 0.0: all bits are equal. Not a number where one of them is none."""
    return 0.0 if torch.equal(logits, wanted) else float((logits - wanted).abs().max())


def cache_argument(model: Any) -> str:
    """The name of the cache among the arguments of the model's forward: `cache` from transformers 5.24 on, before that
    `past_key_values`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def run(model: Any, ids: torch.Tensor, cache: DynamicCache, begin: int, end: int) -> torch.Tensor:
    """Runs the tokens [begin, end) of ids [1, tokens], which follow those that the cache holds. Answers logits
    [1, tokens, vocabulary], of the last token at least."""
    accepted = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {cache_argument(model): cache}
    if "logits_to_keep" in accepted:
        options["logits_to_keep"] = 1
    if "position_ids" in accepted:  # some models count from 0 without them
        options["position_ids"] = torch.arange(begin, end, device=ids.device).unsqueeze(0)
    with torch.no_grad():
        out = model(input_ids=ids[:, begin:end], use_cache=True, **options)
    logits: torch.Tensor = out.logits
    return logits


def _run(model: Any, ids: torch.Tensor, cache: DynamicCache, ends: list[int]) -> torch.Tensor:
    """The logits of the last token, after passes that end there."""
    begin = 0
    with contextlib.suppress(ValueError):  # nothing is in the cache
        begin = cache.get_seq_length()
    try:
        for end in ends:
            logits, begin = run(model, ids, cache, begin, end), end
    except (TypeError, ValueError) as error:
        raise UnsupportedModel(f"{type(model).__name__} does not run with a DynamicCache: {error}") from error
    return logits[0, -1].float()


def _read(architecture: str, cache: DynamicCache, stepwise: bool) -> CacheLayout:
    states: list[StateTensor] = []
    kv: list[KvTensor] = []
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "is_sliding", False):
            raise UnsupportedModel(f"{architecture} has sliding-window attention (layer {index}), whose KV is no "
                                   "prefix")
        if hasattr(layer, "conv_states"):
            states += _states_of(architecture, index, layer)
        kv += _kv_of(architecture, index, layer)
        _require_all_read(architecture, index, layer)
    if not states:
        raise UnsupportedModel(f"{architecture} has no recurrent layers: its KV alone is cached by other means")
    if not kv:
        raise UnsupportedModel(f"{architecture} has no attention layers in its DynamicCache")
    devices = {tensor.device for tensor in _tensors(cache)}
    if len(devices) > 1:
        raise UnsupportedModel(f"{architecture} lies on several devices ({', '.join(sorted(map(str, devices)))}), and "
                               "must lie on one")
    for dtype in {tensor.dtype for tensor in _tensors(cache)}:
        if dtype not in _DTYPES:
            raise UnsupportedModel(f"{architecture} has a cache of {dtype}, which no store holds")
    return CacheLayout(architecture, devices.pop(), stepwise, tuple(states), tuple(kv))


def _kv_of(architecture: str, index: int, layer: Any) -> list[KvTensor]:
    found = []
    for which in ("keys", "values"):
        tensor = getattr(layer, which, None)
        if tensor is None:
            continue
        if tensor.ndim != 4 or tensor.shape[0] != 1 or tensor.shape[2] != _PROBE_PART:
            raise UnsupportedModel(f"{architecture} has {which} of the shape {list(tensor.shape)} in layer {index} "
                                   f"after {_PROBE_PART} tokens, and must have [1, heads, {_PROBE_PART}, dim]")
        found.append(KvTensor(index, which, tensor.shape[1], tensor.shape[3], tensor.dtype))
    return found


def _require_all_read(architecture: str, index: int, layer: Any) -> None:
    """A cache that is restored has the tensors that are read, and lacks others that the layer keeps."""
    read = {id(tensor) for tensor in _tensors_of(layer)}
    for name, held in vars(layer).items():
        if any(tensor.numel() > 0 and id(tensor) not in read for tensor in _within(held)):
            raise UnsupportedModel(f"{architecture} keeps {name} in layer {index} of its DynamicCache, which this "
                                   "adapter does not restore")


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


def _states_of(architecture: str, index: int, layer: Any) -> list[StateTensor]:
    if layer.number_of_states != 1:
        raise UnsupportedModel(f"{architecture} has {layer.number_of_states} states in layer {index}, and must have "
                               "one")
    found = []
    for kind, tensor in (("conv", layer.conv_states[0]), ("recurrent", layer.recurrent_states[0])):
        if tensor is not None:
            found.append(StateTensor(index, kind, tuple(tensor.shape[1:]), tensor.dtype))
    if not found:
        raise UnsupportedModel(f"{architecture} leaves layer {index} of its DynamicCache empty: it keeps state "
                               "elsewhere")
    return found


def _tensors(cache: DynamicCache) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in _tensors_of(layer)]


def _tensors_of(layer: Any) -> list[torch.Tensor]:
    found = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values(),
             getattr(layer, "keys", None), getattr(layer, "values", None)]
    return [tensor for tensor in found if tensor is not None]


def repeated(cache: DynamicCache, layout: CacheLayout, count: int, config: Any) -> DynamicCache:
    """A cache whose `count` rows are each a copy of the one row of `cache`."""
    if cache.get_seq_length() == 0:
        return DynamicCache(config=config)
    return fill(config, layout, *_copied(cache, layout, count))


def _copied(cache: DynamicCache, layout: CacheLayout, count: int = 1) -> _Held:
    def state(tensor: StateTensor) -> torch.Tensor:
        layer = cache.layers[tensor.layer]
        held: torch.Tensor = (layer.conv_states if tensor.kind == "conv" else layer.recurrent_states)[0]
        return held.repeat_interleave(count, dim=0)

    def kv(tensor: KvTensor) -> torch.Tensor:
        held: torch.Tensor = getattr(cache.layers[tensor.layer], tensor.which)
        return held.repeat_interleave(count, dim=0)

    return [state(tensor) for tensor in layout.states], [kv(tensor) for tensor in layout.kv]


def fill(config: Any, layout: CacheLayout, states: list[torch.Tensor], kv: list[torch.Tensor]) -> DynamicCache:
    """A DynamicCache that goes on from these tensors, in the order of the layout, each with an equal batch.

    They go in through the cache's own methods: a layer whose tensors are only set takes its next tokens for a prompt's
    first."""
    cache = DynamicCache(config=config)
    for tensor, value in zip(layout.states, states, strict=True):
        if tensor.kind == "conv":
            cache.update_conv_state(value, tensor.layer)
        else:
            cache.update_recurrent_state(value, tensor.layer)
    for i in range(0, len(layout.kv), 2):
        cache.update(kv[i], kv[i + 1], layout.kv[i].layer)
    return cache


def _numbered(tensors: tuple[StateTensor, ...]) -> list[tuple[int, StateTensor]]:
    """With the number of each tensor's layer among the layers that have states."""
    layers = sorted({tensor.layer for tensor in tensors})
    return [(layers.index(tensor.layer), tensor) for tensor in tensors]


def _state_tensor(index: int, tensor: StateTensor) -> TensorSpec:
    dtype = _DTYPES[tensor.dtype]
    if tensor.kind == "conv":
        dim, window = tensor.shape
        return TensorSpec("conv", dtype, (window, dim), layer=index, conv_layout="ds")
    shape = tensor.shape
    while len(shape) > _STATE_EXTENTS_MAX:
        shape = (shape[0] * shape[1], *shape[2:])
    return TensorSpec("recurrent", dtype, shape, layer=index)
