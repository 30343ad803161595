# SPDX-License-Identifier: Apache-2.0
"""The drop-in for Megatron-LM's MambaSlotAllocator, on cases recorded from the original."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the adapter needs torch")
from megatron_engine import CONV, LAYERS, SSM, Engine  # noqa: E402
from stateport import InvalidArgument  # noqa: E402
from stateport.megatron import NoSlots  # noqa: E402

RECORDED = pathlib.Path(__file__).parents[3] / "shared" / "golden" / "slot_allocator.json"
# Cases in which our rule is deliberately safer than the recorded one, with the final values that hold instead.
SAFER: dict[str, dict[str, Any]] = {
    "hazard_self_eviction_in_batch": {"block_to_slot": [0, -1, -1, -1, -1, -1]},
    "hazard_invalidate_leaves_hash": {"block_to_slot": [-1] * 6, "mamba_hash_to_block": {}},
    "hazard_slot_leak_on_unmatched_deregister": {
        "block_to_slot": [-1, 1, -1, -1, -1, -1], "free_slots_bottom_to_top": [0], "mamba_hash_to_block": {"12": 1}},
    "hazard_duplicate_invalidate_batch": {
        "block_to_slot": [-1, 1, -1, -1, -1, -1], "free_slots_bottom_to_top": [0]},
    "hazard_duplicate_hash_two_blocks": {
        "block_to_slot": [-1, 0, 1, -1, -1, -1], "mamba_hash_to_block": {"55": 1}},
}


class Replay:
    """The operations of a recorded case. The engine's KV allocator is not replayed: its tables are set to the recorded
    ones, and blocks that lost their hash are reported in the order in which they became free."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.engine = Engine(config["nb"], config["slots"], config.get("max_req", 4), config.get("policy", "lru"))
        self.skipped: set[tuple[str, int]] = set()  # hashes of blocks without a slot

    def run(self, op: dict[str, Any]) -> None:
        name, args = op["op"], op.get("args") or {}
        refused = name != "set_row" and any(not 0 <= block < self.engine.kv.total_count
                                            for block in [*args.get("blocks", []), *([args["block"]]
                                                                                     if "block" in args else [])])
        if name.startswith(("kv_", "reset_kv", "tick")):
            self.follow(op, args)
        elif op.get("error") == "capacity":
            with pytest.raises(NoSlots, match=str(op["required"]) if "required" in op else None):
                self.call(name, args)
        elif refused or "error" in op:
            with pytest.raises(InvalidArgument):
                self.call(name, args)
        else:
            result = self.call(name, args)
            if "result" in op and name != "commit":
                assert result == op["result"], name
        self.engine.states.check_invariants()
        if "state" in op:
            self.expect(op["state"])

    def expect(self, recorded: dict[str, Any]) -> None:
        shown = self.engine.show()
        for part in shown.keys() & recorded.keys():
            wanted = recorded[part]
            if part == "mamba_hash_to_block":
                wanted = {hash_: block for hash_, block in wanted.items() if (hash_, block) not in self.skipped}
            assert shown[part] == wanted, part

    def follow(self, op: dict[str, Any], args: dict[str, Any]) -> None:
        kv, gone = self.engine.kv, []
        if "state" in op:
            state = op["state"]
            before = kv.block_hashes.tolist()
            # Blocks that were evicted to be handed out were on top.
            handed = op["result"] if op["op"] == "kv_alloc" and op["result"] else []
            freed = [block for block in (*state["kv_free_bottom_to_top"], *handed) if block not in self.engine.kv_free]
            gone = [block for block in freed if before[block] != -1 and state["kv_hash"][block] == -1]
            self.engine.kv_free = state["kv_free_bottom_to_top"]
            hashes = {before[block] for block in gone}
            for name, part in (("block_ref_counts", "kv_ref"), ("block_timestamps", "kv_ts"),
                               ("block_hashes", "kv_hash")):
                if part in state:  # ref_zero has no clock
                    getattr(kv, name)[:] = torch.tensor(state[part])
            if gone:
                self.engine.states.on_kv_blocks_deregistered(gone, hashes)
        elif op["op"] == "kv_alloc":
            kv.block_ref_counts[op["result"]] = 1
        elif op["op"] == "kv_register":
            kv.block_hashes[args["blocks"]] = torch.tensor(args["hashes"])

    def call(self, name: str, args: dict[str, Any]) -> Any:
        engine, states = self.engine, self.engine.states
        if name == "hash_register":
            self.note_skipped(args)
        simple = {"slots_alloc": lambda: states.allocate_slots_batch(args["blocks"]),
                  "get_slot": lambda: states.get_slot(args["block"]),
                  "has_state": lambda: states.has_state(args["block"]),
                  "invalidate": lambda: states.invalidate_block(args["block"]),
                  "invalidate_batch": lambda: states._invalidate_blocks_batch(args["blocks"]),
                  "hash_register": lambda: states.register_block_hashes_batch(args["blocks"], args["hashes"]),
                  "on_deregistered": lambda: states.on_kv_blocks_deregistered(args["blocks"], set(args["hashes"])),
                  "fill_live": lambda: engine.fill(engine.live(), args["live_slot"], args["ssm"], args["conv"]),
                  "fill_scratch": lambda: engine.fill(engine.scratch(), args["i"], args["ssm"], args["conv"]),
                  "store_from_live": lambda: states.store_from_live_batch(args["slots"], args["requests"]),
                  "restore_to_live": lambda: states.restore_to_live(args["request"], args["block"]),
                  "offsets": lambda: engine.offsets(args), "commit": states.commit_intermediate_states}
        if name in simple:
            return simple[name]()
        if name == "bind_request":
            engine.context.mamba_metadata.request_to_mamba_state_idx[args["request"]] = args["live_slot"]
        elif name == "read_live":
            return {part: [int(tensor[layer, args["live_slot"]].unique()) for layer in range(LAYERS)]
                    for part, tensor in zip(("ssm", "conv"), engine.live(), strict=True)}
        elif name == "store_tensors":
            states.store_from_tensors(args["block"], args["layer"], torch.full(SSM, args["ssm"]),
                                      torch.full(CONV, args["conv"]))
        elif name == "set_batch":
            engine.context.paused_request_count = args["paused"]
            engine.context.batch_dimensions.decode_req_count = args["decode"]
            engine.context.batch_dimensions.prefill_req_count = args["prefill"]
        elif name == "set_row":
            engine.context.request_to_kv_block_ids[args["request"], :len(args["blocks"])] = torch.tensor(args["blocks"])
        else:
            raise AssertionError(f"unknown operation {name}")
        return None

    def note_skipped(self, args: dict[str, Any]) -> None:
        for block, hash_ in zip(args["blocks"], args["hashes"], strict=True):
            self.skipped = {pair for pair in self.skipped if pair[0] != str(hash_)}
            if 0 <= block < self.engine.kv.total_count and not self.engine.states.has_state(block):
                self.skipped.add((str(hash_), block))


def recorded_cases(*suites: str) -> list[Any]:
    if not RECORDED.exists():
        reason = pytest.mark.skip(reason=f"{RECORDED} is not there")
        return [pytest.param(None, marks=reason, id="recorded")]
    file = json.loads(RECORDED.read_text())
    return [pytest.param(row, id=row.get("name", f"{suite}_{i}")) for suite in suites
            for i, row in enumerate(file[suite])]


@pytest.mark.parametrize("row", recorded_cases("slot_allocator", "commit", "fuzz_traces"))
def test_recorded_cases_give_the_recorded_values(row: dict[str, Any]) -> None:
    replay = Replay(row["config"])
    for number, op in enumerate(row["ops"]):
        try:
            replay.run(op)
        except AssertionError as error:
            raise AssertionError(f"operation {number} {op['op']} {op.get('args')}") from error
    replay.expect(row.get("final", {}))


@pytest.mark.parametrize("row", recorded_cases("slot_allocator_hazards"))
def test_recorded_hazards_end_safely(row: dict[str, Any]) -> None:
    replay = Replay(row["config"])
    for op in row["ops"]:
        if op["op"].startswith("kv_"):
            replay.follow(op, op.get("args") or {})
        else:
            with contextlib.suppress(NoSlots, InvalidArgument):  # a refusal is safe
                replay.call(op["op"], op["args"])
        replay.engine.states.check_invariants()
    shown = replay.engine.show()
    assert {part: shown[part] for part in SAFER[row["name"]]} == SAFER[row["name"]]


@pytest.mark.parametrize("row", recorded_cases("offsets"))
def test_recorded_offsets(row: dict[str, Any]) -> None:
    engine = Engine(blocks=200, slots=1, block_tokens=row["block_size"], alignment=row["alignment"])
    engine.context.request_to_kv_block_ids = torch.arange(100, 164, dtype=torch.int32).repeat(4, 1)
    assert engine.offsets(row) == row["expect"]
