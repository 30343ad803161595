# SPDX-License-Identifier: Apache-2.0
"""Tests of transformers_bench without transformers: reasons to skip, names and JSON."""
import contextlib
import io
import pathlib
import sys
import unittest
from unittest import mock

import comparison
import transformers_bench

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "report"))
import perf_report  # noqa: E402
import rows  # noqa: E402

COUNTERS = {"ours_ns": 10, "generate_ns": 20, "same_tokens": True}


class Running(unittest.TestCase):
    def test_without_torch_it_says_so_and_is_skipped(self):
        said = io.StringIO()
        with mock.patch.dict(sys.modules, {"torch": None}), contextlib.redirect_stderr(said):
            self.assertEqual(transformers_bench.main(["--library", "absent.so"]), 77)
        self.assertRegex(said.getvalue(), "^skipped: Python has no torch and transformers here: .*torch")

    def test_a_number_that_is_not_positive_is_refused(self):
        said = io.StringIO()
        for option in ("--tokens", "--rounds"):
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
                transformers_bench.parse(["--library", "x", option, "-1"])
            self.assertIn(f"{option} -1", said.getvalue())

    def test_a_full_device_stops_no_other_benchmark_and_another_error_stops_all(self):
        def raises(error):
            raise error

        said = []
        objects = comparison.run_all(
            {"H1/a": lambda: raises(RuntimeError("CUDA out of memory: 1 GiB")), "hit/a": lambda: COUNTERS,
             "again/a": lambda: self.fail("not asked for")}, "^H1|^hit", said.append)
        self.assertEqual(said, ["H1/a: not run: CUDA out of memory: 1 GiB"])
        self.assertEqual([(result["name"], result["real_time"]) for result in objects], [("hit/a", 10)])
        with self.assertRaisesRegex(RuntimeError, "no kernel"):
            comparison.run_all({"H1/a": lambda: raises(RuntimeError("no kernel"))}, "", said.append)

    def test_the_report_asks_for_benchmarks_and_counters_that_there_are(self):
        size = transformers_bench.SIZES["cuda"]
        bench = mock.Mock()
        bench.miss.return_value = bench.hit.return_value = bench.again.return_value = COUNTERS
        bench.restart.return_value = COUNTERS
        found = transformers_bench.benchmarks(lambda kind: bench, transformers_bench.MODELS, size["tokens"],
                                              size["chunks"])
        objects = comparison.run_all(found, "", self.fail)
        results = {("transformers_bench", None): {result["name"]: result for result in objects}}
        wanted = list(rows.transformers_rows())
        for row in wanted:
            self.assertEqual(perf_report.evaluate(row, results)["status"], "measured")
        self.assertEqual({figure.benchmark for row in wanted for figure in row.figures()}, set(found))

    def test_a_miss_may_take_a_twentieth_more_than_generate(self):
        row = next(rows.transformers_rows())
        for ours, met in ((105, True), (106, False)):
            results = {("transformers_bench", None): {
                row.ours.benchmark: {"ours_ns": ours, "generate_ns": 100, "time_unit": "ns"}}}
            self.assertEqual(perf_report.evaluate(row, results)["met"], met)


if __name__ == "__main__":
    unittest.main()
