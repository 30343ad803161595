# SPDX-License-Identifier: Apache-2.0
"""Tests of the plots of a report. Exit code 77 without matplotlib."""
import importlib.util
import pathlib
import sys
import tempfile
import unittest
from unittest import mock
from xml.etree import ElementTree

import plots

SKIPPED = 77


class Plots(unittest.TestCase):
    def test_places_are_in_order_and_every_series_has_a_number_for_each(self):
        plot = plots.Plot("name", "title", "x", "y", "some_bench", {10: "b", 2000: "c", 1: "a", 4: "not run"},
                          {"ours": lambda found: found["ours_ns"], "twice": lambda found: 2 * found["ours_ns"]})
        found = {name: {"ours_ns": number} for name, number in (("a", 5), ("b", 7), ("c", 9))}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(plots, "PLOTS", [plot]), \
                mock.patch("stateport_report.plots.to_svg", return_value="drawn") as draw:
            path, = plots.draw({("some_bench", None): found}, pathlib.Path(folder) / "report.json")
            self.assertEqual(path.read_text(), "drawn")
        drawn, = draw.call_args.args
        self.assertEqual((drawn.title, drawn.x, drawn.y, drawn.places), ("title", "x", "y", ["1", "10", "2,000"]))
        self.assertEqual(drawn.series, {"ours": [5, 7, 9], "twice": [10, 14, 18]})

    def test_the_bandwidth_of_copies_is_a_file_beside_the_report(self):
        found = {f"C1/{n}{plots.MANUAL}": {"ours_ns": 100.0, "memcpy_ns": 150.0, "contiguous_nontemporal_ns": 95.0,
                                           "GB_per_s": 10.0} for n in (1, 2, 4, 8)}
        with tempfile.TemporaryDirectory() as folder:
            path, = plots.draw({("slot_copy_bench", None): found}, pathlib.Path(folder) / "report.json")
            self.assertEqual(path.name, "report-bandwidth.svg")
            svg = ElementTree.parse(path).getroot()
        words = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
        for word in ("State copies, chunks of 1 MiB and more", "GB/s (read + written)", "8", "stateport",
                     "memcpy per chunk", "contiguous, non-temporal"):
            self.assertIn(word, words)


if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: matplotlib is not installed")
        sys.exit(SKIPPED)
    unittest.main()
