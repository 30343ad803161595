# SPDX-License-Identifier: Apache-2.0
"""The division of memory, and the names of models."""
from __future__ import annotations

import dataclasses
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
from stateport.transformers.budget import Cut, Extent, cut, parse_bytes  # noqa: E402
from stateport.transformers.fingerprint import model_name  # noqa: E402
from stateport.transformers.layout import cache_argument  # noqa: E402


def test_sizes_are_bytes_or_text() -> None:
    wanted = {0: 0, 17: 17, "17": 17, "2KiB": 2048, " 1.5 MiB ": 3 << 19, "1 gb": 10**9, "0.5 TiB": 1 << 39}
    assert {value: parse_bytes("memory", value) for value in wanted} == wanted
    for value in (-1, True, 1.5, None, "", "MiB", "1 PiB", "-1 MiB", "1 MiB more"):
        with pytest.raises(sp.InvalidArgument, match="memory is"):
            parse_bytes("memory", value)  # type: ignore[arg-type]


def arena_cache(memory: int, states: Extent, pages: Extent, page_tokens: int, requests: int,
                found: Cut) -> sp.RequestCache:
    layout = sp.SlotLayout(1, found.checkpoints, arena=sp.Arena(
        memory, pages.count, pages.bytes, states.count, states.bytes))
    return sp.RequestCache("tree", layout, max_requests=requests, max_request_tokens=found.request_tokens,
                           block_size_tokens=page_tokens, kv_tokens=found.pages * page_tokens)


def test_a_cut_has_the_most_that_a_cache_can_hold() -> None:
    for seed in seeds(200):
        draw = random.Random(seed)
        states = Extent(count := draw.randint(1, 4), count * draw.randint(1, 5000))
        pages = Extent(count := draw.randint(1, 4), count * draw.randint(1, 5000))
        page_tokens, requests = draw.randint(1, 32), draw.randint(1, 4)
        options: dict[str, Any] = {
            "states": states, "pages": pages, "page_tokens": page_tokens, "requests": requests,
            "max_tokens": draw.choice([None, draw.randint(1, 400)]), "model_tokens": draw.randint(1, 400)}
        with pytest.raises(sp.InvalidArgument, match="memory is 0 bytes, and must be at least") as refused:
            cut(0, **options)
        least = int(str(refused.value).split("at least ")[1].split(":")[0].replace(",", ""))
        with pytest.raises(sp.InvalidArgument, match=f"must be at least {least:,}"):
            cut(least - 1, **options)
        memory = least + draw.choice([0, draw.randint(0, 400_000)])
        found = cut(memory, **options)
        where = f"STATEPORT_TEST_FIRST_SEED={seed}: {found}"
        arena_cache(memory, states, pages, page_tokens, requests, found).close()
        wanted = options["max_tokens"] or options["model_tokens"]
        assert page_tokens <= found.request_tokens <= max(wanted, page_tokens), where
        # Neither part could use more memory, beside the least of the other.
        of_states = states.least(requests + 1) * states.bytes
        of_kv = pages.least(found.request_tokens // page_tokens + 1) * pages.bytes
        for extent, numbers, other in ((states, found.checkpoints + requests, of_kv),
                                       (pages, found.pages + 1, of_states)):
            used = numbers // extent.count * extent.bytes
            assert numbers % extent.count == 0 and used + other <= memory < used + other + extent.bytes, where
        if found.request_tokens + page_tokens <= wanted and options["max_tokens"]:  # memory is the limit
            with pytest.raises(sp.InvalidArgument, match="arena.bytes"):
                longer = dataclasses.replace(found, request_tokens=found.request_tokens + page_tokens)
                arena_cache(memory, states, pages, page_tokens, requests, longer)


def test_one_request_has_half_of_the_memory_unless_it_is_said_how_long_it_is() -> None:
    options: dict[str, Any] = {"states": Extent(1, 100), "pages": Extent(1, 10), "page_tokens": 2, "requests": 1,
                               "model_tokens": 10**6}
    assert cut(10_000, max_tokens=None, **options).request_tokens == 1000
    assert cut(10_000, max_tokens=1500, **options).request_tokens == 1500
    # Without the states of a request and of a prefix, the memory that is kept free, and the page that is never used.
    assert cut(10_000, max_tokens=10**6, **options).request_tokens == 2 * ((10_000 - 200 - 220) // 10 - 1)


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
    assert layout.stepwise == (architecture in ("jamba", "zamba"))
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([[3, 4, 5]]), **{cache_argument(model): cache}, use_cache=True)
    states = kv = 0
    for layer in cache.layers:
        for held in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            states += sum(tensor.nbytes for tensor in held.values() if tensor is not None)
        tokens = sum(tensor.nbytes for name in ("keys", "values", "indexer_keys", "indexer_position_ids")
                     if (tensor := getattr(layer, name, None)) is not None)
        if getattr(layer, "is_sliding", False):
            states += tokens // 3 * (layer.sliding_window - 1)
        else:
            kv += tokens
    assert layout.state_spec().slot_bytes == states
    assert layout.page_spec(3).slot_bytes == kv
