# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine in Python: it decides, and no device is needed. python scheduler.py"""
# docs: scheduler
import numpy as np

import stateport

cache = stateport.RequestCache("tree", stateport.SlotLayout(checkpoints=64), max_requests=8, max_request_tokens=4096,
                               kv_tokens=1 << 16, unchecked_layout=True, eviction=stateport.Eviction("lru"))


def serve(prompt):
    """Serves one prompt; returns how many of its tokens were not computed again."""
    with cache.serving(prompt) as request:
        while (left := len(prompt) - cache.computed(request.request)) > 0:
            tokens = cache.chunk([request.request], [64])
            plan = cache.plan([request.request], tokens)
            # Clear plan.groups[0].clear, copy plan.groups[0].copies, run the forward pass, then:
            ends = int(tokens[0]) == left
            commit = cache.commit(plan, [int(ends)], [7] if ends else [])
            print(f"{len(commit.groups[0].copies)} states to copy to slots that are kept")
    return request.reused_tokens


for length in (200, 300):
    print(f"{serve(np.arange(length))} of {length} tokens reused")
# docs end
