# SPDX-License-Identifier: Apache-2.0
"""A write to a cached state is found before a pass reads it, and the request starts again without that state. python
checked_states.py (build: OpenMP)"""
from typing import Any

import numpy as np

import stateport

SPEC = stateport.StateSpec([stateport.TensorSpec("recurrent", "float32", (16, 64, 64), layer=0)])
PROMPT = list(range(33))

cache = stateport.RequestCache(
    "hash", stateport.SlotLayout(SPEC.fingerprint, 8, placement="last"), integrity=True, max_requests=1,
    max_request_tokens=64, kv_tokens=256)
store = stateport.StateStore(SPEC, cache.checkpoint_slots())
copier = stateport.SlotCopier(store, store)

# docs: integrity
integrity = stateport.StateIntegrity([store], checks_max=cache.integrity_usage().checks_max)


def execute(copies: Any) -> None:
    """Carries out the copies of an answer with its checks."""
    integrity.begin(cache.take_checks())
    integrity.copy(copier, copies)  # sums the states that it copies
    integrity.end()


def serve(prompt: list[int]) -> int:
    """Computes a prompt, and answers how many tokens were reused."""
    while True:
        started = cache.start(prompt)
        assert started is not None
        request, computed = started.request, started.reused_tokens
        for end in (len(prompt) - 1, len(prompt)):  # the last whole block, behind which a state is kept, and the rest
            if computed == end:
                continue
            plan = cache.plan([request], [end - computed])
            execute(plan.groups[0].copies)
            integrity.wait()
            wrong = integrity.poll()
            if len(wrong):
                break
            forward(int(plan.groups[0].write_slot[0]), prompt[computed:end])
            commit = cache.commit(plan, [0], [])
            execute(commit.groups[0].copies)
            computed = end
        else:
            cache.finish([request])
            return started.reused_tokens
        cache.cancel(plan)  # no token depends on the wrong state
        cache.withdraw(wrong)
        cache.preempt([request])  # and starts again
# docs end


def forward(live: int, tokens: list[int]) -> None:
    store.tensor(0)[live] += np.float32(sum(tokens))  # a model runs here


serve(PROMPT)
assert serve(PROMPT) == 32
store.tensor(0)[:, 3, 5, 7] = 1.5  # somebody writes to all slots
assert serve(PROMPT) == 0
assert serve(PROMPT) == 32
usage = cache.integrity_usage()
print(f"{usage.reads} states were checked, {usage.changed} had changed, {usage.withdrawn_states} were taken back")
