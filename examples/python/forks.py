# SPDX-License-Identifier: Apache-2.0
"""Samples eight answers to one prompt, and a beam search of width four: the prompt is computed once. python forks.py"""
from typing import Any

import stateport

PROMPT, SAMPLES, BEAMS, STEPS = list(range(1000)), 8, 4, 20

cache = stateport.RequestCache("tree", stateport.SlotLayout(checkpoints=8), max_requests=16, max_request_tokens=2000,
                               kv_tokens=16000, unchecked_layout=True)
computed = copied = 0


def run(requests: list[int], tokens: list[int], sampled: list[int]) -> None:
    """A pass: requests[i] runs tokens[i] tokens. Those that have a token to sample get one of `sampled` each."""
    global computed, copied
    plan = cache.plan(requests, tokens)  # an engine carries out the plan and runs the pass now
    computed, copied = computed + sum(tokens), copied + len(plan.fork_copies)
    cache.commit(plan, [1] * len(sampled) if sampled else [0] * len(requests), sampled)


def prefill() -> int:
    started = cache.start(PROMPT)
    assert started is not None
    if (left := len(PROMPT) - started.reused_tokens) > 0:
        run([started.request], [left], [])
    return started.request


def fork(request: int, tokens: list[int]) -> list[int]:
    forks = cache.fork(request, tokens)
    assert forks is not None  # fewer request numbers are free
    return forks


# docs: samples
prompt = prefill()
samples = fork(prompt, list(range(SAMPLES)))  # each goes on with another first token, of the same logits
cache.finish([prompt])                        # it keeps its memory until the samples have begun
for step in range(STEPS):
    run(samples, [1] * SAMPLES, [100 + step] * SAMPLES)
cache.finish(samples)
# docs end


def best(beams: list[int], step: int) -> list[tuple[int, int]]:
    """Which beams go on, and with which tokens: an engine ranks them by their probabilities."""
    return [(beams[(step + i) % 2], 7 * step + i) for i in range(BEAMS)]


# docs: beams
prompt = prefill()
beams = fork(prompt, list(range(BEAMS)))
cache.finish([prompt])
for step in range(STEPS):
    run(beams, [1] * BEAMS, [0] * BEAMS)
    chosen = [fork(beam, [token])[0] for beam, token in best(beams, step)]
    cache.abort(beams)
    beams = chosen
# docs end

cache.check_invariants()
stats: Any = cache.stats()
print(f"{computed:,} tokens computed, {stats.forks} forks, {copied} KV blocks copied")
