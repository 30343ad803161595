# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: a drop-in for the MambaSlotAllocator of its dynamic inference context, over stateport's SlotAllocator.

    from megatron.core.inference.contexts import dynamic_context
    dynamic_context.MambaSlotAllocator = stateport.megatron.MambaSlotAllocator  # before the context is made

Where the original may restore a wrong state, or skip to one that is not there, this one is safer:
* A slot that was never written, and a state of a block whose hash has changed since, are not restored.
* A hash is not registered for a block without a slot, and goes with the slot.
* Slots of blocks that lost their content are free, whatever hashes are named; a block named twice frees one slot.
* A block of the batch is never evicted for another one of it.
* A checkpoint without a slot is dropped and counted (`dropped`), not an error.
* Blocks and layers out of range, negative ones too, are refused (InvalidArgument), nothing changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stateport._arrays import Int32s, Int64s, Records, int32s
from stateport._external_blocks import ExternalBlocks
from stateport._megatron_books import MegatronBooks
from stateport.checkpoints import CheckpointPlanner, PlannedCheckpoints
from stateport.errors import InvalidArgument, NoCapacity
from stateport.slot_allocator import SlotAllocator, StateTag

MAX_INTERMEDIATE_OFFSETS_PER_REQUEST = 3
_SCAN_ALIGNMENT_TOKENS = 128  # of the scan kernel, if the context does not say


class NoSlots(NoCapacity, RuntimeError):
    """More slots are needed than are free or can be evicted. The original raises a RuntimeError then."""


class MambaSlotAllocator(MegatronBooks):
    """States of hybrid models by KV block.

    context: the DynamicInferenceContext; read of it are kv_block_allocator (total_count; block_ref_counts,
    block_timestamps and block_hashes of it or of its pc_state), prefix_caching_eviction_policy, block_size_tokens,
    max_requests, request_to_kv_block_ids, paused_request_count, batch_dimensions, mamba_metadata and the live states
    mamba_conv_states and mamba_ssm_states [layers, live slots, …]. The shapes are those of one layer's state.

    conv_states and ssm_states [layers, max_slots, …] hold the cached states, intermediate_conv_out and
    intermediate_ssm_out [layers, max_intermediate_count, …] the states that the scan kernels save; all are of the
    device of the live states. Copies are enqueued on torch's current stream."""

    def __init__(self, context: Any, max_slots: int, num_mamba_layers: int, conv_states_shape: Sequence[int],
                 ssm_states_shape: Sequence[int], conv_states_dtype: torch.dtype,
                 ssm_states_dtype: torch.dtype) -> None:
        self.context = context
        self.max_slots = max_slots
        self.num_mamba_layers = num_mamba_layers
        self.max_intermediate_count = int(getattr(context, "max_mamba_intermediate_states_per_step",
                                                  MAX_INTERMEDIATE_OFFSETS_PER_REQUEST * context.max_requests))
        device = _device(context)

        def states(slots: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_mamba_layers, slots, *shape), dtype=dtype, device=device)

        self.conv_states = states(max_slots, conv_states_shape, conv_states_dtype)
        self.ssm_states = states(max_slots, ssm_states_shape, ssm_states_dtype)
        self.intermediate_conv_out = states(self.max_intermediate_count, conv_states_shape, conv_states_dtype)
        self.intermediate_ssm_out = states(self.max_intermediate_count, ssm_states_shape, ssm_states_dtype)
        # Captured graphs read these: they stay where they are.
        self._offsets = torch.zeros((context.max_requests, MAX_INTERMEDIATE_OFFSETS_PER_REQUEST), dtype=torch.int32,
                                    device=device)
        self._counts = torch.zeros(context.max_requests, dtype=torch.int32, device=device)
        self._begin()

    def _begin(self) -> None:
        blocks = int(self.context.kv_block_allocator.total_count)
        self._states = SlotAllocator(blocks, self.max_slots, external_blocks=True)
        self._blocks = ExternalBlocks(self._states)
        self._planner = CheckpointPlanner(
            self._states, block_size_tokens=self.context.block_size_tokens, max_rows=self.context.max_requests,
            alignment_tokens=getattr(self.context, "mamba_chunk_size", _SCAN_ALIGNMENT_TOKENS))
        self._planned: dict[int, PlannedCheckpoints] = {}
        self.dropped = 0  # checkpoints that found no slot
        self._begin_books(blocks, self.max_slots, self.num_mamba_layers)

    # --- Slots -------------------------------------------------------------------------------------------------------

    def allocate_slots_batch(self, block_ids: Sequence[int]) -> list[int]:
        """[n] slots of block_ids[n]: those that have one keep it, others take free ones, then those of the blocks used
        least recently that no request uses. Raises NoSlots, nothing changed."""
        blocks = int32s("block_ids", block_ids)
        self._tell()
        try:
            slots = self._states.allocate_slots(blocks)
        except NoCapacity as error:
            raise NoSlots(str(error)) from None
        self._note_slots(blocks, slots)
        return [int(slot) for slot in slots]

    def get_slot(self, block_id: int) -> int:
        """-1: it has none."""
        return self._states.slot_of(block_id)

    def has_state(self, block_id: int) -> bool:
        return self.get_slot(block_id) >= 0

    def invalidate_block(self, block_id: int) -> None:
        self._invalidate_blocks_batch([block_id])

    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        blocks = int32s("block_ids_list", block_ids_list)
        self._states.invalidate(blocks)
        self._note_freed(blocks)

    def on_kv_blocks_deregistered(self, block_ids_list: Sequence[int], hashes_to_delete: set[int]) -> None:
        """The KV of these blocks is gone, and their states with it; nothing is found by these hashes."""
        self._invalidate_blocks_batch(block_ids_list)
        for hash_ in hashes_to_delete:
            block = self.hash_to_block_id.get(hash_)
            if block is not None:
                self._withdraw(block)

    # --- States ------------------------------------------------------------------------------------------------------

    def store_from_tensors(self, block_id: int, layer_idx: int, ssm_state: torch.Tensor,
                           conv_state: torch.Tensor) -> None:
        """Writes one layer of the state of a block."""
        slot = self.get_slot(block_id)
        if slot < 0:
            raise InvalidArgument(f"block_id {block_id} has no slot")
        if not 0 <= layer_idx < self.num_mamba_layers:
            raise InvalidArgument(f"layer_idx is {layer_idx}, and must be in [0, {self.num_mamba_layers})")
        self.ssm_states[layer_idx, slot].copy_(ssm_state)
        self.conv_states[layer_idx, slot].copy_(conv_state)
        self._unwritten[block_id].discard(layer_idx)
        self._tag(block_id)

    def store_from_live_batch(self, slots: Sequence[int], request_indices: Sequence[int]) -> None:
        """Copies the live states of requests into slots that blocks have."""
        to = int32s("slots", slots)
        if len(to) != len(request_indices):
            raise InvalidArgument(f"request_indices has {len(request_indices)} elements, and must have {len(to)}")
        in_range = (to >= 0) & (to < self.max_slots)
        owners = np.where(in_range, self.slot_to_block.numpy()[np.where(in_range, to, 0)], -1)
        if (owners < 0).any():
            raise InvalidArgument(f"slots has {to[owners < 0][0]}, which no block has")
        live = int32s("request_indices", [self._live_slot(request) for request in request_indices])
        self._copy_live(_pairs(live, to))
        self._note_written(owners)

    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        """Copies the state of a block into the live state of a request. False: the block has no state, or one that does
        not fit its present content; nothing was copied."""
        live = self._live_slot(request_idx)
        if not self.has_state(block_id):
            return False
        check, copies = self._states.restore(block_id, live, self._wanted(block_id))
        _copy(self.context.mamba_ssm_states, self.ssm_states, copies)
        _copy(self.context.mamba_conv_states, self.conv_states, copies)
        return check == "match"

    def register_block_hashes_batch(self, block_ids: Sequence[int], hashes: Sequence[int]) -> None:
        """Makes states findable (hash_to_block_id). Hashes <= 0 and blocks without a slot are skipped."""
        if len(block_ids) != len(hashes):
            raise InvalidArgument(f"hashes has {len(hashes)} elements, and must have {len(block_ids)}")
        rows = [(int(block), int(hash_)) for block, hash_ in zip(block_ids, hashes, strict=True)
                if self.has_state(int(block)) and hash_ > 0]
        self._states.register_states([block for block, _ in rows], [hash_ for _, hash_ in rows])
        for block, hash_ in rows:
            self._note_hash(block, hash_)
            self._tag(block)

    # --- Checkpoints of a prefill ------------------------------------------------------------------------------------

    def compute_and_store_offsets(self, req: Any, current_id: int, skip_tokens: int, prefill_chunk_length: int,
                                  num_matched_blocks: int, matched_block_ids: Sequence[int],
                                  overall_required_blocks: int) -> None:
        """Plans where the prefill of request `current_id` saves states; prefill_chunk_length counts skipped tokens."""
        del matched_block_ids  # the block table names them
        row = self.context.request_to_kv_block_ids[current_id].cpu().numpy().astype(np.int32)
        full = len(req.prompt_tokens) // self.context.block_size_tokens
        ends = np.flatnonzero(row < 0)
        blocks = row[:ends[0]] if len(ends) else row
        prefixes = np.zeros((min(full, len(blocks)), 2), np.uint64)
        prefixes[:, 0] = np.maximum(self._fact("block_hashes")[blocks[:len(prefixes)]], 0)
        planned = self._planner.plan(
            current_id, live_slot=self._live_slot(current_id), prompt_tokens=len(req.prompt_tokens),
            finished_tokens=int(getattr(req, "finished_chunk_token_count", 0)), skip_tokens=skip_tokens,
            chunk_tokens=prefill_chunk_length, matched_blocks=num_matched_blocks,
            required_blocks=overall_required_blocks, blocks=blocks, prefixes=prefixes)
        self._planned.pop(current_id, None)
        if planned.blocks or planned.end_block >= 0:
            self._planned[current_id] = planned

    @property
    def planned(self) -> dict[int, PlannedCheckpoints]:
        """The checkpoints of the next commit, by request index."""
        return dict(self._planned)

    def get_intermediate_gpu_data(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """For the scan kernels, int32 on the device of the states: offsets [prefill rows, 3] from the first computed
        token, and counts [prefill rows]. (None, None): nothing is saved."""
        first, rows = self._prefill_rows()
        if not rows or not self._planned:
            return None, None
        part = slice(first, first + rows)
        arrays = self._planner.device_arrays(first + rows)
        for tensor, values in zip((self._offsets, self._counts), arrays or (None, None), strict=True):
            if values is None:
                tensor[part].zero_()
            else:
                tensor[part].copy_(torch.from_numpy(values[part].copy()), non_blocking=True)
        return self._offsets[part], self._counts[part]

    def commit_intermediate_states(self) -> None:
        """After the forward: brings the states that it saved, and those of prompts that end on a block, into slots. If
        torch cannot copy them, all states are forgotten."""
        if not self._prefill_rows()[1] or not self._planned:
            return self._clear_intermediate_state()
        named = int32s("planned", list(dict.fromkeys(
            block for planned in self._planned.values() for block in (*planned.blocks, planned.end_block)
            if block >= 0)))
        hashes = self._fact("block_hashes")[named]
        self._tell()
        nameless = named[(hashes <= 0) & (self.block_to_slot.numpy()[named] < 0)]
        self._blocks.hide(nameless)
        try:
            commit = self._planner.commit()
        finally:
            self._blocks.show(nameless)
        try:
            self._copy_intermediate(commit.from_scratch)
            self._copy_live(commit.from_live)
        except BaseException:
            self.reset()  # the content of the slots is unknown
            raise
        self._planner.publish()
        self.dropped += commit.dropped
        self._note_slots(named, int32s("slots", [self._states.slot_of(int(block)) for block in named]))
        slots = np.concatenate([commit.from_scratch["dst_slot"], commit.from_live["dst_slot"]])
        saved = self.slot_to_block.numpy()[slots]
        for block in saved.tolist():
            self._withdraw(block)
        self._note_written(saved)
        hash_of = dict(zip(named.tolist(), hashes.tolist(), strict=True))
        self.register_block_hashes_batch(saved.tolist(), [hash_of[block] for block in saved.tolist()])
        self._planned.clear()
        return None

    def _clear_intermediate_state(self) -> None:
        self._planner.clear()
        self._planned.clear()

    def reset(self) -> None:
        """Forgets all states, slots and plans."""
        self._planner.close()
        self._states.close()
        self._begin()
        self.intermediate_conv_out.zero_()
        self.intermediate_ssm_out.zero_()

    def check_invariants(self) -> None:
        """Recounts everything. Raises InternalError naming the first fault."""
        self._states.check_invariants()
        self._planner.check_invariants()
        self._check_books(self._states)

    # --- Members of the context --------------------------------------------------------------------------------------

    def _fact(self, name: str) -> Int64s:
        allocator = self.context.kv_block_allocator
        facts = getattr(allocator, "pc_state", None)
        table: torch.Tensor = getattr(allocator if facts is None else facts, name)
        values: Int64s = table[:self._states.blocks].cpu().numpy().astype(np.int64)
        return values

    def _tell(self) -> None:
        blocks = np.flatnonzero(self.block_to_slot.numpy() >= 0).astype(np.int32)
        by_use = "ref_zero" not in str(self.context.prefix_caching_eviction_policy).lower()
        used = self._fact("block_timestamps")[blocks] if by_use else np.zeros(len(blocks), np.int64)
        self._blocks.tell(blocks, self._fact("block_ref_counts")[blocks] > 0, used)

    def _live_slot(self, request: int) -> int:
        return int(self.context.mamba_metadata.request_to_mamba_state_idx[request])

    def _prefill_rows(self) -> tuple[int, int]:
        batch = self.context.batch_dimensions
        return self.context.paused_request_count + batch.decode_req_count, batch.prefill_req_count

    def _wanted(self, block: int) -> StateTag:
        return StateTag(0, (max(int(self._fact("block_hashes")[block]), 0), 0))

    # --- Notes and copies --------------------------------------------------------------------------------------------

    def _withdraw(self, block: int) -> None:
        self._states.withdraw(block)
        self._unname(block)

    def _tag(self, block: int) -> None:
        if not self._unwritten[block]:
            self._states.set_tag(block, self._wanted(block))

    def _note_written(self, blocks: Any) -> None:
        for block in blocks.tolist():
            self._unwritten[block].clear()
            self._tag(block)

    def _copy_intermediate(self, copies: Records) -> None:
        _copy(self.ssm_states, self.intermediate_ssm_out, copies)
        _copy(self.conv_states, self.intermediate_conv_out, copies)

    def _copy_live(self, copies: Records) -> None:
        _copy(self.ssm_states, self.context.mamba_ssm_states, copies)
        _copy(self.conv_states, self.context.mamba_conv_states, copies)


def _device(context: Any) -> torch.device:
    live = getattr(context, "mamba_conv_states", None)
    if live is not None:
        return torch.device(live.device)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _pairs(src: Int32s, dst: Int32s) -> Records:
    pairs = np.zeros(len(src), np.dtype([("src_slot", "i4"), ("dst_slot", "i4")]))
    pairs["src_slot"], pairs["dst_slot"] = src, dst
    return pairs


def _copy(to: torch.Tensor, source: torch.Tensor, copies: Records) -> None:
    """Slots of all layers [layers, slots, …]; of two copies into one slot the last counts."""
    last = {int(copy["dst_slot"]): int(copy["src_slot"]) for copy in copies}
    if not last:
        return
    slots = torch.tensor([*last.items()], dtype=torch.int64).to(to.device, non_blocking=True)
    to.index_copy_(1, slots[:, 0], source.index_select(1, slots[:, 1]))
