#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of MooncakeStore as a share of Mooncake's own client: put and get of an object over loopback TCP, from and
to registered memory, and 1,000 questions in one batch. Goal of put and get: 0.9.

    python perf/mooncake_overhead.py [--rounds 31] [--mib 64]   # with stateport and Mooncake installed

It starts a master and a client that lends its memory. Each question runs in turn: ours, the client's own call, ours
again for the spread. Medians of rounds, p10 and p90."""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

import stateport as sp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "engines" / "mooncake"))
from master import Master  # noqa: E402

GOAL, KEYS = ", goal 0.9", 1000


def do_nothing():
    pass


def measure(rounds, tidy, *questions):
    """Milliseconds of each question, [questions][rounds], interleaved, in turning order; `tidy` runs behind each, and
    is not measured."""
    times = [[] for _ in questions]
    order = list(zip(questions, times, strict=True))
    for _ in range(rounds + 2):
        order.append(order.pop(0))
        for question, taken in order:
            begin = time.perf_counter()
            question()
            taken.append((time.perf_counter() - begin) * 1e3)
            tidy()
    return [taken[2:] for taken in times]


def tell(name, ours, bare, again, goal=""):
    low, high = np.percentile(ours, [10, 90])
    mine, base = statistics.median(ours), statistics.median(bare)
    spread = 100 * abs(statistics.median(again) / mine - 1)
    print(f"{name}: ours {mine:.3f} ms (p10 {low:.3f}, p90 {high:.3f}), the client {base:.3f} ms: "
          f"{base / mine:.2f} of its speed{goal}; A/A {spread:.1f} %")


class Questions:
    def __init__(self, store, client, size):
        self.store, self.client = store, client
        self.memory = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        store.register(self.memory)
        self.names = [f"stateport/1/0123456789abcdef/state/0/4096/{i}" for i in range(KEYS)]
        self.where, self.size = [self.memory.ctypes.data], [size]

    def _wait(self):
        while not len(answers := self.store.poll(1)):
            time.sleep(0.0005)  # an engine asks once a step; asking all the time takes a core from the client
        assert answers["status"][0] == 0, answers

    def put(self):
        self.store.put([1], ["object"], [self.memory])
        self._wait()

    def get(self):
        self.store.get([1], ["object"], [self.memory])
        self._wait()

    def exists(self):
        self.store.exists(range(KEYS), self.names)
        count = 0
        while count < KEYS:
            answers = self.store.poll(KEYS)
            count += len(answers)
            assert (answers["status"] == 2).all(), answers
            if not len(answers):
                time.sleep(0.00002)

    def bare_put(self):
        assert self.client.batch_put_from(["object"], self.where, self.size) == [0]

    def bare_get(self):
        assert self.client.batch_get_into(["object"], self.where, self.size) == self.size

    def bare_exists(self):
        assert not any(self.client.batch_is_exist(self.names))

    def remove(self):
        assert self.client.remove("object", True) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    from mooncake.store import MooncakeDistributedStore

    with tempfile.TemporaryDirectory() as folder, Master(pathlib.Path(folder) / "log") as master, master.lender():
        client = MooncakeDistributedStore()
        assert client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 128 << 20, "tcp", "", master.address) == 0
        with sp.MooncakeStore(client) as store:
            ask = Questions(store, client, options.mib << 20)
            times = measure(options.rounds, ask.remove, ask.put, ask.bare_put, ask.put)
            tell(f"put of {options.mib} MiB", *times, GOAL)
            ask.bare_put()
            times = measure(options.rounds, do_nothing, ask.get, ask.bare_get, ask.get)
            tell(f"get of {options.mib} MiB", *times, GOAL)
            times = measure(5 * options.rounds, do_nothing, ask.exists, ask.bare_exists, ask.exists)
            tell(f"exists of {KEYS:,} keys", *times)
        client.close()


if __name__ == "__main__":
    main()
