# SPDX-License-Identifier: Apache-2.0
"""A pin keeps a system prompt while other prompts flood the cache, and a closed session makes room. python
pinned_prefix.py"""
import stateport

STATE_BYTES, KV_BYTES = 1 << 20, 1 << 10
SYSTEM = list(range(496))

cache = stateport.RequestCache(
    "tree", stateport.SlotLayout(checkpoints=8), max_requests=1, max_request_tokens=512, kv_tokens=4096,
    unchecked_layout=True, prefixes=stateport.PrefixOptions(pins=4, pinned_bytes=4 * STATE_BYTES),
    sessions=stateport.SessionOptions(remembered=64, idle_s=3600.0),
    eviction=stateport.Eviction("lru", state_bytes=STATE_BYTES, kv_bytes_per_token=KV_BYTES))


def serve(prompt: list[int], session: int = 0, last_turn: bool = False) -> int:
    """Computes a prompt, and finishes it. Answers how many tokens were reused."""
    started = cache.start(prompt, hint=stateport.ReuseHint(session=session, last_turn=last_turn))
    assert started is not None
    plan = cache.plan([started.request], [len(prompt) - started.reused_tokens])  # an engine runs the pass now
    cache.commit(plan, [0], [])
    cache.finish(started.request)
    return started.reused_tokens


# docs: pins and sessions
serve([*SYSTEM, 1])
pinned = cache.pin(SYSTEM, lease_s=600.0)
serve([1000 + token for token in SYSTEM], session=1)
serve([2000 + token for token in SYSTEM], session=2)
cache.close_session(2)  # what session 2 alone has used goes first, although it is the youngest
for tool in range(3, 8):
    serve([1000 * tool + token for token in SYSTEM], session=tool, last_turn=True)  # closes its session with its end
# docs end

assert pinned.tokens == 496
assert cache.session_usage(2).bytes == 0 < cache.session_usage(1).bytes
for prompt in range(20, 60):
    serve([1000 * prompt + token for token in SYSTEM])
reused = serve([*SYSTEM, 2])
assert cache.unpin(pinned.pin)
print(f"reused: {reused} of 496 after a flood; pinned: {cache.prefix_usage.made_pins} prefix")
