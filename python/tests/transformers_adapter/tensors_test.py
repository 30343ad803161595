# SPDX-License-Identifier: Apache-2.0
"""The tensors of a DynamicCache on their way through the stores: windows, several states, integers and indexers."""
from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from transformers import DynamicCache  # noqa: E402
from witness import Witness  # noqa: E402

from conftest import seeds  # noqa: E402
from stateport.demo.tiny import ARCHITECTURES, VOCABULARY, tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, probe  # noqa: E402
from stateport.transformers.layout import run  # noqa: E402

WINDOW = 8
# Beside keys, values, one convolution and one recurrent state of a layer.
OTHERS = [name for name in ("zaya", "lfm3", "lara_mini", "inkling", "inkling2", "inkling2_loop", "glm5_next",
                            "qwen4_exp") if name in ARCHITECTURES]


def held_by(cache: DynamicCache) -> Iterator[tuple[int, str, Any]]:
    """All that its layers keep, but the type of the first state that a layer was given."""
    for number, layer in enumerate(cache.layers):
        for name, held in sorted(vars(layer).items()):
            if name not in ("dtype", "device"):
                yield number, name, held


def assert_equal(found: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted), where
    elif isinstance(wanted, dict):
        for key in wanted:
            assert_equal(found[key], wanted[key], f"{where}[{key}]")
    else:
        assert found == wanted, where


def through_stores(cache: PrefixCache, held: DynamicCache, tokens: int) -> DynamicCache:
    """A cache that is restored from memory to which `held` was saved."""
    stores = cache._ledger.stores
    states, pages = stores.states.info(), stores.pages.info()
    slot = next(filter(stores.states.is_mapped, range(states.extents))) * states.extent_count
    first = next(filter(stores.pages.is_mapped, range(pages.extents))) * pages.extent_count * cache.page_tokens
    places = torch.arange(first, first + tokens).numpy()
    for memory in stores._states:
        memory[slot].view(torch.uint8).fill_(0xFF)  # of another state
    stores.save_state(held, 0, slot)
    stores.save_kv(held, 0, 0, places)
    return stores.restore(slot, places)


@pytest.mark.parametrize("architecture", OTHERS)
def test_a_restored_cache_is_the_one_that_was_saved(architecture: str) -> None:
    """After prompts that are shorter than the window, as long, and longer, in passes of several sizes."""
    for seed in seeds(1):
        print(f"STATEPORT_TEST_FIRST_SEED={seed} STATEPORT_TEST_SEEDS=1")
        model, draw = tiny_model(architecture, seed), random.Random(seed)
        with PrefixCache(model, memory="1 MiB", page_tokens=4) as cache:
            for tokens in (1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
                ids = torch.tensor([[draw.randrange(3, VOCABULARY) for _ in range(tokens + 4)]])
                step = draw.randint(1, tokens)
                held = DynamicCache(config=model.config)
                for begin, end in itertools.pairwise([*range(0, tokens, step), tokens]):
                    run(model, ids, held, begin, end)
                restored = through_stores(cache, held, tokens)
                for found, wanted in zip(held_by(restored), held_by(held), strict=True):
                    where = f"{wanted[:2]} after {tokens} tokens in passes of {step}"
                    assert found[:2] == wanted[:2], where
                    assert_equal(found[2], wanted[2], where)
                for begin, end in ((tokens, tokens + 3), (tokens + 3, tokens + 4)):
                    assert torch.equal(run(model, ids, restored, begin, end), run(model, ids, held, begin, end))


@pytest.mark.parametrize("chunk_tokens", [1, WINDOW - 1, WINDOW, 3 * WINDOW])
def test_prompts_in_chunks_of_any_size_continue_from_a_window(chunk_tokens: int) -> None:
    model = tiny_model("lfm3")
    with PrefixCache(model, memory="1 MiB", chunk_tokens=chunk_tokens) as cache:
        witness = Witness(model)
        tokens, _ = witness.serve(cache, tuple(range(3, 33)), 3)
        _, served = witness.serve(cache, (*tokens, *range(50, 62)), 3)
        assert served.reused_tokens == len(tokens) - 1
        assert witness.exact == 1


def test_integers_of_all_bits_are_restored() -> None:
    model = tiny_model("qwen4_exp")
    largest = torch.tensor([[2**63 - 1, -2**63]])
    ids = torch.arange(3, 12)[None]
    with PrefixCache(model, memory="1 MiB") as cache:
        held = DynamicCache(config=model.config)
        run(model, ids, held, 0, 9)
        held.layers[0].conv_states[2].copy_(largest)
        held.layers[1].indexer_position_ids = torch.full((3, 1, 9), -(2**63 - 1))
        restored = through_stores(cache, held, 9)
        assert torch.equal(restored.layers[0].conv_states[2], largest)
        assert torch.equal(restored.layers[1].indexer_position_ids, torch.full((3, 1, 9), -(2**63 - 1)))
    # No number of any type: bytes that look like a NaN are none.
    assert {tensor.dtype for tensor in probe(model).state_spec()} == {"float32", "int8"}


def test_a_window_has_the_last_tokens_last_and_zeros_before_the_first() -> None:
    model = tiny_model("lfm3")
    layout = probe(model)
    held = DynamicCache(config=model.config)
    run(model, torch.arange(3, 6)[None], held, 0, 3)
    keys = next(tensor for tensor in layout.states if tensor.name == "keys")
    assert keys.shape == (2, WINDOW - 1, 16)
    slot = torch.full(keys.shape, 5.0)
    keys.save(held, 0, slot)
    assert torch.equal(slot[:, WINDOW - 4:], held.layers[keys.layer].keys[0])
    assert not slot[:, :WINDOW - 4].any()
