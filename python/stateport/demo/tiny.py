# SPDX-License-Identifier: Apache-2.0
"""Models of nine hybrid architectures with a few thousand random weights each: nothing is downloaded, and each token of
an answer depends on every token before it."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from stateport.errors import InvalidArgument

VOCABULARY = 128
_SPREAD = 0.2  # of the weights: with transformers' own 0.02 the answer hardly depends on the prompt

_COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": _SPREAD, "pad_token_id": 0,
           "bos_token_id": 1, "eos_token_id": 2}
_DELTA_NET = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2, "head_dim": 8,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
              "linear_value_head_dim": 8}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 16}

# The names of configuration and model in transformers, and the entries of the configuration beside _COMMON.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {
        **_DELTA_NET, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16}),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _DELTA_NET),
    "bamba": ("BambaConfig", "BambaForCausalLM", {
        **_MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_expand": 2}),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", {
        **_MAMBA2, "num_hidden_layers": 2, "mamba_d_ssm": 64, "head_dim": 8}),
    "jamba": ("JambaConfig", "JambaForCausalLM", {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 8, "mamba_dt_rank": 4}),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_num_heads": 4,
        "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 16, "head_dim": 8,
        "n_routed_experts": 4, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
        "num_experts_per_tok": 2}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", {
        **_MAMBA2, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "shared_intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {
        "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}),
    "zamba2": ("Zamba2Config", "Zamba2ForCausalLM", {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_ngroups": 1,
        "mamba_d_state": 8, "mamba_headdim": 16, "n_mamba_heads": 4, "chunk_size": 16, "num_mem_blocks": 1,
        "use_shared_attention_adapter": False}),
}

ARCHITECTURES = tuple(_MODELS)


def tiny_model(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A model of one of ARCHITECTURES, on the CPU, with random weights of this seed. changes: of its configuration."""
    if architecture not in _MODELS:
        raise InvalidArgument(f"architecture is {architecture!r}, and must be one of {', '.join(ARCHITECTURES)}")
    config_name, model_name, own = _MODELS[architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(transformers, config_name)(**{**_COMMON, **own, **changes})
        model = getattr(transformers, model_name)(config).eval()
    for module in model.modules():
        if hasattr(module, "time_step_limit"):  # a scan keeps to it and a step does not: their answers would differ
            module.time_step_limit = (0.0, float("inf"))
    # An answer ends when it is long enough.
    model.generation_config.eos_token_id = None
    return model
