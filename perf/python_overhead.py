#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of the Python package beyond the library: row P1, a match of 32k tokens and a decode step of 256 requests.

    python perf/python_overhead.py [--rounds 31]   # with the package installed

Each question runs in turn: the bare C function with everything prepared (the time of C++ and of one foreign call, whose
cost is measured, too), the package, and the bare function again for the spread. Medians of rounds, p10 and p90."""
import argparse
import ctypes
import statistics
import time

import numpy as np

import stateport as sp
from stateport import _c, _library

TOKENS, REQUESTS = 32768, 256


def measure(rounds, repeats, *questions):
    """Microseconds a call of each question, [questions][rounds], interleaved."""
    times = [[] for _ in questions]
    for _ in range(rounds + 3):
        for question, taken in zip(questions, times, strict=True):
            begin = time.perf_counter()
            for _ in range(repeats):
                question()
            taken.append((time.perf_counter() - begin) / repeats * 1e6)
    return [taken[3:] for taken in times]


def tell(name, bare, package, again, call_us, goal):
    low, high = np.percentile(package, [10, 90])
    base, total = statistics.median(bare), statistics.median(package)
    spread = 100 * abs(statistics.median(again) / base - 1)
    print(f"{name}: C {base - call_us:.1f} us, Python {total:.1f} us (p10 {low:.1f}, p90 {high:.1f}): "
          f"+ {total - base + call_us:.1f} us, goal + {goal} us; A/A {spread:.1f} %")


def foreign_call_us(rounds):
    call = _library.library().stateport_version
    return statistics.median(measure(rounds, 1000, call)[0])


def match_questions():
    tree = sp.PrefixTree(8)
    prompt = np.random.default_rng(1).integers(0, 100_000, TOKENS).astype(np.int32)
    for end in range(TOKENS // 8, TOKENS + 1, TOKENS // 8):
        slot = int(tree.allocate_slots(1)[0])
        tree.tag_slot(slot, prompt[:end])
        tree.insert(prompt[:end], np.arange(end), slot=slot)
    out, function = _c.Match(), _library.library().stateport_tree_match
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p,
                         ctypes.c_void_p)
    arguments = (tree.handle, prompt.ctypes.data, TOKENS, None, None, ctypes.addressof(out))
    assert tree.match(prompt).tokens == TOKENS

    def bare():
        assert function(*arguments) == 0 and out.tokens == TOKENS and len(prompt) == TOKENS

    return bare, lambda: tree.match(prompt)


def decoding_cache():
    """256 requests past their prompts."""
    cache = sp.RequestCache("hash", sp.SlotLayout(layout_fingerprint=1, checkpoints=64), max_requests=REQUESTS,
                            max_request_tokens=1 << 20, kv_tokens=1 << 23)
    draw = np.random.default_rng(2)
    requests = []
    for _ in range(REQUESTS):
        started = cache.start(draw.integers(0, 100_000, 64))
        plan = cache.plan([started.request], [64])
        cache.commit(plan, [1], [1])
        requests.append(started.request)
    return cache, np.array(requests, np.int64)


def step_questions():
    ones = np.ones(REQUESTS, np.int32)
    cache, requests = decoding_cache()

    def package():
        plan = cache.plan(requests, ones)
        group = plan.groups[0]
        assert not len(group.copies) and not len(group.clear) and len(group.write_slot) == REQUESTS
        cache.commit(plan, ones, ones)

    return bare_step(ones), package


def bare_step(ones):
    cache, requests = decoding_cache()
    plan, commit = _library.library().stateport_request_cache_plan, _library.library().stateport_request_cache_commit
    plan.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    commit.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                       ctypes.c_size_t, ctypes.c_void_p)
    groups, kept = (_c.GroupPlan * 1)(_c.GroupPlan()), (_c.GroupCommit * 1)(_c.GroupCommit())
    batch = _c.PassBatch(rows=REQUESTS, request=requests.ctypes.data, tokens=ones.ctypes.data)
    out, done = _c.PassPlan(groups=groups, group_count=1), _c.PassCommit(groups=kept, group_count=1)
    data, kept_alive = ones.ctypes.data, (cache, requests, ones, groups, kept)
    handle, where = cache.handle, [ctypes.addressof(struct) for struct in (batch, out, done)]

    def bare():
        assert plan(handle, where[0], where[1]) == 0 and out.rows == len(kept_alive[1]) and batch.rows == REQUESTS
        assert commit(handle, out.pass_, data, REQUESTS, data, REQUESTS, where[2]) == 0 and done.has_next == 0

    return bare


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    call_us = foreign_call_us(rounds)
    print(f"stateport {sp.version()}, {_library.library_path().name}, {sp.backend() or 'core only'}; "
          f"a foreign call takes {call_us:.2f} us")
    bare, package = match_questions()
    tell("match of 32k tokens", *measure(rounds, 100, bare, package, bare), call_us, 10)
    bare, package = step_questions()
    tell("plan + commit of 256 requests", *measure(rounds, 20, bare, package, bare), 2 * call_us, 100)


if __name__ == "__main__":
    main()
