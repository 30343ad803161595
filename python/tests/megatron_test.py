# SPDX-License-Identifier: Apache-2.0
"""The drop-in for Megatron-LM's MambaSlotAllocator, on cases of our own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from conftest import seeds

torch = pytest.importorskip("torch", reason="the adapter needs torch")
from megatron_engine import CONV, LAYERS, SSM, Engine  # noqa: E402
from stateport import InvalidArgument  # noqa: E402
from stateport.megatron import MambaSlotAllocator, NoSlots  # noqa: E402


def block_request(engine: Engine, request: int, blocks: list[int], hashes: list[int]) -> None:
    """A request whose blocks are in use and have these hashes."""
    engine.context.request_to_kv_block_ids[request] = -1
    engine.context.request_to_kv_block_ids[request, :len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    engine.kv.block_ref_counts[blocks] = 1
    engine.kv.block_hashes[blocks] = torch.tensor(hashes)


def prefill(prompt: int, blocks: int, request: int = 0, matched: int = 0) -> dict[str, Any]:
    return {"request": request, "prompt_len": prompt, "finished": 0, "skip": 0, "chunk_len": prompt,
            "kv_matched": matched, "required_blocks": blocks}


def test_a_state_comes_back_as_it_was_stored() -> None:
    engine = Engine(blocks=8, slots=2)
    engine.kv.block_hashes[:3] = torch.tensor([11, 12, 13])
    slots = engine.states.allocate_slots_batch([2, 0])
    engine.fill(engine.live(), 1, ssm=50, conv=70)
    engine.fill(engine.live(), 3, ssm=60, conv=80)
    engine.states.store_from_live_batch(slots, [1, 3])
    engine.states.register_block_hashes_batch([2, 0], [13, 11])
    assert engine.states.hash_to_block_id == {13: 2, 11: 0}
    for tensor in engine.live():
        tensor.zero_()
    assert engine.states.restore_to_live(0, 2)
    assert [[int(one) for one in tensor[:, 0].unique()] for tensor in engine.live()] == [[50, 51], [70, 71]]
    assert not engine.live()[0][:, 1:].any()
    assert not engine.states.restore_to_live(0, 1)
    engine.states.check_invariants()


def test_of_two_states_for_one_slot_the_last_is_stored() -> None:
    engine = Engine(blocks=4, slots=1)
    engine.kv.block_hashes[1] = 9
    slot, = engine.states.allocate_slots_batch([1])
    engine.fill(engine.live(), 0, ssm=50, conv=70)
    engine.fill(engine.live(), 2, ssm=60, conv=80)
    engine.states.store_from_live_batch([slot, slot], [0, 2])
    assert engine.states.restore_to_live(1, 1)
    assert [[int(one) for one in tensor[:, 1].unique()] for tensor in engine.live()] == [[60, 61], [80, 81]]


def test_a_slot_that_was_not_written_is_not_restored() -> None:
    engine = Engine(blocks=4, slots=1)
    engine.fill(engine.live(), 0, ssm=5, conv=7)
    engine.states.allocate_slots_batch([1])
    engine.states.register_block_hashes_batch([1], [9])
    assert engine.states.has_state(1)
    assert not engine.states.restore_to_live(0, 1)
    engine.kv.block_hashes[1] = 9
    for layer in range(LAYERS):
        assert not engine.states.restore_to_live(0, 1)
        engine.states.store_from_tensors(1, layer, torch.full(SSM, 20.0), torch.full(CONV, 30.0))
    assert engine.states.restore_to_live(0, 1)
    assert [tensor[:, 0].unique().tolist() for tensor in engine.live()] == [[20.0], [30.0]]


def test_a_state_of_other_content_is_not_restored() -> None:
    engine = Engine(blocks=4, slots=1)
    engine.kv.block_hashes[1] = 9
    engine.states.store_from_live_batch(engine.states.allocate_slots_batch([1]), [0])
    assert engine.states.restore_to_live(2, 1)
    engine.kv.block_hashes[1] = 10  # the engine gave the block to another prompt and did not say so
    assert not engine.states.restore_to_live(2, 1)
    engine.kv.block_hashes[1] = 9
    assert engine.states.restore_to_live(2, 1)


def test_a_commit_keeps_states_that_find_a_slot() -> None:
    engine = Engine(blocks=8, slots=1)
    block_request(engine, 0, [3, 4, 5], [31, 32, 33])
    engine.context.batch_dimensions.prefill_req_count = 1
    assert engine.offsets(prefill(700, 3, matched=1)) == {"offsets": [256, 512], "blocks": [3, 4], "eos_block": -1,
                                                          "has_any": True}
    engine.fill(engine.scratch(), 0, ssm=100, conv=150)
    engine.fill(engine.scratch(), 1, ssm=200, conv=250)
    engine.states.commit_intermediate_states()
    assert engine.states.dropped == 1
    assert engine.show()["block_to_slot"][3:6] == [0, -1, -1]
    assert engine.states.hash_to_block_id == {31: 3}
    assert engine.show()["ssm"] == [[100], [101]]
    assert engine.states.planned == {}
    engine.states.check_invariants()


def test_a_block_without_a_hash_gets_no_state() -> None:
    engine = Engine(blocks=8, slots=4)
    block_request(engine, 0, [3, 4, 5], [31, -1, 33])
    engine.context.batch_dimensions.prefill_req_count = 1
    for _ in range(2):
        engine.offsets(prefill(768, 3, matched=1))
        engine.fill(engine.live(), 0, ssm=900, conv=950)
        engine.states.commit_intermediate_states()
        assert engine.show()["mamba_hash_to_block"] == {"31": 3, "33": 5}
        assert engine.states.get_slot(4) == -1
        engine.states.check_invariants()
    assert engine.states.restore_to_live(1, 5)
    assert engine.live()[0][:, 1].unique().tolist() == [900, 901]


def test_states_are_forgotten_if_a_commit_cannot_copy() -> None:
    engine = Engine(blocks=8, slots=2)
    block_request(engine, 0, [3], [31])
    engine.context.batch_dimensions.prefill_req_count = 1
    engine.offsets(prefill(256, 1))
    engine.context.mamba_ssm_states = engine.context.mamba_ssm_states.double()
    with pytest.raises(RuntimeError):
        engine.states.commit_intermediate_states()
    assert engine.states.free_count == 2 and engine.states.hash_to_block_id == {} and engine.states.planned == {}
    engine.states.check_invariants()


def test_a_saved_state_without_a_hash_is_found_by_none() -> None:
    engine = Engine(blocks=8, slots=4)
    engine.states.allocate_slots_batch([4])
    block_request(engine, 0, [4], [-1])
    engine.context.batch_dimensions.prefill_req_count = 1
    engine.offsets(prefill(256, 1))
    engine.fill(engine.live(), 0, ssm=900, conv=950)
    engine.states.commit_intermediate_states()
    assert engine.states.hash_to_block_id == {}
    engine.states.check_invariants()  # nor by a hash that only the allocator knows
    assert engine.states.restore_to_live(1, 4)


def test_a_hash_that_is_gone_finds_nothing() -> None:
    engine = Engine(blocks=4, slots=2)
    engine.kv.block_hashes[1] = 9
    engine.states.store_from_live_batch(engine.states.allocate_slots_batch([1]), [0])
    engine.states.register_block_hashes_batch([1], [9])
    engine.states.on_kv_blocks_deregistered([], {9, 77})
    assert engine.states.hash_to_block_id == {} and engine.states.has_state(1)
    assert not engine.states.restore_to_live(0, 1)
    engine.states.check_invariants()


def test_a_use_that_ended_does_not_make_a_block_young() -> None:
    engine = Engine(blocks=4, slots=2)
    engine.kv.block_timestamps[:] = torch.tensor([5, 1, 9, 9])
    engine.states.allocate_slots_batch([0, 1])
    engine.states.allocate_slots_batch([0, 1])  # both are reported
    engine.kv.block_ref_counts[1] = 2
    engine.states.allocate_slots_batch([0, 1])
    engine.kv.block_ref_counts[1] = 0
    engine.states.allocate_slots_batch([2])
    assert [engine.states.has_state(block) for block in range(3)] == [True, False, True]


def test_scan_kernels_read_the_same_memory_in_every_step() -> None:
    engine = Engine(blocks=8, slots=4)
    engine.context.paused_request_count = 1
    engine.context.batch_dimensions.prefill_req_count = 2
    assert engine.states.get_intermediate_gpu_data() == (None, None)
    block_request(engine, 1, [1, 2], [11, 12])
    block_request(engine, 2, [3], [13])
    engine.offsets(prefill(512, 2, request=1))
    engine.offsets(prefill(256, 1, request=2))
    offsets, counts = engine.states.get_intermediate_gpu_data()
    assert (offsets.tolist(), counts.tolist()) == ([[256, 0, 0], [0, 0, 0]], [1, 0])
    assert (offsets.dtype, counts.dtype) == (torch.int32, torch.int32)
    engine.states.commit_intermediate_states()
    assert set(engine.states.hash_to_block_id) == {11, 12, 13}
    engine.offsets(prefill(256, 1, request=2))
    again = engine.states.get_intermediate_gpu_data()
    assert [one.data_ptr() for one in again] == [offsets.data_ptr(), counts.data_ptr()]
    assert counts.tolist() == [0, 0]  # its end alone is due
    engine.states.reset()
    assert engine.states.get_intermediate_gpu_data() == (None, None)
    assert engine.states.free_count == 4 and engine.states.hash_to_block_id == {}
    engine.states.check_invariants()


def test_bad_arguments_are_refused_and_change_nothing() -> None:
    engine = Engine(blocks=6, slots=2)
    states = engine.states
    states.allocate_slots_batch([1])
    before = engine.show()
    for refused in (lambda: states.allocate_slots_batch([0, 6]), lambda: states.allocate_slots_batch([-1]),
                    lambda: states.get_slot(6), lambda: states.invalidate_block(-1),
                    lambda: states.store_from_tensors(0, 0, torch.zeros(SSM), torch.zeros(CONV)),
                    lambda: states.store_from_tensors(1, LAYERS, torch.zeros(SSM), torch.zeros(CONV)),
                    lambda: states.store_from_live_batch([0], [0]), lambda: states.store_from_live_batch([2], [0]),
                    lambda: states.store_from_live_batch([1], [0, 1]), lambda: states.restore_to_live(0, 99),
                    lambda: states.register_block_hashes_batch([1], [5, 6]),
                    lambda: states.register_block_hashes_batch([7], [5])):
        with pytest.raises(InvalidArgument):
            refused()
        assert engine.show() == before
        states.check_invariants()
    engine.kv.block_ref_counts[1] = 1
    with pytest.raises(NoSlots, match="2"):
        states.allocate_slots_batch([2, 3])
    assert isinstance(pytest.raises(NoSlots, states.allocate_slots_batch, [2, 3]).value, RuntimeError)
    assert engine.show() == before


class PlainModel:
    """Which block has which slot, by the rules in plain words: every choice is a search."""

    def __init__(self, slots: int, by_use: bool) -> None:
        self.by_use, self.free, self.slot_of = by_use, list(range(slots)), {}

    def allocate(self, blocks: list[int], engine: Engine) -> list[int] | None:
        new = [block for block in dict.fromkeys(blocks) if block not in self.slot_of]
        refs, used = engine.kv.block_ref_counts.tolist(), engine.kv.block_timestamps.tolist()
        victims = sorted((block for block in self.slot_of if refs[block] == 0 and block not in blocks),
                         key=lambda block: (used[block] if self.by_use else 0, block))
        if len(new) > len(self.free) + len(victims):
            return None
        cut = max(0, len(self.free) - len(new))
        slots, self.free = self.free[cut:], self.free[:cut]
        slots += [self.slot_of.pop(victim) for victim in victims[:len(new) - len(slots)]]
        self.slot_of.update(zip(new, slots, strict=True))
        return [self.slot_of[block] for block in blocks]

    def invalidate(self, blocks: list[int]) -> None:
        self.free += [self.slot_of.pop(block) for block in dict.fromkeys(blocks) if block in self.slot_of]


@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
def test_random_calls_choose_the_slots_of_a_plain_model(policy: str) -> None:
    for seed in seeds(60):
        rng = random.Random(seed)
        blocks, slots = rng.randint(2, 14), rng.randint(1, 6)
        engine, model, now = Engine(blocks, slots, policy=policy), PlainModel(slots, policy == "lru"), 0
        for step in range(80):
            where, draw = f"seed {seed}, step {step}", rng.random()
            some = [rng.randrange(blocks) for _ in range(rng.randint(0, 5))]
            if draw < 0.45:
                wanted = model.allocate(some, engine)
                if wanted is None:
                    pytest.raises(NoSlots, engine.states.allocate_slots_batch, some)
                else:
                    assert engine.states.allocate_slots_batch(some) == wanted, where
            elif draw < 0.55:
                model.invalidate(some)
                engine.states.on_kv_blocks_deregistered(some, set())
            elif draw < 0.65:
                held = [block for block in some if engine.states.has_state(block)]
                engine.states.register_block_hashes_batch(held, [rng.randint(-1, 9) for _ in held])
            elif draw < 0.9:
                for block in some:  # a clock that mostly advances, as an engine's does
                    now += rng.randint(0, 1)
                    engine.kv.block_timestamps[block] = rng.randint(0, now) if rng.random() < 0.1 else now
            else:
                for block in some:
                    engine.kv.block_ref_counts[block] = rng.choice([0, 0, 1, 3])
            shown = engine.show()
            assert shown["free_slots_bottom_to_top"] == model.free, where
            owners = {block: slot for block, slot in enumerate(shown["block_to_slot"]) if slot >= 0}
            assert owners == model.slot_of, where
            engine.states.check_invariants()


def test_states_have_the_types_and_the_device_of_the_engine() -> None:
    engine = Engine(blocks=4, slots=2)
    states = MambaSlotAllocator(engine.context, 2, LAYERS, CONV, SSM, torch.bfloat16, torch.float16)
    assert states.conv_states.dtype == states.intermediate_conv_out.dtype == torch.bfloat16
    assert states.ssm_states.dtype == states.intermediate_ssm_out.dtype == torch.float16
    assert states.conv_states.shape == (LAYERS, 2, *CONV)
    assert states.intermediate_ssm_out.shape == (LAYERS, 12, *SSM)
    assert states.conv_states.device == engine.context.mamba_conv_states.device
    assert np.array_equal(states.free_slots.numpy(), [0, 1])
