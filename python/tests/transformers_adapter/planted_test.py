# SPDX-License-Identifier: Apache-2.0
"""Faults of a kind that an adapter may have, planted here: the witness must find each in every architecture."""
from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import DynamicCache  # noqa: E402
from witness import COSTLY, Conversations, Witness, as_ids  # noqa: E402

from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.errors import InvalidState  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, ledger  # noqa: E402
from stateport.transformers.layout import run  # noqa: E402
from stateport.transformers.stores import Stores  # noqa: E402

Restore = Callable[[Stores, int, Any], DynamicCache]
Change = Callable[[Any], bool]  # of a restored layer; whether it has the tensor that changes
_restore: Restore = Stores.restore


def rolled(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.roll(tensor, 1, dims=axis)


def windows_of_convolutions(layer: Any) -> bool:
    for index, held in getattr(layer, "conv_states", {}).items():
        if held is not None:
            layer.conv_states[index] = rolled(held, -1)
    return hasattr(layer, "conv_states")


def windows_of_attention(layer: Any) -> bool:
    if not getattr(layer, "is_sliding", False):
        return False
    layer.keys, layer.values = rolled(layer.keys, 2), rolled(layer.values, 2)
    return True


def tokens_seen(layer: Any) -> bool:
    """As a layer counts that only got the tokens of its window."""
    if not getattr(layer, "is_sliding", False):
        return False
    layer.cumulative_length = layer.keys.shape[2]
    return True


def second_state(layer: Any) -> bool:
    if (held := getattr(layer, "conv_states", {}).get(1)) is None:
        return False
    held.zero_()
    return True


def integers(layer: Any) -> bool:
    """As a conversion to a type of a few bits leaves them."""
    found = [held for held in getattr(layer, "conv_states", {}).values() if held is not None and held.dtype.is_signed
             and not held.dtype.is_floating_point]
    for held in found:
        held.bitwise_and_(15)
    return bool(found)


def indexer_keys(layer: Any) -> bool:
    if getattr(layer, "indexer_keys", None) is None:
        return False
    layer.indexer_keys = rolled(layer.indexer_keys, 1)
    return True


def indexer_positions(layer: Any) -> bool:
    if getattr(layer, "indexer_position_ids", None) is None:
        return False
    layer.indexer_position_ids = rolled(layer.indexer_position_ids, 2)
    return True


def changed(change: Change) -> Restore:
    def restore(self: Stores, slot: int, kv: Any) -> DynamicCache:
        cache = _restore(self, slot, kv)
        assert sum(map(change, cache.layers)) > 0
        return cache

    return restore


def kv_of_the_neighbour(self: Stores, slot: int, kv: Any) -> DynamicCache:
    return _restore(self, slot, np.roll(kv, 1))


def state_of_the_next_position(model: Any) -> Restore:
    def restore(self: Stores, slot: int, kv: Any) -> DynamicCache:
        cache = _restore(self, slot, kv)
        run(model, as_ids((5,) * (len(kv) + 1)), cache, len(kv), len(kv) + 1)
        for layer in cache.layers:
            if getattr(layer, "is_sliding", False):
                layer.cumulative_length -= 1
            elif getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
            if getattr(layer, "indexer_keys", None) is not None:
                layer.indexer_keys = layer.indexer_keys[:, :-1]
            if getattr(layer, "indexer_position_ids", None) is not None:
                layer.indexer_position_ids = layer.indexer_position_ids[..., :-1]
        return cache

    return restore


def faults_of(model: Any) -> list[Restore]:
    """Those that change something of this model's cache."""
    cache = DynamicCache(config=model.config)
    run(model, as_ids((3, 4, 5)), cache, 0, 3)
    changes = (windows_of_convolutions, windows_of_attention, tokens_seen, second_state, integers, indexer_keys,
               indexer_positions)
    return [kv_of_the_neighbour, state_of_the_next_position(model),
            *(changed(change) for change in changes if any(map(change, cache.layers)))]


@pytest.mark.parametrize("architecture", COSTLY)
def test_wrong_restores_are_found(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(architecture, seed=3)
    source = Conversations(3, 100)
    for fault in (*faults_of(model), _restore):
        witness = Witness(model)
        with PrefixCache(model, memory="1 MiB") as cache:
            tokens, _ = witness.serve(cache, source.fresh(20, 20), 3)
            monkeypatch.setattr(Stores, "restore", fault)
            further = (*tokens, *source.fresh(3, 3))
            if fault is _restore:
                witness.serve(cache, further, 3)
            else:
                with pytest.raises((AssertionError, InvalidState), match="apart|not the same bits|broken off"):
                    witness.serve(cache, further, 3)


def test_a_name_without_the_weights_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "model_name", lambda model: "a model")
    options: dict[str, Any] = {"memory": "1 MiB", "tiers": Tiers(folder=tmp_path, file_bytes="8 MiB"), "page_tokens": 4}
    prompt = tuple(range(3, 30))
    with PrefixCache(tiny_model("lfm2", seed=1), **options) as cache:
        cache.generate(as_ids(prompt), max_new_tokens=2)
    other = tiny_model("lfm2", seed=2)
    with PrefixCache(other, **options) as cache, pytest.raises(AssertionError, match="apart|not the same bits"):
        Witness(other).serve(cache, prompt, 2)
