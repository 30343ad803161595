# SPDX-License-Identifier: Apache-2.0
"""Which models the probe takes: wrong caches that it must tell from right ones, planted here."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from transformers import DynamicCache  # noqa: E402
from transformers.cache_utils import DynamicIndexedLayer  # noqa: E402
from witness import as_ids  # noqa: E402

from stateport.demo.tiny import ARCHITECTURES, tiny_model  # noqa: E402
from stateport.transformers import UnsupportedModel, layout, probe  # noqa: E402
from stateport.transformers.layout import cache_argument, run  # noqa: E402

Change = Callable[[Any, Any, int], None]  # of a model's output, by its cache and the tokens that it held before


def changed(model: Any, change: Change) -> Any:
    """The model, with outputs that `change` changes."""
    held: list[int] = []

    def before(_: Any, arguments: Any, options: Any) -> None:
        held.append(options[cache_argument(model)].get_seq_length())

    def after(_: Any, arguments: Any, options: Any, out: Any) -> None:
        change(out, options[cache_argument(model)], held.pop())

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    return model


def flip_behind_a_cache(out: Any, cache: Any, held: int) -> None:
    """As experts do that are chosen by scores of 16 bits: another order of additions chooses others."""
    if held:
        out.logits = out.logits + 0.5 * torch.sin(torch.arange(out.logits.shape[-1])).to(out.logits.dtype)


@pytest.mark.parametrize("architecture", ["qwen3_next", "lfm2"])
def test_a_prompt_in_parts_may_differ_from_the_prompt_at_once(architecture: str) -> None:
    model = changed(tiny_model(architecture, initializer_range=0.05).bfloat16(), flip_behind_a_cache)
    ids, cache = as_ids((1, 2, 3, 4, 5, 6)), DynamicCache(config=model.config)
    whole = run(model, ids, DynamicCache(config=model.config), 0, 6)
    run(model, ids, cache, 0, 3)
    assert float((run(model, ids, cache, 3, 6) - whole).abs().max()) > 0.05 * float(whole.abs().max())
    assert probe(model).architecture == type(model).__name__


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_architecture_is_taken_in_its_own_type(architecture: str, dtype: torch.dtype) -> None:
    """As transformers loads it: some weights of some models stay in 32 bits."""
    model = tiny_model(architecture)
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, weights in model.named_parameters():
        if not any(re.search(part, name) for part in kept):
            weights.data = weights.to(dtype)
    assert dtype in {tensor.dtype for tensor in probe(model).kv}


def test_a_model_that_never_answers_twice_alike_is_taken_within_its_noise() -> None:
    """Additions by atomics have no order."""
    draw = torch.Generator().manual_seed(1)

    def shake(out: Any, cache: Any, held: int) -> None:
        out.logits = out.logits + 1e-6 * torch.randint(1, 3, out.logits.shape, generator=draw)

    probe(changed(tiny_model("qwen3_5"), shake))


def test_noise_as_large_as_the_answer_is_refused() -> None:
    draw = torch.Generator().manual_seed(1)

    def drown(out: Any, cache: Any, held: int) -> None:
        out.logits = 100 * torch.randn(out.logits.shape, generator=draw)

    with pytest.raises(UnsupportedModel, match="so that a wrong one cannot be told from a right one"):
        probe(changed(tiny_model("qwen3_5"), drown))


@pytest.mark.parametrize("architecture", ["qwen3_5", "lfm2"])
def test_a_layer_whose_state_is_not_copied_is_refused(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = tiny_model(architecture), layout._copied

    def forgetful(cache: Any, of: Any) -> Any:
        states, kv = real(cache, of)
        return [torch.zeros_like(states[0]), *states[1:]], kv

    monkeypatch.setattr(layout, "_copied", forgetful)
    with pytest.raises(UnsupportedModel, match="answers differently from a copy of its DynamicCache"):
        probe(model)


def states_of(layer: Any, kind: str) -> torch.Tensor:
    held: torch.Tensor = (layer.conv_states if kind == "conv" else layer.recurrent_states)[0]
    return held


@pytest.mark.parametrize("kind", ["conv", "recurrent"])
def test_a_state_that_does_not_matter_is_refused(kind: str) -> None:
    """The model goes on from zeros in place of its cache."""
    model = tiny_model("qwen3_5")

    def forget(_: Any, arguments: Any, options: Any) -> None:
        for layer in options[cache_argument(model)].layers:
            if getattr(layer, "conv_states", None) and layer.conv_states[0] is not None:
                states_of(layer, kind).zero_()

    model.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match=f"answers the same from a DynamicCache whose {kind} states are zero"):
        probe(model)


def test_one_of_several_states_that_does_not_matter_is_refused() -> None:
    model = tiny_model("inkling")

    def forget(_: Any, arguments: Any, options: Any) -> None:
        for layer in options[cache_argument(model)].layers:
            if layer.conv_states[1] is not None:
                layer.conv_states[1].zero_()

    model.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match=r"answers the same from a DynamicCache whose conv\[1\] states are zero"):
        probe(model)


def test_a_window_that_does_not_matter_is_refused() -> None:
    model = tiny_model("lfm3")

    def forget(_: Any, arguments: Any, options: Any) -> None:
        for layer in options[cache_argument(model)].layers:
            if getattr(layer, "is_sliding", False) and layer.keys is not None:
                layer.keys.zero_(), layer.values.zero_()

    model.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match="answers the same from a DynamicCache whose window states are zero"):
        probe(model)


def test_a_number_of_a_layer_that_is_not_restored_is_refused() -> None:
    def count(out: Any, cache: Any, held: int) -> None:
        cache.layers[1].seen = 7

    with pytest.raises(UnsupportedModel, match="Lfm2ForCausalLM keeps seen = 7 in layer 1 of its DynamicCache, and a "
                                               "restored layer has None"):
        probe(changed(tiny_model("lfm2"), count))


def test_an_appended_layer_of_another_class_is_refused() -> None:
    def append(out: Any, cache: Any, held: int) -> None:
        cache.layers.append(DynamicIndexedLayer())

    with pytest.raises(UnsupportedModel, match="Lfm2ForCausalLM appends a DynamicIndexedLayer to its DynamicCache"):
        probe(changed(tiny_model("lfm2"), append))


def test_keys_that_do_not_matter_are_refused() -> None:
    model = tiny_model("qwen3_5")

    def forget(_: Any, arguments: Any, options: Any) -> None:
        for layer in options[cache_argument(model)].layers:
            if getattr(layer, "keys", None) is not None:
                layer.keys.zero_(), layer.values.zero_()

    model.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match="with the keys and values of another prompt"):
        probe(model)


def test_a_state_beside_the_cache_is_refused() -> None:
    """It is of the prompt that ran last, and a cache does not bring it back."""
    beside: list[torch.Tensor] = []

    def remember(out: Any, cache: Any, held: int) -> None:
        if held and beside:
            out.logits = out.logits + beside[-1]
        beside.append(out.logits[:, -1:].clone())

    with pytest.raises(UnsupportedModel, match="it keeps state elsewhere"):
        probe(changed(tiny_model("qwen3_5"), remember))


def test_answers_that_are_no_numbers_are_refused() -> None:
    def spoil(out: Any, cache: Any, held: int) -> None:
        out.logits = out.logits * float("nan")

    with pytest.raises(UnsupportedModel, match="by nan"):
        probe(changed(tiny_model("qwen3_5"), spoil))
