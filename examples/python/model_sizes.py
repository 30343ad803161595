# SPDX-License-Identifier: Apache-2.0
"""The memory of a model's states and KV, from the config.json of its checkpoint.
python model_sizes.py [PATH/config.json ...]; without a path: of two models of the catalogue, and of a small config"""
import pathlib
import sys

import stateport


def row(model: stateport.ModelInfo, spec: stateport.StateSpec) -> str:
    kv = f"{model.kv_bytes_per_token:,} bytes of KV a token" if model.kv_bytes_per_token else "KV not known"
    return (f"{model.name}: {model.kind} in {model.state_layers} of {model.layers} layers, "
            f"{spec.slot_bytes / 2**20:.2f} MiB a state, {kv}; {model.status}")


# docs: model sizes
def of_checkpoint(config: str) -> str:
    return row(stateport.ModelInfo.from_config(config), stateport.StateSpec.from_config(config))


def of_catalogue(name: str) -> str:
    return row(stateport.ModelInfo.find(name), stateport.StateSpec.find(name))
# docs end


SMALL = """{"model_type": "qwen3_next", "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32,
  "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "dtype": "bfloat16"}"""

if len(sys.argv) > 1:
    for path in sys.argv[1:]:
        print(of_checkpoint(pathlib.Path(path).read_text(encoding="utf-8")))
else:
    for name in ("qwen3.5-9b", "glm-5.3-flash"):
        print(of_catalogue(name))
    print(of_checkpoint(SMALL))
