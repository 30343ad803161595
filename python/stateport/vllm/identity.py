# SPDX-License-Identifier: Apache-2.0
"""Names of models in files and in shared stores, so that no engine takes the states of another model."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from typing import Any

from stateport._weights import files_of
from stateport.errors import InvalidArgument


def model_name(vllm_config: Any, block_size_tokens: int, *, named: str = "", rank: str = "",
               outlives: bool = True) -> str:
    """Names the weights (`named`, or facts about their files) and everything in the configuration that changes the KV
    and states of a prompt. rank: which part of the model. outlives: other processes use states of this name, too.
    Raises InvalidArgument if other weights could then have the same name. The path of named weights does not enter the
    name."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    config = model.hf_config.to_dict()
    if named:
        config.pop("_name_or_path", None)
    facts = {
        "weights": named or _weights(vllm_config, outlives),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "config": config,
        "overrides": str(getattr(model, "hf_overrides", None)),
        "cache_dtype": [str(cache.cache_dtype), str(getattr(cache, "mamba_cache_dtype", None)),
                        str(getattr(cache, "mamba_ssm_cache_dtype", None))],
        "block_size_tokens": block_size_tokens,
        "rank": rank,
        "drafts": _drafts(vllm_config),
        "kernels": _kernels(vllm_config),
        "vllm": str(getattr(sys.modules.get("vllm"), "__version__", "")),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"{named or model.model} {hashlib.sha256(text.encode()).hexdigest()}"


def _drafts(vllm_config: Any) -> list[str]:
    """A draft model may have KV of its own among the layers."""
    drafts = getattr(vllm_config, "speculative_config", None)
    return [str(getattr(drafts, name, None)) for name in ("method", "model", "revision")]


def _kernels(vllm_config: Any) -> list[str]:
    """Facts that decide how kernels pack the values of a page, beyond its shape and strides: on a CPU its
    instructions."""
    chosen = [str(getattr(getattr(vllm_config, "attention_config", None), "backend", None)),
              str(getattr(vllm_config.cache_config, "kv_cache_layout", None))]
    torch = sys.modules.get("torch")
    if torch is not None and not torch.cuda.is_available():
        has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
        chosen += [torch.backends.cpu.get_cpu_capability(), str(has_tiles)]
    return [*chosen, platform.machine()]


def _weights(vllm_config: Any, outlives: bool) -> list[Any]:
    model, load = vllm_config.model_config, vllm_config.load_config
    commit = getattr(model.hf_config, "_commit_hash", None)  # not in to_dict
    known: list[Any] = [model.model, str(model.revision), str(load.load_format), str(commit)]
    if str(load.load_format).endswith("dummy"):
        return [*known, model.seed]
    files = files_of(model.model)
    if outlives and files is None and commit is None:
        raise InvalidArgument(f"model is {model.model!r}, of which neither files nor a commit are known: name the "
                              "weights by 'model' in kv_connector_extra_config")
    return [*known, files]
