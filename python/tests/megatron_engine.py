# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Megatron-LM's dynamic inference context, for tests of the drop-in."""

from __future__ import annotations

import types
from typing import Any

import torch

from stateport.megatron import MambaSlotAllocator

LAYERS, CONV, SSM = 2, (2, 3), (2, 2, 2)


class Engine:
    """The members of a dynamic inference context that the allocator reads, as plain tensors."""

    def __init__(self, blocks: int, slots: int, requests: int = 4, policy: str = "lru", block_tokens: int = 256,
                 alignment: int = 128) -> None:
        table = {name: torch.full((blocks,), fill, dtype=torch.int64)
                 for name, fill in (("block_ref_counts", 0), ("block_timestamps", 0), ("block_hashes", -1))}
        self.kv = types.SimpleNamespace(total_count=blocks, **table)
        live = {f"mamba_{name}_states": torch.zeros((LAYERS, requests, *shape))
                for name, shape in (("conv", CONV), ("ssm", SSM))}
        self.context = types.SimpleNamespace(
            kv_block_allocator=self.kv, prefix_caching_eviction_policy=f"PrefixCachingEvictionPolicy.{policy.upper()}",
            block_size_tokens=block_tokens, mamba_chunk_size=alignment, max_requests=requests, paused_request_count=0,
            batch_dimensions=types.SimpleNamespace(decode_req_count=0, prefill_req_count=0),
            request_to_kv_block_ids=torch.full((requests, 16), -1, dtype=torch.int32),
            mamba_metadata=types.SimpleNamespace(request_to_mamba_state_idx=torch.arange(requests)), **live)
        self.states = MambaSlotAllocator(context=self.context, max_slots=slots, num_mamba_layers=LAYERS,
                                         conv_states_shape=CONV, ssm_states_shape=SSM,
                                         conv_states_dtype=torch.float32, ssm_states_dtype=torch.float32)
        self.kv_free: list[int] = []

    def fill(self, tensors: tuple[Any, Any], slot: int, ssm: int, conv: int) -> None:
        for tensor, value in zip(tensors, (ssm, conv), strict=True):
            for layer in range(LAYERS):
                tensor[layer, slot] = value + layer

    def live(self) -> tuple[Any, Any]:
        return self.context.mamba_ssm_states, self.context.mamba_conv_states

    def scratch(self) -> tuple[Any, Any]:
        return self.states.intermediate_ssm_out, self.states.intermediate_conv_out

    def offsets(self, args: dict[str, Any]) -> dict[str, Any]:
        request = args.get("request", 0)
        req = types.SimpleNamespace(prompt_tokens=range(args["prompt_len"]),
                                    finished_chunk_token_count=args["finished"])
        self.states.compute_and_store_offsets(req, request, args["skip"], args["chunk_len"], args["kv_matched"], [],
                                              args["required_blocks"])
        planned = self.states.planned.get(request)
        return {"offsets": list(planned.offsets) if planned else [], "blocks": list(planned.blocks) if planned else [],
                "eos_block": planned.end_block if planned else -1, "has_any": bool(self.states.planned)}

    def show(self) -> dict[str, Any]:
        states = self.states
        found = {str(hash_): block for hash_, block in states.hash_to_block_id.items()}
        return {"block_to_slot": states.block_to_slot.tolist(), "slot_to_block": states.slot_to_block.tolist(),
                "free_slots_bottom_to_top": states.free_slots[:states.free_count].tolist(),
                "mamba_hash_to_block": found,
                "ssm": [[int(one.unique()) for one in layer] for layer in states.ssm_states],
                "conv": [[int(one.unique()) for one in layer] for layer in states.conv_states]}
