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
from witness import Conversations, Witness, as_ids  # noqa: E402

from stateport.demo.tiny import ARCHITECTURES, tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Tiers, ledger  # noqa: E402
from stateport.transformers.layout import run  # noqa: E402
from stateport.transformers.stores import Stores  # noqa: E402

Restore = Callable[[Stores, int, Any], DynamicCache]
_restore: Restore = Stores.restore


def window_off_by_one(self: Stores, slot: int, kv: Any) -> DynamicCache:
    cache = _restore(self, slot, kv)
    for layer in cache.layers:
        if hasattr(layer, "conv_states"):
            layer.conv_states[0].copy_(torch.roll(layer.conv_states[0], 1, dims=-1))
    return cache


def kv_of_the_neighbour(self: Stores, slot: int, kv: Any) -> DynamicCache:
    return _restore(self, slot, np.roll(kv, 1))


def state_of_the_next_position(model: Any) -> Restore:
    def restore(self: Stores, slot: int, kv: Any) -> DynamicCache:
        cache = _restore(self, slot, kv)
        run(model, as_ids((5,) * (len(kv) + 1)), cache, len(kv), len(kv) + 1)
        for layer in cache.layers:
            if getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
        return cache

    return restore


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_wrong_restores_are_found(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(architecture, seed=3)
    source = Conversations(3, 100)
    faults = [window_off_by_one, kv_of_the_neighbour, state_of_the_next_position(model), _restore]
    for fault in faults:
        witness = Witness(model)
        with PrefixCache(model, memory="1 MiB") as cache:
            tokens, _ = witness.serve(cache, source.fresh(20, 20), 3)
            monkeypatch.setattr(Stores, "restore", fault)
            further = (*tokens, *source.fresh(3, 3))
            if fault is _restore:
                witness.serve(cache, further, 3)
            else:
                with pytest.raises(AssertionError, match="apart|not the same bits"):
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
