# SPDX-License-Identifier: Apache-2.0
"""Tiny models of random weights, written as checkpoints: models.py FOLDER NAME. Weights are large enough for a wrong
state to change the sampled tokens; sizes are those that vLLM's kernels for CPUs take."""
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GraniteMoeHybridConfig, Lfm2Config, Qwen3NextConfig

SEED, VOCABULARY = 16, 512
COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
                          "num_attention_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": False,
                          "initializer_range": 0.2}
DTYPES = {"lfm2": "float32", "lfm2_windows": "float32", "granite": "float32", "qwen3_next": "bfloat16"}  # of the engine
# Sliding windows by layer of attention, which serve.py gives to a model without them.
WINDOWS = {"lfm2_windows": {3: 200, 5: 385}}


def lfm2(*, attention: tuple[int, ...] = (2, 5)) -> Any:
    layers = ["full_attention" if layer in attention else "conv" for layer in range(6)]
    # vLLM reads sizes that transformers derives: conv_dim and block_dim.
    return Lfm2Config(**COMMON, num_hidden_layers=6, num_key_value_heads=1, conv_L_cache=3, layer_types=layers,
                      conv_bias=False, conv_dim=64, conv_dim_out=64, block_dim=64, block_ff_dim=128,
                      block_auto_adjust_ff_dim=False, block_multiple_of=16, block_ffn_dim_multiplier=1.0)


def qwen3_next() -> Any:
    return Qwen3NextConfig(**COMMON, num_hidden_layers=4, num_key_value_heads=2, head_dim=128,
                           linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
                           linear_num_key_heads=1, linear_num_value_heads=1, num_experts=4, num_experts_per_tok=2,
                           moe_intermediate_size=32, shared_expert_intermediate_size=32)


def granite() -> Any:
    return GraniteMoeHybridConfig(**COMMON, num_hidden_layers=4, num_key_value_heads=1, shared_intermediate_size=128,
                                  num_local_experts=4, num_experts_per_tok=2, mamba_n_heads=4, mamba_d_head=32,
                                  layer_types=["mamba", "mamba", "attention", "mamba"], mamba_d_state=16,
                                  mamba_n_groups=1, mamba_expand=2, mamba_chunk_size=64)


def lfm2_windows() -> Any:
    return lfm2(attention=(1, 3, 5))


MODELS = {"lfm2": lfm2, "lfm2_windows": lfm2_windows, "qwen3_next": qwen3_next, "granite": granite}


def main() -> None:
    folder, name = sys.argv[1:]
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    main()
