# SPDX-License-Identifier: Apache-2.0
"""A tenant floods a cache; another one keeps its floor. python tenant_shares.py"""
import stateport

quiet, flood = stateport.Namespace(salt=b"quiet"), stateport.Namespace(salt=b"flood")
STATE_BYTES, KV_BYTES = 1 << 20, 1 << 10


def make() -> stateport.RequestCache:
    return stateport.RequestCache(
        "tree", stateport.SlotLayout(checkpoints=8), max_requests=1, max_request_tokens=512, kv_tokens=4096,
        unchecked_layout=True, tenant_quotas=1,
        eviction=stateport.Eviction("lru", state_bytes=STATE_BYTES, kv_bytes_per_token=KV_BYTES))


def serve(cache: stateport.RequestCache, tenant: stateport.Namespace, first: int) -> int:
    """Computes a prompt of 497 tokens, and finishes it. Answers how many tokens were reused."""
    started = cache.start(list(range(first, first + 497)), namespace=tenant)
    assert started is not None
    plan = cache.plan([started.request], [497 - started.reused_tokens])  # an engine runs the pass now
    cache.commit(plan, [0], [])
    cache.finish(started.request)
    return started.reused_tokens


def hits_after_a_flood(cache: stateport.RequestCache) -> int:
    serve(cache, quiet, 0)
    for prompt in range(1, 30):
        serve(cache, flood, 1000 * prompt)
    return serve(cache, quiet, 0)


without = hits_after_a_flood(make())

# docs: tenant shares
cache = make()
cache.set_quota(quiet, floor_bytes=2 * STATE_BYTES)
kept = hits_after_a_flood(cache)
usage = cache.tenant_usage(quiet)
# docs end

assert usage.state_bytes + usage.kv_bytes >= STATE_BYTES + 496 * KV_BYTES
print(f"reused: {without} of 496 without a floor, {kept} with one")
