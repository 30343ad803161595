# SPDX-License-Identifier: Apache-2.0
"""The next turn of a chat continues from a position that the last one named. python named_positions.py"""
from collections.abc import Sequence

import stateport

cache = stateport.RequestCache("hash", stateport.SlotLayout(checkpoints=8, tail_tokens=64), max_requests=1,
                               max_request_tokens=4096, kv_tokens=8192, unchecked_layout=True)


def serve(prompt: list[int], breakpoints: Sequence[int] = ()) -> int:
    """Runs a prompt in passes, and finishes it. Answers how many tokens were reused."""
    request = cache.start(prompt, breakpoints=breakpoints)
    assert request is not None
    computed = request.reused_tokens
    while computed < len(prompt):
        tokens = int(cache.chunk([request.request], [512])[0])
        plan = cache.plan([request.request], [tokens])  # an engine runs the pass now
        computed += tokens
        is_end = computed == len(prompt)
        cache.commit(plan, [int(is_end)], [7] if is_end else [])
    cache.finish(request.request)
    return request.reused_tokens


# docs: named positions
chat = list(range(500))  # all turns up to a question, as the template writes them
asks = [1001, 1002, 1003]  # the text that asks for an answer; the next turn has another one there
serve(chat + asks, breakpoints=[len(chat)])
reused = serve([*chat, 2001, 2002, *range(3000, 3200), *asks])  # with the answer and a new question
# docs end

assert reused == 496, "the turn does not continue from the named position"
print(f"{reused} of {len(chat)} tokens of the chat are reused")
