# SPDX-License-Identifier: Apache-2.0
"""16 answers to one prompt, as GRPO samples them: the prompt is computed once. python shared_prefix.py"""
from typing import Any

import stateport

PROMPT, ANSWERS, BUDGET = list(range(1000)), 16, 512  # a pass computes at most BUDGET tokens


def make(**options: Any) -> stateport.RequestCache:
    return stateport.RequestCache("tree", stateport.SlotLayout(checkpoints=32), max_requests=ANSWERS,
                                  max_request_tokens=2000, kv_tokens=32000, unchecked_layout=True, **options)


def serve(cache: stateport.RequestCache, refreshes: bool = False) -> int:
    """Starts all requests, and computes their prompts. Answers how many tokens the passes computed."""
    requests = []
    for _ in range(ANSWERS):
        started = cache.start(PROMPT)
        assert started is not None
        requests.append(started.request)
    computed, begun = 0, set()
    while left := [request for request in requests if cache.computed(request) < len(PROMPT)]:
        rows, tokens = [], []
        for request in left:
            if refreshes and request not in begun:
                cache.refresh(request)  # requests before this one may have computed its prompt
            part = int(cache.chunk([request], [BUDGET - sum(tokens)])[0])
            if part > 0:  # else no budget is left, or the request waits for another one
                rows.append(request)
                tokens.append(part)
        plan = cache.plan(rows, tokens)  # an engine runs the pass now
        ends = [int(cache.computed(row) + part == len(PROMPT)) for row, part in zip(rows, tokens, strict=True)]
        cache.commit(plan, ends, [7] * sum(ends))
        begun.update(rows)
        computed += sum(tokens)
    cache.finish(requests)
    return computed


alone = serve(make())

# docs: shared prefix
refreshed = serve(make(), refreshes=True)  # a request is looked up again before its first pass
cache = make(share_running=stateport.ShareRunning(least_tokens=64))
awaited = serve(cache)  # a request waits until an earlier one has computed what both share
# docs end

assert cache.stats().awaited_tokens == ANSWERS * len(PROMPT) - awaited
print(f"prompt tokens computed: {alone:,} alone, {refreshed:,} with refresh, {awaited:,} with waiting")
