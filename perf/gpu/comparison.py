# SPDX-License-Identifier: Apache-2.0
"""Ways to do one work, timed against each other; ../comparison.hpp for benchmarks in Python. Standard library only."""
import itertools
import re
from dataclasses import dataclass
from typing import Callable


class WrongBytes(Exception):
    """A run left other bytes than it should."""


@dataclass(frozen=True)
class Contender:
    """`run(round)` does the work once and `prepare(round)` readies its destinations before that; `holds(round)` says
    whether they are right after it. Rounds rotate over disjoint memory."""

    name: str
    run: Callable
    prepare: Callable
    holds: Callable


def at_share(samples, share):
    ordered = sorted(samples)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]


def median(samples):
    return at_share(samples, 0.5)


def run_checked(contender, round, time_ns):
    """Time of one run of a contender in ns. Raises WrongBytes."""
    contender.prepare(round)
    ns = time_ns(lambda: contender.run(round))
    if not contender.holds(round):
        raise WrongBytes(f"{contender.name}: a destination holds other bytes than it should (round {round})")
    return ns


def compare(contenders, rounds, time_ns):
    """Counters of the contenders, interleaved: A B C A' B C A …, one round first to warm up. The first is ours; it runs
    twice a round, and aa_spread is how far the medians of its two series lie apart."""
    run = itertools.count()
    series = [[run_checked(contender, next(run), time_ns) for contender in [*contenders, contenders[0]]]
              for _ in range(rounds + 1)]
    *samples, again = zip(*series[1:])
    ours = samples[0]
    counters = {f"{contender.name}_ns": median(times) for contender, times in zip(contenders, samples)}
    for contender, times in zip(contenders[1:], samples[1:]):
        counters[f"ratio_to_{contender.name}"] = median(times) / median(ours)
    return {**counters, "p10_ns": at_share(ours, 0.1), "p90_ns": at_share(ours, 0.9),
            "aa_spread": abs(median(again) / median(ours) - 1)}


def run_all(benchmarks, pattern, say):
    """Returns Google Benchmark's objects of the benchmarks, {name: function that returns counters}, whose names `pattern`
    is found in. `say(text)` names those for which a device has no memory."""
    objects = []
    for name, run in benchmarks.items():
        if not re.search(pattern, name):
            continue
        result = {"name": name, "run_type": "iteration", "iterations": 1, "time_unit": "ns"}
        try:
            counters = run()
            objects.append({**result, "real_time": counters["ours_ns"], **counters})
        except WrongBytes as error:
            objects.append({**result, "error_occurred": True, "error_message": str(error)})
        except (MemoryError, RuntimeError) as error:  # torch's own error of a full device is a RuntimeError
            if not isinstance(error, MemoryError) and "out of memory" not in str(error):
                raise
            say(f"{name}: not run: {error}")
    return objects


def fastest(candidates, time_ns, repeats=5):
    """The contender that takes the least time: a peer is given its best shape before it is compared."""
    def typical(contender):
        run_checked(contender, 0, time_ns)
        return median([run_checked(contender, i, time_ns) for i in range(repeats)])

    return min(candidates, key=typical) if len(candidates) > 1 else candidates[0]


def rounds_that_fit(round_bytes, free_bytes, least_pool_bytes=2 << 30, disjoint=4):
    """How many disjoint rounds a pool has: at least four and 2 GiB, fewer where memory has no room for them, 0 if it
    has none for one. A round of several GiB leaves nothing of itself in a cache, however few rounds there are."""
    wanted = max(disjoint, -(-least_pool_bytes // round_bytes))
    return min(wanted, int(free_bytes // round_bytes))
