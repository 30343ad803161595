# SPDX-License-Identifier: Apache-2.0
"""What a model is called in files, so that no engine takes the states of another model."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".json")


def model_name(vllm_config: Any, block_size_tokens: int, *, named: str = "", rank: str = "") -> str:
    """Of the weights (`named`, or what is known of them) and of everything in the configuration that changes what a
    prompt leaves in memory. rank: which part of the model."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    facts = {
        "weights": named or _weights(vllm_config),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "config": model.hf_config.to_dict(),
        "overrides": str(getattr(model, "hf_overrides", None)),
        "cache_dtype": [str(cache.cache_dtype), str(getattr(cache, "mamba_cache_dtype", None)),
                        str(getattr(cache, "mamba_ssm_cache_dtype", None))],
        "block_size_tokens": block_size_tokens,
        "rank": rank,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"{model.model} {hashlib.sha256(text.encode()).hexdigest()}"


def _weights(vllm_config: Any) -> list[Any]:
    model, load = vllm_config.model_config, vllm_config.load_config
    known: list[Any] = [model.model, str(model.revision), str(load.load_format)]
    if str(load.load_format).endswith("dummy"):
        known.append(model.seed)
    if os.path.isdir(model.model):
        for name in sorted(os.listdir(model.model)):
            if name.endswith(_WEIGHTS):
                status = os.stat(os.path.join(model.model, name))
                known.append([name, status.st_size, status.st_mtime_ns])
    return known
