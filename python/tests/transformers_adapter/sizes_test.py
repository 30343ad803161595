# SPDX-License-Identifier: Apache-2.0
"""The division of memory, and the names of models."""
from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
import transformers  # noqa: E402

import stateport as sp  # noqa: E402
from conftest import seeds  # noqa: E402
from stateport.demo.tiny import ARCHITECTURES, tiny_model  # noqa: E402
from stateport.transformers import probe  # noqa: E402
from stateport.transformers.budget import cut, parse_bytes  # noqa: E402
from stateport.transformers.fingerprint import model_name  # noqa: E402
from stateport.transformers.layout import cache_argument  # noqa: E402


def test_sizes_are_bytes_or_text() -> None:
    wanted = {0: 0, 17: 17, "17": 17, "2KiB": 2048, " 1.5 MiB ": 3 << 19, "1 gb": 10**9, "0.5 TiB": 1 << 39}
    assert {value: parse_bytes("memory", value) for value in wanted} == wanted
    for value in (-1, True, 1.5, None, "", "MiB", "1 PiB", "-1 MiB", "1 MiB more"):
        with pytest.raises(sp.InvalidArgument, match="memory is"):
            parse_bytes("memory", value)  # type: ignore[arg-type]


def test_no_cut_takes_more_than_there_is() -> None:
    for seed in seeds(200):
        draw = random.Random(seed)
        state, page, requests = draw.randint(1, 5000), draw.randint(1, 5000), draw.randint(1, 4)
        page_tokens, tokens_max = draw.randint(1, 32), draw.randint(1, 400)
        least = (requests + 1) * state + page
        memory = least + draw.randint(0, 40_000)
        options: dict[str, Any] = {
            "state_bytes": state, "page_bytes": page, "page_tokens": page_tokens, "requests": requests,
            "state_share": draw.uniform(0.01, 0.99), "tokens_max": tokens_max}
        found = cut(memory, **options)
        used = (found.checkpoints + requests) * state + found.pages * page
        assert used <= memory < used + page, f"STATEPORT_TEST_FIRST_SEED={seed}"
        assert min(found.checkpoints, found.pages) >= 1
        assert 0 < found.request_tokens <= found.pages * page_tokens
        assert found.request_tokens <= max(tokens_max, page_tokens)
        with pytest.raises(sp.InvalidArgument, match=f"must be at least {least:,}"):
            cut(least - 1, **options)


def test_a_name_tells_configuration_weights_and_types_apart() -> None:
    model = tiny_model("lfm2", seed=1)
    name = model_name(model)
    assert name == model_name(tiny_model("lfm2", seed=1))
    model.config._name_or_path = "elsewhere"
    assert name == model_name(model)
    others = [tiny_model("lfm2", seed=2), tiny_model("lfm2", seed=1, norm_eps=1e-4), tiny_model("lfm2").bfloat16()]
    with torch.no_grad():
        model.lm_head.weight[-1, -1] += 1
    names = {name, *map(model_name, [model, *others])}
    assert len(names) == 5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_layout_describes_the_tensors_of_a_cache(architecture: str) -> None:
    model = tiny_model(architecture)
    layout = probe(model)
    assert layout.architecture == type(model).__name__
    assert layout.stepwise == (architecture == "jamba")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([[3, 4, 5]]), **{cache_argument(model): cache}, use_cache=True)
    held = sum(tensor.numel() * 4 for layer in cache.layers
               for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {}))
               for tensor in states.values() if tensor is not None)
    assert layout.state_spec().slot_bytes == held
    kv = sum(tensor.numel() * 4 for layer in cache.layers
             for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)) if tensor is not None)
    assert layout.page_spec(3).slot_bytes == kv
