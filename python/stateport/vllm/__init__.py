# SPDX-License-Identifier: Apache-2.0
"""Prefix caching of hybrid models below vLLM's own cache, in host memory, in files and in a store that engines share: a
KV connector, no patch.

    vllm serve MODEL --enable-prefix-caching --kv-transfer-config \\
      '{"kv_connector": "StateportConnector", "kv_connector_module_path": "stateport.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"host_bytes": 17179869184}}'

Keys of kv_connector_extra_config are the members of ConnectorOptions. vLLM is imported with StateportConnector."""

from __future__ import annotations

from typing import Any

from stateport.vllm.options import ConnectorOptions

__all__ = ["ConnectorOptions", "StateportConnector"]


def __getattr__(name: str) -> Any:
    if name != "StateportConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stateport.vllm.connector import StateportConnector

    return StateportConnector
