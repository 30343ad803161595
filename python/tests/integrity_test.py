# SPDX-License-Identifier: Apache-2.0
"""Checks of checkpoints: what somebody wrote to one is found before a pass reads it."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds

BLOCK = 4
SPEC = sp.StateSpec([sp.TensorSpec("conv", "bfloat16", (3, 5), layer=0),
                     sp.TensorSpec("recurrent", "float32", (2, 3, 4), layer=0)])

pytestmark = pytest.mark.skipif(sp.backend() != "OpenMP", reason="the test writes the memory itself")


class Engine:
    """Serves one request at a time, and waits for the verdicts of each plan. Every element of a recurrent state is the
    sum of its tokens."""

    def __init__(self, index: str = "hash") -> None:
        layout = sp.SlotLayout(3, 6, placement="last", scan_alignment_tokens=-1)
        self.cache = sp.RequestCache(index, layout, integrity=True, max_requests=2, max_request_tokens=64,
                                     block_size_tokens=BLOCK, kv_tokens=256)
        self.store = sp.StateStore(SPEC, self.cache.checkpoint_slots())
        self.copier = sp.SlotCopier(self.store, self.store)
        self.integrity = sp.StateIntegrity([self.store], checks_max=self.cache.integrity_usage().checks_max)
        self.published: set[int] = set()  # slots
        self.starts = 0

    def execute(self, copies: Any) -> Any:
        """Executes an answer with its checks; answers the faults."""
        checks = self.cache.take_checks()
        self.published.update(int(check["slot"]) for check in checks if check["kind"] == 0)
        self.integrity.begin(checks)
        self.integrity.copy(self.copier, copies)
        self.integrity.end()
        self.integrity.wait()
        return self.integrity.poll()

    def serve(self, prompt: list[int], infinite: bool = False) -> tuple[int, Any]:
        """Answers how many tokens were reused, and the faults of the checkpoints that the request left. A request that
        would read a wrong state starts again."""
        while True:
            self.starts += 1
            started = self.cache.start(prompt)
            assert started is not None
            request, computed, faults = started.request, started.reused_tokens, []
            while computed < len(prompt):
                # A pass ends on the last whole block, where it leaves a checkpoint.
                last = (len(prompt) - 1) // BLOCK * BLOCK
                end = last if computed < last else len(prompt)
                tokens = self.cache.chunk([request], [end - computed])
                plan = self.cache.plan([request], tokens)
                assert plan.rows_without_room == 0
                live = int(plan.groups[0].write_slot[0])
                wrong = self.execute(plan.groups[0].copies)
                if len(wrong):
                    break
                self.run(live, prompt, computed, computed + int(tokens[0]), infinite)
                computed += int(tokens[0])
                commit = self.cache.commit(plan, [0], [])
                faults += list(self.execute(commit.groups[0].copies))
            else:
                self.cache.finish([request])
                assert not len(self.execute([]))
                return started.reused_tokens, faults
            assert all(fault["check"]["request"] == request and fault["check"]["pass"] == plan.pass_id
                       for fault in wrong)
            self.cache.cancel(plan)
            assert self.cache.withdraw(wrong) == 1
            assert self.cache.withdraw(wrong) == 0
            self.cache.preempt([request])
            self.cache.check_invariants()

    def run(self, live: int, prompt: list[int], begin: int, end: int, infinite: bool) -> None:
        state = self.store.tensor(1)[live]
        known = np.inf if infinite else sum(prompt[:begin])
        assert begin == 0 or (state == known).all(), "a pass reads a wrong state"
        state[...] = np.inf if infinite else sum(prompt[:end])
        self.store.tensor(0)[live][...] = 0


PROMPT = list(range(1, 22))  # five blocks and a token


@pytest.mark.parametrize("index", ["hash", "tree"])
class TestIntegrity:
    def test_a_checkpoint_that_somebody_wrote_to_is_not_read(self, index: str) -> None:
        engine = Engine(index)
        assert engine.serve(PROMPT) == (0, [])
        assert engine.serve(PROMPT) == (20, [])
        usage = engine.cache.integrity_usage()
        assert (usage.published, usage.reads, usage.withdrawn_states) == (len(engine.published), 1, 0)
        for slot in engine.published:
            engine.store.tensor(1)[slot][1, 2, 3] += 1
        starts = engine.starts
        assert engine.serve(PROMPT) == (0, [])
        assert engine.starts > starts + 1
        assert engine.serve(PROMPT) == (20, [])
        usage = engine.cache.integrity_usage()
        assert usage.changed == 2 * usage.withdrawn_states > 0
        assert usage.other_state == usage.not_finite == usage.unchecked_states == 0

    def test_a_state_with_an_infinity_is_named_when_it_is_published(self, index: str) -> None:
        engine = Engine(index)
        reused, faults = engine.serve(PROMPT, infinite=True)
        assert reused == 0 and len(faults) == len(engine.published)
        for fault in faults:
            assert sp.FAULT_KINDS[fault["kind"]] == "not_finite" and fault["tensor"] == 1
            assert sp.CHECK_KINDS[fault["check"]["kind"]] == "published"
        assert engine.cache.withdraw(np.array(faults, sp.STATE_FAULT)) == len(faults)
        assert engine.serve(PROMPT) == (0, [])

    def test_random_prompts_and_writes(self, index: str) -> None:
        found = 0
        for seed in seeds(20):
            draw = random.Random(seed)
            engine = Engine(index)
            for _ in range(40):
                prompt = [1 + (7 * i + draw.randrange(2) * (i > 10)) % 5 for i in range(draw.randrange(1, 40))]
                engine.serve(prompt)
                if engine.published and draw.random() < 0.5:
                    slot = draw.choice(sorted(engine.published))
                    engine.store.tensor(draw.randrange(2))[slot].flat[draw.randrange(15)] += 1
            found += engine.cache.integrity_usage().changed
            assert engine.cache.integrity_usage().other_state == 0
        if len(seeds(20)) >= 20:
            assert found > 20

    def test_without_the_option_there_are_no_checks(self, index: str) -> None:
        cache = sp.RequestCache(index, sp.SlotLayout(3, 6), max_requests=2, max_request_tokens=64, kv_tokens=256)
        for call in (cache.take_checks, cache.integrity_usage, lambda: cache.withdraw(np.zeros(0, sp.STATE_FAULT))):
            with pytest.raises(sp.InvalidState, match="integrity"):
                call()

    def test_what_cannot_be_is_refused(self, index: str) -> None:
        engine = Engine(index)
        check = np.zeros(1, sp.STATE_CHECK)
        check["kind"], check["content"], check["request"] = sp.CHECK_KINDS.index("read"), 1, -1
        with pytest.raises(sp.InvalidState, match="begin"):
            engine.integrity.end()
        with pytest.raises(sp.InvalidState, match="begin"):
            engine.integrity.copy(engine.copier, [])
        for member, value in (("kind", 2), ("group", 1), ("slot", 99), ("content", 0), ("reserved", 1)):
            wrong = check.copy()
            wrong[member] = value
            with pytest.raises(sp.InvalidArgument, match=f"{member} = {value}"):
                engine.integrity.begin(wrong)
        with pytest.raises(sp.InvalidArgument, match="checks has the type"):
            engine.integrity.begin([1, 2])
        fault = np.zeros(1, sp.STATE_FAULT)
        fault["check"]["slot"] = 99
        with pytest.raises(sp.InvalidArgument, match="slot = 99"):
            engine.cache.withdraw(fault)
        with pytest.raises(sp.InvalidArgument, match="stores"):
            sp.StateIntegrity([])
        with pytest.raises(sp.InvalidArgument, match="checks_max"):
            sp.StateIntegrity([engine.store], checks_max=0)
        other = sp.StateStore(SPEC, 3)
        engine.integrity.begin(check)
        with pytest.raises(sp.InvalidArgument, match="copier"):
            engine.integrity.copy(sp.SlotCopier(other, other), [(0, 1)])
        engine.integrity.end()
        engine.integrity.wait()
        assert [sp.FAULT_KINDS[fault["kind"]] for fault in engine.integrity.poll()] == ["other_state"]
        assert repr(engine.integrity) == "<StateIntegrity of 1 stores>"
