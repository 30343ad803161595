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

from stateport.spec import StateSpec
from stateport.transformers.errors import UnsupportedModel
from stateport.transformers.tensors import (
    KvTensor,
    StateTensor,
    kv_of,
    layers_alike,
    new_cache,
    require_all_restored,
    restore_layer,
    states_of,
    tensors_of,
)

_PROBE_TOKENS = (1, 2, 3, 4, 5, 6)
_PROBE_PART = 3  # tokens after which the probe goes on from a cache
_OTHER_TOKENS = (6, 4, 2, 5, 3, 1)
_NOISES = 4.0  # a copy may differ by this multiple of the difference between two runs of the same passes
# Their scan of several tokens begins with the empty state whatever the cache holds (transformers 5.24, Mamba-1): behind
# a cached prefix they run one token at a time.
_STEPWISE = ("jamba", "zamba")
CACHE_ARGUMENTS = frozenset(("cache", "past_key_values"))


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    """All tensors of one sequence, in the order of the stores: by layer.

    stepwise: behind a cached prefix the model must run one token at a time. appended: of tensors.layers_alike."""

    architecture: str
    device: torch.device
    stepwise: bool
    states: tuple[StateTensor, ...]
    kv: tuple[KvTensor, ...]
    appended: tuple[int, ...] = ()

    def state_spec(self) -> StateSpec:
        """Of one state: the tensors of all layers whose size does not grow."""
        layers = sorted({tensor.layer for tensor in self.states})
        return StateSpec([tensor.spec(layers.index(tensor.layer)) for tensor in self.states])

    def page_spec(self, page_tokens: int) -> StateSpec:
        """Of one page of KV."""
        return StateSpec([tensor.spec(index, page_tokens) for index, tensor in enumerate(self.kv)])


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
    layout = _read(model, cache, _PROBE_PART)
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


def _read(model: Any, cache: DynamicCache, tokens: int) -> CacheLayout:
    architecture = type(model).__name__
    states = [tensor for number, layer in enumerate(cache.layers)
              for tensor in states_of(architecture, number, layer, tokens)]
    kv = [tensor for number, layer in enumerate(cache.layers)
          for tensor in kv_of(architecture, number, layer, tokens)]
    if all(tensor.is_window for tensor in states):
        raise UnsupportedModel(f"{architecture} has no recurrent layers: its KV alone is cached by other means")
    if not kv:
        raise UnsupportedModel(f"{architecture} has no attention layers without a sliding window in its DynamicCache")
    devices = {tensor.device for layer in cache.layers for _, _, tensor in tensors_of(layer)}
    if len(devices) > 1:
        raise UnsupportedModel(f"{architecture} lies on several devices ({', '.join(sorted(map(str, devices)))}), and "
                               "must lie on one")
    layout = CacheLayout(architecture, devices.pop(), getattr(model.config, "model_type", "") in _STEPWISE,
                         tuple(states), tuple(kv), layers_alike(architecture, cache, model.config))
    restored = fill(model.config, layout, *_copied(cache, layout))
    for number, (layer, other) in enumerate(zip(cache.layers, restored.layers, strict=True)):
        require_all_restored(architecture, number, layer, other)
    return layout


def repeated(cache: DynamicCache, layout: CacheLayout, count: int, config: Any) -> DynamicCache:
    """A cache whose `count` rows are each a copy of the one row of `cache`."""
    if cache.get_seq_length() == 0:
        return DynamicCache(config=config)
    return fill(config, layout, *_copied(cache, layout, count))


def _copied(cache: DynamicCache, layout: CacheLayout, count: int = 1) -> _Held:
    def state(tensor: StateTensor) -> torch.Tensor:
        slot = torch.empty(tensor.shape, dtype=tensor.dtype, device=layout.device)
        tensor.save(cache, 0, slot)
        return slot.repeat(count, *[1] * slot.ndim)

    return ([state(tensor) for tensor in layout.states],
            [tensor.read(cache).repeat_interleave(count, dim=0) for tensor in layout.kv])


def fill(config: Any, layout: CacheLayout, states: list[torch.Tensor], kv: list[torch.Tensor]) -> DynamicCache:
    """A DynamicCache that goes on from these tensors, in the order of the layout, each with an equal batch: states
    [batch, *shape], KV [batch, tokens, *shape]."""
    cache = new_cache(config, layout.appended)
    layers: dict[int, dict[tuple[str, int], torch.Tensor]] = {}
    for tensor, value in zip(layout.states, states, strict=True):
        layers.setdefault(tensor.layer, {})[tensor.name, tensor.index] = value
    for part, value in zip(layout.kv, kv, strict=True):
        layers.setdefault(part.layer, {})[part.name, 0] = value
    for number, held in layers.items():
        restore_layer(cache, number, held, kv[0].shape[1])
    return cache
