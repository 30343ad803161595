# SPDX-License-Identifier: Apache-2.0
"""Tests of the report: arithmetic of the rows, texts about absent programs, and change against noise."""
import contextlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

import perf_report
import plots
import rows

BENCH = rows.Figure("some_bench", "copy", "ours_ns")


def result(**counters):
    return {"name": "copy", "time_unit": "ms", "aa_spread": 0.02, **counters}


def measured(ratio, aa_spread=0.02, metric="copy"):
    return {"id": "C1", "metric": metric, "ours": 1.0, "ratio": ratio, "aa_spread": aa_spread}


class Rows(unittest.TestCase):
    def test_ratios_are_peer_over_ours_and_every_bound_must_hold(self):
        row = rows.row("C1", "copy", "some_bench", "copy", "ours_ns", "memcpy_ns", "limit_ns", ratio=1.3,
                       limit_share=0.92)
        for memcpy, limit, met in ((130, 92, True), (129, 92, False), (130, 91, False)):
            found = result(ours_ns=100, memcpy_ns=memcpy, limit_ns=limit)
            report = perf_report.evaluate(row, {("some_bench", None): {"copy": found}})
            self.assertEqual(report["met"], met)
            self.assertAlmostEqual(report["ratio"], memcpy / 100)
            self.assertAlmostEqual(report["limit_share"], limit / 100)

    def test_a_bound_on_time_is_in_ns_whatever_the_benchmark_s_unit(self):
        row = rows.row("B4", "plan", "some_bench", "copy", "real_time", ns=50_000)
        for milliseconds, met in ((0.05, True), (0.051, False)):
            found = {("some_bench", None): {"copy": result(real_time=milliseconds)}}
            self.assertEqual(perf_report.evaluate(row, found)["met"], met)

    def test_a_row_without_a_goal_is_neither_met_nor_missed(self):
        row = rows.row("mix", "copy", "some_bench", "copy", "ours_ns", "memcpy_ns")
        found = {("some_bench", None): {"copy": result(ours_ns=2, memcpy_ns=1)}}
        self.assertIsNone(perf_report.evaluate(row, found)["met"])

    def test_scaling_compares_speedups(self):
        def figure(counter, threads):
            return rows.Figure("some_bench", "copy", counter, threads)

        row = rows.SpeedupRow("C3", "scaling", figure("ours_ns", 1), figure("ours_ns", None), figure("peer_ns", 1),
                              figure("peer_ns", None), rows.Goal(ratio=0.9))
        found = {("some_bench", 1): {"copy": result(ours_ns=180, peer_ns=200)},
                 ("some_bench", None): {"copy": result(ours_ns=100, peer_ns=100)}}
        report = perf_report.evaluate(row, found)
        self.assertAlmostEqual(report["ratio"], 0.9)
        self.assertTrue(report["met"])

    def test_a_row_whose_program_is_absent_says_so(self):
        report = perf_report.evaluate(rows.row("G1", "copy", "gpu_bench", "copy", "ours_ns"), {})
        self.assertIsNone(report["met"])
        self.assertIn("gpu_bench", report["status"])
        self.assertIn("not run", perf_report.table([report]))

    def test_every_row_has_a_unique_name(self):
        names = [(row.id, row.metric) for row in rows.ROWS]
        self.assertEqual(len(names), len(set(names)))


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, script):
        path = self.folder / "slot_copy_bench"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def test_a_program_without_a_device_is_skipped_and_a_failing_one_is_an_error(self):
        program = self.program("echo 'skipped: CUDA device 0: no device found' >&2; exit 77")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            skipped = perf_report.run_program(program, None, ["copy"])
        self.assertEqual(skipped, {"skipped": "CUDA device 0: no device found"})
        self.assertIn("no device found", printed.getvalue())
        report = perf_report.evaluate(rows.row("C2", "copy", "slot_copy_bench", "copy", "ours_ns"),
                                      {("slot_copy_bench", None): skipped})
        self.assertEqual(report["status"], "not run: CUDA device 0: no device found")
        program = self.program("echo 'error while loading shared libraries: libcuda.so.1' >&2; exit 127")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertIn("no device", perf_report.run_program(program, None, ["copy"])["skipped"])
        with self.assertRaisesRegex(perf_report.BenchmarkFailed, "exit code 3"):
            perf_report.run_program(self.program("exit 3"), None, ["copy"])
        absent = perf_report.run_program(self.folder / "absent", None, ["copy"])
        self.assertIn("not part of this build", absent["skipped"])

    def test_a_wrong_result_inside_a_benchmark_is_an_error(self):
        wrong = {"benchmarks": [{"name": "copy", "error_occurred": True, "error_message": "a destination differs"}]}
        with self.assertRaisesRegex(perf_report.BenchmarkFailed, "a destination differs"):
            perf_report.run_program(self.program(f"echo '{json.dumps(wrong)}'"), None, ["copy"])

    def test_run_writes_json_and_table_and_draws_the_plots_beside_them(self):
        manual = "/iterations:1/manual_time"
        objects = [result(name=f"C1/{n}{manual}", ours_ns=100.0, memcpy_ns=150.0, contiguous_nontemporal_ns=95.0,
                          GB_per_s=10.0) | {"name": f"C1/{n}{manual}"} for n in (1, 2, 4, 8)]
        self.program(f"echo '{json.dumps({'benchmarks': objects})}'")
        out = self.folder / "report.json"
        arguments = ["perf_report.py", "run", "--programs", str(self.folder), "--out", str(out), "--only", "C1",
                     "--fact", "backend=OPENMP"]
        printed = io.StringIO()
        with mock.patch("sys.argv", arguments), contextlib.redirect_stdout(printed), \
                mock.patch("plots.draw", return_value=[]) as draw:
            self.assertEqual(perf_report.main(), 0)
        report = json.loads(out.read_text())
        self.assertEqual(report["backend"], "OPENMP")
        self.assertEqual([row["met"] for row in report["rows"]], [True] * 4)
        self.assertIn("ratio >= 1.3", printed.getvalue())
        (results, path), _ = draw.call_args
        self.assertEqual(path, out)
        self.assertEqual(results["slot_copy_bench", None][f"C1/8{manual}"]["GB_per_s"], 10.0)

    def test_without_matplotlib_there_are_no_plots(self):
        absent = mock.patch.dict(sys.modules, {"matplotlib": None, "stateport_report.plots": None})
        with absent, contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(plots.draw({}, self.folder / "report.json"), [])
        self.assertIn("no plots", printed.getvalue())


class Comparing(unittest.TestCase):
    def verdicts(self, old, new):
        return [verdict for *_, verdict in perf_report.compare_reports({"rows": [old]}, {"rows": [new]})]

    def test_a_change_within_the_spread_is_noise(self):
        self.assertEqual(self.verdicts(measured(1.5), measured(1.45)), ["noise"])
        self.assertEqual(self.verdicts(measured(1.5, 0.2), measured(1.0, 0.01)), ["noise"])

    def test_a_change_beyond_the_spread_is_better_or_worse(self):
        self.assertEqual(self.verdicts(measured(1.5), measured(1.0)), ["WORSE"])
        self.assertEqual(self.verdicts(measured(1.0), measured(1.5)), ["better"])

    def test_times_without_a_peer_are_not_judged(self):
        self.assertEqual(self.verdicts(measured(None), measured(None)), ["time only"])

    def test_the_command_prints_each_change_and_fails_for_the_worse(self):
        with tempfile.TemporaryDirectory() as folder:
            old, new = (pathlib.Path(folder) / name for name in ("old.json", "new.json"))
            for now, code, verdict in ((1.5, 0, "noise"), (1.0, 1, "WORSE")):
                old.write_text(json.dumps({"rows": [measured(1.5)]}))
                new.write_text(json.dumps({"rows": [measured(now)]}))
                arguments = ["perf_report.py", "compare", str(old), str(new)]
                with mock.patch("sys.argv", arguments), contextlib.redirect_stdout(io.StringIO()) as printed:
                    self.assertEqual(perf_report.main(), code)
                self.assertRegex(printed.getvalue(), rf"C1 .*1\.50 -> .*{now:.2f}  {verdict}")

    def test_rows_that_one_report_lacks_are_left_out(self):
        self.assertEqual(self.verdicts(measured(1.5, metric="other"), measured(1.0)), [])


if __name__ == "__main__":
    unittest.main()
