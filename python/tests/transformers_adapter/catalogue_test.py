# SPDX-License-Identifier: Apache-2.0
"""The formulas of from_config against the tensors that models of transformers keep."""
from __future__ import annotations

import json
import math
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import stateport as sp  # noqa: E402
from stateport.demo.tiny import ARCHITECTURES, tiny_model  # noqa: E402
from stateport.transformers import probe  # noqa: E402

UNREAD = {"zamba", "zamba2"}  # from_config does not read them
# Their windows of convolutions are as long in transformers. Others have a token more there: the kernel's whole length.
_EXACT = {"zaya", "qwen4_exp"}


def config_of(model: Any) -> str:
    """The config, with the type of the weights."""
    config = json.loads(model.config.to_json_string())
    for part in (config, config.get("text_config", {})):
        part["dtype"] = "float32"
    return json.dumps(config)


def sizes_of(architecture: str, spec: sp.StateSpec) -> list[int]:
    """Bytes of the tensors of a slot, as transformers has them."""
    sizes, seen = [], set()
    for tensor in spec:
        size = math.prod(tensor.shape) * {"float32": 4, "int8": 1}[tensor.dtype]
        first = tensor.layer not in seen  # the convolution of the scan
        if tensor.kind == "conv" and architecture != "zaya" and (first or architecture not in _EXACT):
            size += size // tensor.shape[0]
        seen.add(tensor.layer)
        sizes.append(size)
    return sorted(sizes)


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - UNREAD))
def test_a_config_says_the_states_and_the_kv_of_its_model(architecture: str) -> None:
    model = tiny_model(architecture)
    layout, config = probe(model), config_of(model)
    spec, info = sp.StateSpec.from_config(config), sp.ModelInfo.from_config(config)
    held = sorted(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in layout.states)
    assert sizes_of(architecture, spec) == held
    assert sum(held) == layout.state_spec().slot_bytes
    if info.kv_bytes_per_token is None:
        assert architecture in ("glm5_next", "qwen4_exp")  # which have keys of an indexer
    else:
        assert 2 * info.kv_bytes_per_token == layout.page_spec(1).slot_bytes  # bf16 here, float32 there


def test_architectures_that_are_not_read_are_refused() -> None:
    for architecture in UNREAD & set(ARCHITECTURES):
        with pytest.raises(sp.InvalidArgument, match="model_type"):
            sp.ModelInfo.from_config(config_of(tiny_model(architecture)))
