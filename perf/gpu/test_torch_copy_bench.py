# SPDX-License-Identifier: Apache-2.0
"""Tests of the parts of torch_copy_bench that need no torch: the comparison, skipped rows, and its JSON."""
import contextlib
import io
import itertools
import pathlib
import sys
import unittest
from unittest import mock

import comparison
import torch_copy_bench
from comparison import Contender

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "report"))
import perf_report  # noqa: E402
import rows  # noqa: E402


class Log:
    """Contenders whose runs take given times, and the order of their calls."""

    def __init__(self):
        self.calls = []
        self.ns = None

    def contender(self, name, times, holds=lambda round: True):
        left = itertools.cycle(times)

        def run(round):
            self.calls.append((name, round))
            self.ns = next(left)

        return Contender(name, run, lambda round: self.calls.append(("prepare", round)), holds)

    def time_ns(self, run):
        run()
        return self.ns


class Comparing(unittest.TestCase):
    def test_contenders_alternate_and_ours_runs_twice_a_round(self):
        log = Log()
        comparison.compare([log.contender("ours", [1]), log.contender("peer", [1])], 2, log.time_ns)
        names = [name for name, _ in log.calls if name != "prepare"]
        self.assertEqual(names, ["ours", "peer", "ours"] * 3)
        self.assertEqual([round for name, round in log.calls if name == "prepare"], list(range(9)))

    def test_the_first_round_only_warms_up(self):
        log = Log()
        ours = log.contender("ours", [900, 900, 10, 11, 12, 11, 11, 12])
        found = comparison.compare([ours, log.contender("peer", [800, 22, 22, 22])], 3, log.time_ns)
        self.assertEqual((found["ours_ns"], found["peer_ns"], found["ratio_to_peer"]), (11, 22, 2))
        self.assertEqual((found["p10_ns"], found["p90_ns"], found["aa_spread"]), (10, 12, 0))

    def test_the_spread_is_that_of_the_two_series_of_ours(self):
        log = Log()
        found = comparison.compare([log.contender("ours", [10, 12])], 5, log.time_ns)
        self.assertAlmostEqual(found["aa_spread"], 0.2)

    def test_one_wrong_run_of_anybody_is_an_error(self):
        log = Log()
        wrong = log.contender("peer", [1], holds=lambda round: round != 4)
        with self.assertRaisesRegex(comparison.WrongBytes, "peer.*round 4"):
            comparison.compare([log.contender("ours", [1]), wrong], 3, log.time_ns)

    def test_a_peer_is_compared_in_its_fastest_shape(self):
        log = Log()
        slow, fast = log.contender("slow", [9, 9, 9, 1]), log.contender("fast", [5])
        self.assertIs(comparison.fastest([slow, fast], log.time_ns), fast)
        log.calls.clear()
        self.assertIs(comparison.fastest([slow], log.time_ns), slow)
        self.assertEqual(log.calls, [])

    def test_pools_have_four_rounds_and_2_GiB_where_memory_allows(self):
        gib = 1 << 30
        self.assertEqual(comparison.rounds_that_fit(gib, 64 * gib), 4)
        self.assertEqual(comparison.rounds_that_fit(gib // 4, 64 * gib), 8)
        self.assertEqual(comparison.rounds_that_fit(gib // 4 - 1, 64 * gib), 9)
        self.assertEqual(comparison.rounds_that_fit(26 * gib, 58 * gib), 2)
        self.assertEqual(comparison.rounds_that_fit(60 * gib, 58 * gib), 0)


class Running(unittest.TestCase):
    def test_without_torch_it_says_so_and_is_skipped(self):
        said = io.StringIO()
        with mock.patch.dict(sys.modules, {"torch": None}), contextlib.redirect_stderr(said):
            self.assertEqual(torch_copy_bench.main(["--library", "absent.so"]), 77)
        self.assertRegex(said.getvalue(), "^skipped: Python has no torch and Triton here: .*torch")

    def test_without_a_device_it_says_so_and_is_skipped(self):
        said, torch = io.StringIO(), mock.MagicMock()
        torch.cuda.is_available.return_value = False
        with mock.patch.dict(sys.modules, {"torch": torch, "triton": mock.MagicMock()}), \
                contextlib.redirect_stderr(said):
            self.assertEqual(torch_copy_bench.main(["--library", "absent.so"]), 77)
        self.assertEqual(said.getvalue(), "skipped: torch finds no device\n")

    def test_benchmarks_that_do_not_fit_or_go_wrong_stop_no_other(self):
        def raises(error):
            raise error

        said = []
        objects = comparison.run_all(
            {"G1/1": lambda: {"ours_ns": 5}, "G1/2": lambda: raises(MemoryError("9 MiB are needed")),
             "G3": lambda: raises(comparison.WrongBytes("triton: wrong")), "G5": lambda: self.fail("not asked for")},
            "^G1/1$|^G1/2$|^G3$", said.append)
        self.assertEqual(said, ["G1/2: not run: 9 MiB are needed"])
        self.assertEqual([(result["name"], result.get("ours_ns"), result.get("error_message")) for result in objects],
                         [("G1/1", 5, None), ("G3", None, "triton: wrong")])

    def test_a_device_without_memory_is_no_failure(self):
        class Exhausted(Exception):
            pass

        device, workloads = mock.Mock(OutOfMemory=Exhausted), mock.Mock()
        device.name = "cuda"
        workloads.ContiguousCopy.side_effect = Exhausted("tried to allocate 1 GiB")
        said = []
        suite = torch_copy_bench.Suite(None, device, workloads)
        self.assertEqual(comparison.run_all(suite.benchmarks(), "^G5$", said.append), [])
        self.assertEqual(said, ["G5: not run: tried to allocate 1 GiB"])

    def test_the_report_asks_for_benchmarks_and_counters_that_there_are(self):
        device = mock.Mock()
        device.name = "cuda"
        names = torch_copy_bench.Suite(None, device, None).benchmarks()
        log = Log()
        contenders = [log.contender(name, [2]) for name in ("ours", "triton", "torch", "empty")]
        counters = {**comparison.compare(contenders, 1, log.time_ns), "limit_ns": 1}
        objects = comparison.run_all({name: lambda: counters for name in names}, "", self.fail)
        results = {("torch_copy_bench", None): {result["name"]: result for result in objects}}
        for row in rows.torch_rows():
            self.assertEqual(perf_report.evaluate(row, results)["status"], "measured")
        self.assertEqual({figure.benchmark for row in rows.torch_rows() for figure in row.figures()}, set(names))


if __name__ == "__main__":
    unittest.main()
