#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of stateport-report have the figures of the JSON that stateport-replay writes.

    report_test.py PROGRAM

PROGRAM is stateport-replay. Exit code 77 without matplotlib."""
import contextlib
import html.parser
import importlib.util
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT / "apps" / "report"))
SKIPPED = 77
GIB = 1 << 30
VOID = {"meta"}


class Reader(html.parser.HTMLParser):
    """Tables of a page by name, their head first; the texts of each SVG. Raises for tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.plots, self.row = [], {}, [], None
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables[dict(attributes)["data-table"]] = []
        elif tag == "svg":
            self.plots.append([])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data
        elif self.open[-1:] in (["text"], ["tspan"]) and "svg" in self.open:
            self.plots[-1].append(data)

    def column(self, table, head):
        rows = self.tables[table]
        return [row[rows[0].index(head)] for row in rows[1:]]


class Pages(unittest.TestCase):
    program = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.runs = {}

    def replay(self, *arguments):
        """The JSON of a run, and its file. Equal runs run once."""
        if arguments not in self.runs:
            path = pathlib.Path(self.folder.name) / f"{len(self.runs)}.json"
            done = subprocess.run([self.program, *arguments, "--json", path], check=True, capture_output=True)
            self.runs[arguments] = path, done.stdout.decode()
        path = self.runs[arguments][0]
        return json.loads(path.read_text()), path

    def written(self, name, data):
        """A file with this JSON."""
        path = pathlib.Path(self.folder.name) / f"{name}.json"
        path.write_text(json.dumps(data))
        return path

    def page(self, *paths):
        """The text of the page, written by the command line."""
        from stateport_report.__main__ import main

        out = pathlib.Path(self.folder.name) / "page.html"
        with mock.patch("sys.argv", ["stateport-report", *map(str, paths), "--out", str(out)]):
            self.assertEqual(main(), 0)
        return out.read_text(encoding="utf-8")

    def refused(self, path):
        """The error instead of a page."""
        from stateport_report.__main__ import main

        out = pathlib.Path(self.folder.name) / "no.html"
        with mock.patch("sys.argv", ["stateport-report", str(path), "--out", str(out)]), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main(), 2)
        self.assertFalse(out.exists())
        return said.getvalue()

    def budget(self):
        return self.replay("budget", "--workload", "agent", "--requests", "150", "--memory", "2GiB", "--host", "4GiB",
                           "--host-bandwidth", "20GB", "--prefill-rate", "10000", "--materialize", "64MiB", "--compare")

    def check_rounded(self, cells, values, decimals=2):
        self.assertEqual(cells, [f"{value:.{decimals}f}" for value in values])

    def test_a_budget_has_hit_rates_of_each_policy_over_memory(self):
        data, path = self.budget()
        page = Reader(self.page(path))
        for policy in {cell["policy"] for cell in data["capacities"]}:
            self.check_rounded(page.column("capacities", policy), [
                100 * cell["token_hit_rate"] for cell in data["capacities"] if cell["policy"] == policy])
        self.check_rounded(page.column("capacities", "ceiling"), [100 * data["token_hit_rate_ceiling"]] * 5)
        self.assertEqual(page.column("capacities", "memory"), ["512 MiB", "1 GiB", "2 GiB", "4 GiB", "8 GiB"])
        for word in ("Token hit rate over memory", "hix", "gdsf", "ceiling", "2 GiB"):
            self.assertIn(word, page.plots[0])

    def test_a_budget_has_its_intervals(self):
        data, path = self.budget()
        page = Reader(self.page(path))
        parts = data["timeline"]
        self.assertEqual(len(parts), 24)

        def shares(value):
            return [100 * value(part) / part["input_tokens"] for part in parts]

        self.assertEqual(page.column("losses", "requests"), [str(part["requests"]) for part in parts])
        self.check_rounded(page.column("losses", "hit on the host"), shares(lambda part: part["host_hit_tokens"]))
        self.check_rounded(page.column("losses", "hit on the device"),
                           shares(lambda part: part["hit_tokens"] - part["host_hit_tokens"]))
        shown = {reason for reason, tokens in data["lost_tokens"].items() if tokens}
        self.assertGreater(len(shown), 1)
        for name in shown:
            self.check_rounded(page.column("losses", name), shares(lambda part, name=name: part["lost_tokens"][name]))
        self.assertEqual(set(page.tables["losses"][0][3:]) - {"hit on the device", "hit on the host"}, shown)
        self.check_rounded(page.column("memory", "KV"), [part["kv_bytes"] / GIB for part in parts])
        self.check_rounded(page.column("memory", "states"), [part["state_bytes"] / GIB for part in parts])
        self.assertEqual(page.column("copies", "states copied"), [str(part["states_copied"]) for part in parts])
        self.check_rounded(page.column("copies", "needed"), [part["needed_gb_per_s"] for part in parts])
        self.check_rounded(page.column("copies", "measured"), [part["copied_gb_per_s"] for part in parts])

    def test_a_budget_has_its_tiers_reasons_and_ages(self):
        data, path = self.budget()
        page = Reader(self.page(path))
        self.check_tiers(page, data["tiers"], "4 GiB")
        self.check_rounded(page.column("tiers", "seconds saved"), [data["tiers"][0]["seconds"]])
        own = [cell for cell in data["capacities"] if cell["policy"] == data["policy"]]
        self.check_rounded(page.column("tier_capacities", "hit on the host"),
                           [100 * cell["host_hit_tokens"] / data["input_tokens"] for cell in own])
        reasons = page.column("reasons", "reason")
        self.assertEqual(page.column("reasons", "tokens"), [str(data["lost_tokens"][reason]) for reason in reasons])
        self.assertEqual(page.column("reasons", "requests"), [str(data["lost_hits"][reason]) for reason in reasons])
        for key in ("reuses", "evictions"):
            self.assertEqual(page.column("ages", key), [str(bucket[key]) for bucket in data["ages"]])
            total = sum(bucket[key] for bucket in data["ages"])
            self.check_rounded(page.column("ages", f"% of {key}"), [100 * b[key] / total for b in data["ages"]])
        run = dict(page.tables["run"])
        self.assertEqual(run["hit tokens"], str(data["hit_tokens"]))
        self.assertEqual(run["memory"], "2 GiB")
        self.assertEqual(run["verified states"], f"{data['verified']}, 0 wrong")

    def check_tiers(self, page, tiers, *sizes):
        from stateport_report.chapters import human_bytes

        self.check_rounded(page.column("tiers", "token hit %"), [100 * tier["token_hit_rate"] for tier in tiers])
        self.assertEqual(page.column("tiers", "memory"), list(sizes))
        for head, key, shown in (
                ("tier", "name", str), ("loads", "loads", str), ("read", "bytes_read", human_bytes),
                ("written", "bytes_written", human_bytes), ("images dropped", "dropped", str),
                ("states", "states", str), ("KV blocks", "blocks", str)):
            self.assertEqual(page.column("tiers", head), [shown(tier[key]) for tier in tiers], head)

    def test_files_are_a_tier_and_seconds_need_a_rate(self):
        data, path = self.replay("budget", "--workload", "agent", "--requests", "150", "--memory", "2GiB", "--host",
                                 "1GiB", "--disk", "32GiB", "--materialize", "0")
        page = Reader(self.page(path))
        self.assertEqual([tier["name"] for tier in data["tiers"]], ["host", "file"])
        self.assertGreater(data["tiers"][1]["loads"], 0)
        self.check_tiers(page, data["tiers"], "1 GiB", "32 GiB")
        self.assertNotIn("seconds saved", page.tables["tiers"][0])
        self.assertEqual(dict(page.tables["run"])["files below"], "32 GiB")
        self.check_rounded(page.column("losses", "hit in files"), [
            100 * part["file_hit_tokens"] / part["input_tokens"] for part in data["timeline"]])

    def test_a_budget_without_tiers_has_no_table_of_them(self):
        data, path = self.replay("budget", "--requests", "50", "--memory", "2GiB", "--materialize", "0")
        self.assertEqual(data["tiers"], [])
        self.assertNotIn("tiers", Reader(self.page(path)).tables)

    def test_an_interrupted_comparison_leaves_the_run_complete(self):
        out = pathlib.Path(self.folder.name) / "compared.json"
        own, terminal = os.openpty()
        command = [self.program, "budget", "--memory", "16GiB", "--requests", "20000", "--materialize", "0",
                   "--compare", "--json", out]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as process:
            os.close(terminal)
            shown = b""
            while not shown.endswith(b"\r\033[K"):  # the bar is removed when the run is over
                shown += os.read(own, 4096)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(), 130)
        os.close(own)
        data = json.loads(out.read_text())
        self.assertEqual((data["interrupted"], data["requests"]), (False, 20000))
        self.assertNotIn("capacities", data)

    def test_memories_are_blocks_and_slots_or_blocks_alone(self):
        for arguments, memory in (
                (["serve", "--cache", "align", "--slots", "80"], "80 blocks"),
                (["serve", "--cache", "slots", "--slots", "80", "--blocks", "900"], "900 blocks, 80 slots"),
                (["prompts", "--unlimited"], "slots (unlimited)")):
            data, path = self.replay(*arguments, "--requests", "20", "--materialize", "0")
            shown = dict(Reader(self.page(path)).tables["run"])["memory"]
            self.assertTrue(shown == memory or data["unlimited"] and shown.endswith(memory), shown)

    def test_prompts_and_serve_have_their_figures(self):
        for command in (["prompts"], ["serve", "--cache", "tree"]):
            data, path = self.replay(*command, "--requests", "40", "--slots", "20", "--materialize", "0")
            page = Reader(self.page(path))
            self.assertEqual(dict(page.tables["run"])["token hit %"], f"{100 * data['token_hit_rate']:.2f}")
            self.assertIn("20 slots", dict(page.tables["run"])["memory"])
            self.assertNotIn("losses", page.tables)
            reasons = page.column("reasons", "reason")
            self.assertEqual(reasons, [reason for reason in data["lost_tokens"]
                                       if data["lost_tokens"][reason] or data["lost_hits"][reason]])
            self.assertEqual(page.column("reasons", "requests"), [str(data["lost_hits"][reason]) for reason in reasons])
            if command == ["prompts"]:
                self.check_rounded(page.column("reasons", "% of prompt tokens"), [
                    100 * data["lost_tokens"][reason] / data["input_tokens"] for reason in reasons])

    def test_a_sweep_has_a_row_for_each_memory(self):
        data, path = self.replay("sweep", "--requests", "100", "--memory", "2GiB,8GiB", "--cache", "slots")
        page = Reader(self.page(path))
        self.assertEqual(page.tables["capacities"][0], ["memory", "slots-lru", "slots-gdsf", "slots-hix"])
        self.check_rounded(page.tables["capacities"][2][1:],
                           [100 * cell["token_hit_rate"] for cell in data["capacities"][3:]])
        run = dict(page.tables["run"])
        self.assertEqual((run["requests"], run["input tokens"]), ("100", str(data["input_tokens"])))
        self.assertGreater(data["input_tokens"], 0)

    def test_an_interrupted_sweep_has_the_memories_that_are_complete(self):
        data, _ = self.replay("sweep", "--requests", "100", "--memory", "2GiB,8GiB", "--cache", "slots")
        for cells, rows, policies in ((0, None, 0), (2, 1, 2), (3, 1, 3), (5, 1, 3)):
            part = {**data, "interrupted": True, "capacities": data["capacities"][:cells]}
            page = self.page(self.written("part", part))
            self.assertIn("Interrupted: only memories", page)
            page = Reader(page)
            self.assertEqual(dict(page.tables["run"])["requests"], "100 (interrupted)")
            if rows is None:
                self.assertNotIn("capacities", page.tables)
            else:
                self.assertEqual(len(page.tables["capacities"]), 1 + rows)
                self.check_rounded(page.tables["capacities"][1][1:],
                                   [100 * cell["token_hit_rate"] for cell in data["capacities"][:policies]])

    def test_a_size_has_its_steps(self):
        data, path = self.replay("size", "--requests", "100", "--memory", "4GiB")
        page = Reader(self.page(path))
        for table in ("steps", "host_steps"):
            steps = data[table]
            self.check_rounded(page.column(table, "token hit %"), [100 * step["token_hit_rate"] for step in steps])
            self.assertEqual(page.column(table, "tokens per GiB"), [f"{step['tokens_per_gib']:.0f}" for step in steps])
        run = dict(page.tables["run"])
        self.assertIn(f"({data['mean_states']:.0f} slots)", run["as separate pools"])
        self.assertEqual((run["requests"], run["input tokens"]), ("100", str(data["input_tokens"])))

    def test_hits_of_life_stand_beside_those_of_the_replay(self):
        trace = [CHECKOUT / f"tests/replay/data/recorded-00000{number}.jsonl" for number in (1, 2)]
        for command in (["size", "--memory", "1MiB"], ["prompts", "--unlimited", "--materialize", "0"]):
            data, path = self.replay(*command, "--trace", *map(str, trace))
            self.assertGreater(data["replayed_hit_tokens"], 0)
            run = dict(Reader(self.page(path)).tables["run"])
            for where, key in (("in life", "recorded_hit_tokens"), ("here", "replayed_hit_tokens")):
                self.assertEqual(run[f"token hit % {where}, of 4 recorded requests"], f"{100 * data[key] / 47:.2f}")

    def fleet(self, *more):
        return self.replay("fleet", "--requests", "150", "--memory", "4GiB", "--prefill-rate", "20000", *more)

    def check_figures(self, page, path):
        """The table of figures is that of the text."""
        text, = (text for file, text in self.runs.values() if file == path)
        rows = page.tables["figures"]
        self.assertEqual(len(rows), 27)
        rows = [["route", *rows[0][1:]], *rows[1:]]
        lines = [f"{row[0]:<30}" + "".join(f"{cell:>20}" for cell in row[1:]) for row in rows]
        self.assertIn("\n" + "\n".join(lines) + "\n", text)

    def test_a_fleet_has_its_figures(self):
        data, path = self.fleet("--nodes", "4", "--remote", "1TiB", "--link", "25:20")
        page = Reader(self.page(path))
        routes = data["routes"]
        self.assertEqual(page.column("hits", "route"), list(routes))
        self.check_rounded(page.column("hits", "remote"),
                           [100 * route["remote_token_hit_rate"]["value"] for route in routes.values()])
        for name, route in routes.items():
            self.check_rounded(page.column("first_token", name), route["first_token_quantiles_s"].values(), 3)
            self.check_rounded(page.column("first_token", f"{name}, no cache"),
                               route["uncached_first_token_quantiles_s"].values(), 3)
            self.check_rounded(page.column("links", name), [b / 1e9 for b in route["link_bytes_quantiles"].values()], 3)
        self.check_figures(page, path)
        self.assertEqual(len(page.plots), 3)

    def test_a_sampled_fleet_has_errors_and_without_a_store_no_links(self):
        data, path = self.fleet("--nodes", "40", "--load", "10", "--sample", "4:2", "--route", "prefix")
        page = Reader(self.page(path))
        self.assertNotIn("links", page.tables)
        figure = data["routes"]["prefix"]["token_hit_rate"]
        cell = f"{100 * figure['value']:.2f} ± {100 * figure['standard_error']:.2f}"
        self.assertIn(["token hit %", cell], page.tables["figures"])
        self.check_figures(page, path)
        self.assertIn("4 of 40 nodes", dict(page.tables["run"])["sampled"])

    def test_several_files_are_chapters_of_a_page_that_fetches_nothing(self):
        data, path = self.budget()
        text = json.dumps({**data, "workload": 'a <b> & "c"'})
        odd = pathlib.Path(self.folder.name) / "odd.json"
        odd.write_text(text)
        page = self.page(odd, self.replay("size", "--requests", "100", "--memory", "4GiB")[1])
        self.assertEqual(page.count("<h1>"), 2)
        self.assertIn("a &lt;b&gt; &amp; &quot;c&quot;", page)
        self.assertNotIn("a <b>", page)
        page = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", page)
        for pattern in ("http", r"src=", r'href="[^#]', "@import", r"url\([^#]", r"\bnan\b", r"\binf\b", "<script",
                        "<!DOCTYPE svg"):
            self.assertIsNone(re.search(pattern, page), pattern)

    def test_a_page_of_nothing_is_drawn(self):
        data, _ = self.replay("prompts", "--requests", "1", "--materialize", "0")
        empty = pathlib.Path(self.folder.name) / "empty.json"
        zero = dict.fromkeys(data["lost_tokens"], 0)
        empty.write_text(json.dumps({**data, "ages": [], "lost_tokens": zero, "lost_hits": zero, "input_tokens": 0}))
        self.assertEqual(len(Reader(self.page(empty)).plots), 1)

    def test_files_that_are_no_results_are_refused_by_name(self):
        folder = pathlib.Path(self.folder.name)
        (folder / "text").write_text("no JSON")
        (folder / "list").write_text("[]")
        (folder / "other").write_text('{"command": "no such"}')
        for name, reason in (("absent", "No such file"), ("text", "Expecting value"), ("list", "command = None"),
                             ("other", "command = 'no such'")):
            said = self.refused(folder / name)
            self.assertIn(f"{folder / name}: ", said)
            self.assertIn(reason, said)

    def test_incomplete_results_are_refused_with_their_key(self):
        data, _ = self.replay("size", "--requests", "100", "--memory", "4GiB")
        without = {key: value for key, value in data.items() if key != "ceiling"}
        wrong = "or one before it, has a wrong value: "
        for content, reason in (({"command": "prompts"}, "key 'workload' is absent"),
                                (without, "key 'ceiling' is absent"),
                                ({**data, "ceiling": None}, f"key 'ceiling', {wrong}unsupported operand"),
                                ({**data, "host_bytes": "many"}, f"key 'host_bytes', {wrong}"),
                                ({**data, "steps": [{}]}, "key 'bytes' is absent")):
            path = self.written("incomplete", content)
            said = self.refused(path)
            self.assertIn(f"stateport-report: {path}: {reason}", said)


class Package(unittest.TestCase):
    def test_its_version_is_that_of_the_project(self):
        project = re.search(r"project\(stateport VERSION ([0-9.]+)", (CHECKOUT / "CMakeLists.txt").read_text())[1]
        package = (CHECKOUT / "apps" / "report" / "pyproject.toml").read_text()
        self.assertIn(f'\nversion = "{project}"\n', package)


class Plots(unittest.TestCase):
    def axes(self, **plot):
        from stateport_report.plots import Plot, figure_of

        return figure_of(Plot("title", "x", "y", **plot)).axes[0]

    def test_columns_stand_on_each_other_or_beside(self):
        series = {"one": [30, 1], "two": [40, 2]}
        bars = self.axes(places=["a", "b"], series=series, kind="stacked").patches
        self.assertEqual([(bar.get_y(), bar.get_height()) for bar in bars], [(0, 30), (0, 1), (30, 40), (1, 2)])
        bars = self.axes(places=["a", "b"], series=series, kind="beside").patches
        self.assertEqual([(bar.get_y(), bar.get_height()) for bar in bars], [(0, 30), (0, 1), (0, 40), (0, 2)])
        self.assertLess(bars[0].get_x() + bars[0].get_width(), bars[2].get_x() + 1e-9)

    def test_lines_and_the_level_have_their_values(self):
        axes = self.axes(places=["a", "b"], series={"one": [3, 4]}, level=("top", 9))
        self.assertEqual([list(line.get_ydata()) for line in axes.lines], [[3, 4], [9, 9]])
        self.assertEqual([text.get_text() for text in axes.get_legend().get_texts()], ["one", "top"])
        self.assertEqual([label.get_text() for label in axes.get_xticklabels()], ["a", "b"])
        self.assertEqual(axes.get_ylim()[0], 0)

    def test_equal_plots_are_equal_files(self):
        from stateport_report.plots import Plot, to_svg

        plot = Plot("t", "x", "y", ["a"], {"one": [1]})
        self.assertEqual(to_svg(plot), to_svg(plot))


if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: matplotlib is not installed")
        sys.exit(SKIPPED)
    Pages.program = sys.argv.pop(1)
    unittest.main()
