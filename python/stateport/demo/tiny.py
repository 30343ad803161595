# SPDX-License-Identifier: Apache-2.0
"""Models of hybrid architectures with a few thousand random weights each: nothing is downloaded, and each token of an
answer depends on every token before it."""

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
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16}
_LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4,
           "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_KDA = {**_LATENT, "q_lora_rank": None, "qk_rope_head_dim": 4, "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
        "num_local_experts": 4}
# Windows that a prompt of some tens of tokens leaves behind.
_WINDOW = 8
_INKLING = {"num_hidden_layers": 2, "layer_types": ["hybrid_sliding", "hybrid"], "head_dim": 8, "swa_head_dim": 8,
            "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "sliding_window_size": _WINDOW, "d_rel": 4,
            "rel_extent": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
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
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", {**_KDA, "linear_head_dim": 8, "linear_num_heads": 4}),
    "bailing_hybrid": ("BailingHybridConfig", "BailingHybridForCausalLM", {
        **_KDA, "head_dim": 8, "n_group": 1, "topk_group": 1}),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16}),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM", {
        "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {**_DELTA_NET, **_EXPERTS}),
    "zamba": ("ZambaConfig", "ZambaForCausalLM", {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_d_state": 8,
        "mamba_dt_rank": 4, "num_key_value_heads": 4, "use_associative_scan": False}),
    "minicpmv4_6": ("MiniCPMV4_6Config", "MiniCPMV4_6ForConditionalGeneration", _DELTA_NET),
    "minicpmv4_7": ("MiniCPMV4_7Config", "MiniCPMV4_7ForConditionalGeneration", _DELTA_NET),
    "zaya": ("ZayaConfig", "ZayaForCausalLM", {
        "num_hidden_layers": 3, "layer_types": ["hybrid_sliding", "hybrid", "hybrid"], "head_dim": 8,
        "sliding_window": _WINDOW, "num_experts": 4, "moe_intermediate_size": 16, "router_hidden_size": 16}),
    "lfm3": ("Lfm3Config", "Lfm3ForCausalLM", {
        "num_hidden_layers": 3, "layer_types": ["conv", "sliding_attention", "full_attention"], "conv_L_cache": 4,
        "head_dim": 16, "sliding_window": _WINDOW}),
    "lara_mini": ("LaraMiniConfig", "LaraMiniForCausalLM", {
        **_DELTA_NET, **_EXPERTS, "num_hidden_layers": 3, "sliding_window": _WINDOW,
        "layer_types": ["linear_attention", "sliding_attention", "full_attention"]}),
    "inkling": ("InklingTextConfig", "InklingForCausalLM", {
        **_INKLING, "mlp_layer_types": ["dense", "sparse"], "n_shared_experts": 1,
        "logits_mup_width_multiplier": 1.0}),
    "inkling2": ("Inkling2TextConfig", "Inkling2ForCausalLM", {**_INKLING, "unpadded_vocab_size": VOCABULARY}),
    "inkling2_loop": ("Inkling2LoopTextConfig", "Inkling2LoopForCausalLM", {
        **_INKLING, "unpadded_vocab_size": VOCABULARY, "num_hidden_layers": 3,
        "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid"], "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1, "loop_layer_index_end": 3, "loop_num_passes": 2, "loop_gate_rank": 4}),
    "glm5_next": ("Glm5NextConfig", "Glm5NextForConditionalGeneration", {
        **_LATENT, "num_hidden_layers": 3, "layer_types": ["linear_attention", "indexed_attention",
                                                           "indexed_attention"],
        "indexer_types": ["full", "full", "shared"], "q_lora_rank": 12, "mlp_layer_types": ["dense", "sparse",
                                                                                           "sparse"],
        "n_routed_experts": 4, "index_topk": 8, "index_head_dim": 8, "index_n_heads": 16, "index_kpool": 4,
        "linear_head_dim": 8, "linear_num_heads": 4, "hc_mult": 2}),
    "qwen4_exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", {
        **_DELTA_NET, **_EXPERTS, "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"],
        "hc_count": 2, "hc_lowrank": 8, "ple_layer_ids": [1], "ple_embed_dim": 32, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 1,
        "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 4}),
}

# Of models that read more than text: the type of the text's configuration, and the entries beside it.
_VISION = {"vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                             "num_attention_heads": 2, "image_size": 32, "patch_size": 8}, "insert_layer_id": 0}
_BESIDE_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "minicpmv4_6": ("qwen3_5_text", _VISION),
    "minicpmv4_7": ("qwen3_5_text", _VISION),
    "glm5_next": ("glm5_next_text", {"vision_config": {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 16,
        "projection_intermediate_size": 16}}),
}

ARCHITECTURES = tuple(name for name, (config, _, _) in _MODELS.items() if config in dir(transformers))


def tiny_model(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A model of one of ARCHITECTURES, on the CPU, with random weights of this seed. changes: of its configuration."""
    if architecture not in _MODELS:
        raise InvalidArgument(f"architecture is {architecture!r}, and must be one of {', '.join(ARCHITECTURES)}")
    config_name, model_name, own = _MODELS[architecture]
    entries = {**_COMMON, **own, **changes}
    if architecture in _BESIDE_TEXT:
        model_type, beside = _BESIDE_TEXT[architecture]
        entries = {"text_config": {**entries, "model_type": model_type}, **beside}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = getattr(transformers, config_name)(**entries)
        model = getattr(transformers, model_name)(config).eval()
        for weights in model.parameters():
            if not weights.any():  # a convolution of zeros, or a temperature of zero: no state would matter
                weights.normal_(0.0, _SPREAD)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):  # a scan keeps to it and a step does not: their answers would differ
            module.time_step_limit = (0.0, float("inf"))
    # An answer ends when it is long enough.
    model.generation_config.eos_token_id = None
    return model
