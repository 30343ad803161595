# SPDX-License-Identifier: Apache-2.0
"""A trainer changes the weights while a request runs; an adapter changes later. python new_weights.py"""
import stateport

cache = stateport.RequestCache("hash", stateport.SlotLayout(checkpoints=8), max_requests=2, max_request_tokens=4096,
                               kv_tokens=16384, unchecked_layout=True)
prompt = list(range(500))
poet = stateport.Namespace(extra_key=b"poet")


def run(started: stateport.StartedRequest) -> int:
    """Computes a prompt of 500 tokens, and finishes it. Answers how many tokens were reused."""
    plan = cache.plan([started.request], [500 - started.reused_tokens])  # an engine runs the pass now
    cache.commit(plan, [1], [7])
    cache.finish(started.request)
    return started.reused_tokens


def serve(namespace: stateport.Namespace | None = None) -> int:
    started = cache.start(prompt, namespace=namespace)
    assert started is not None
    return run(started)


assert (serve(), serve()) == (0, 496)

# docs: new weights
running = cache.start(prompt)  # continues from a state of the old weights
cache.advance_epoch()  # the weights have changed: nothing waits for the request
assert running is not None and cache.is_stale(running.request)
old = run(running)  # it ends with what it holds, and nothing of it is kept
new = [serve(), serve()]  # the first finds nothing, the second what the first has left
# docs end

assert (serve(poet), serve(poet)) == (0, 496)
cache.forget(poet, by="extra_key")  # another version of the adapter is there
adapter = serve(poet)
print(f"reused: {old} with old weights, then {new[0]} and {new[1]}; {adapter} of a new adapter")
