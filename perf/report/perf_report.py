#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks and says which performance goals are met; compares two such reports.

    perf_report.py run --programs build/openmp/bin --out build/openmp/perf-report.json [--only C1,B3] [--fact K=V …]
    perf_report.py compare OLD.json NEW.json

`run` writes the JSON, prints the table, and draws plots beside the JSON. It exits with 1 when a benchmark fails, never
because of a time: whether a goal is met is in the rows. `compare` exits with 1 when a ratio got worse by more than
both reports' noise. Plots need matplotlib; the rest is the standard library."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

import plots
from rows import ROWS

SKIPPED = 77
NOT_LOADED = 127  # a library is missing: on a machine without the vendor's driver, that driver
# Two medians of the same code differ by their A/A spread; nothing below this floor is called a change either.
NOISE_FLOOR = 0.05


class BenchmarkFailed(Exception):
    pass


def run_program(path, threads, benchmarks):
    """Returns {benchmark: its JSON object}; {"skipped": why} if the program is not built or has no device."""
    if not path.exists():
        return {"skipped": f"{path.name} is not part of this build"}
    environment = dict(os.environ, OMP_PROC_BIND=os.environ.get("OMP_PROC_BIND", "false"))
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    names = "|".join(f"^{name}$" for name in sorted(benchmarks))
    done = subprocess.run([path, f"--benchmark_filter={names}", "--benchmark_format=json"],
                          env=environment, capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED or done.returncode == NOT_LOADED and re.search(r"lib(cuda|amdhip64)\.so", done.stderr):
        why = "no device: no driver here"
        if done.returncode == SKIPPED:
            why = done.stderr.strip().splitlines()[-1].removeprefix("skipped: ")
        print(f"perf-report: {path.name} was skipped: {why}", flush=True)
        return {"skipped": why}
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{path.name} ended with exit code {done.returncode}")
    results = {}
    for result in json.loads(done.stdout)["benchmarks"]:
        if result.get("error_occurred"):
            raise BenchmarkFailed(f"{path.name}: {result['name']}: {result['error_message']}")
        results[result["name"]] = result
    return results


def run_all(rows, folder, say):
    """Returns {(program, threads): {benchmark: object}} of everything that the rows name."""
    wanted = {}
    for row in rows:
        for figure in row.figures():
            wanted.setdefault((figure.program, figure.threads), set()).add(figure.benchmark)
    results = {}
    for (program, threads), benchmarks in wanted.items():
        say(f"running {program}" + (f" with {threads} thread" if threads else ""))
        results[program, threads] = run_program(folder / program, threads, benchmarks)
    return results


def in_ns(result, counter):
    number = result[counter]
    scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[result["time_unit"]]
    return number * scale if counter in ("real_time", "cpu_time") else number


def evaluate(row, results):
    """One row of the report; `met` is None without a goal, and `status` says why there are no figures."""
    report = {"id": row.id, "metric": row.metric, "goal": str(row.goal), "ours": None, "peer": None, "limit": None,
              "ratio": None, "limit_share": None, "aa_spread": None, "met": None, "status": "measured"}
    objects = {}
    for figure in row.figures():
        found = results.get((figure.program, figure.threads), {})
        result = found.get(figure.benchmark, {})
        if figure.counter not in result:
            why = found.get("skipped", f"{figure.program} has no {figure.counter} of {figure.benchmark} here")
            report["status"] = f"not run: {why}"
            return report
        objects[figure] = found[figure.benchmark]
    ours, peer, limit, ratio = row.measure(lambda figure: in_ns(objects[figure], figure.counter))
    share = limit / ours if limit else None
    report.update(ours=ours, peer=peer, limit=limit, ratio=ratio, limit_share=share,
                  aa_spread=objects[row.ours].get("aa_spread"))
    checks = [(ratio, row.goal.ratio), (share, row.goal.limit_share), (-ours, None if row.goal.ns is None else -row.goal.ns)]
    bounds = [value >= bound for value, bound in checks if bound is not None]
    report["met"] = all(bounds) if bounds else None
    return report


def number(value, digits=2):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def table(rows):
    header = ["id", "metric", "ours", "peer", "limit", "ratio", "A/A", "goal", "met"]
    lines = [header]
    for row in rows:
        if row["status"] != "measured":
            lines.append([row["id"], row["metric"], "-", "-", "-", "-", "-", row["goal"], row["status"]])
            continue
        met = {True: "yes", False: "NO", None: ""}[row["met"]]
        lines.append([row["id"], row["metric"], number(row["ours"]), number(row["peer"]), number(row["limit"]),
                      number(row["ratio"]), number(row["aa_spread"]), row["goal"], met])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def git_hash():
    folder = pathlib.Path(__file__).resolve().parent
    command = ["git", "-c", f"safe.directory={folder.parent.parent}", "-C", folder, "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run(arguments):
    only = set(arguments.only.split(",")) if arguments.only else None
    rows = [row for row in ROWS if not only or row.id in only]
    if not rows:
        raise SystemExit(f"perf_report: --only {arguments.only} names no row; ids: {sorted({r.id for r in ROWS})}")
    results = run_all(rows, pathlib.Path(arguments.programs), lambda text: print(f"perf-report: {text}", flush=True))
    facts = dict(fact.partition("=")[::2] for fact in arguments.fact)
    report = {"date": datetime.date.today().isoformat(), "git": git_hash(), "machine": platform.machine(),
              "threads": os.cpu_count(), **facts, "rows": [evaluate(row, results) for row in rows]}
    out = pathlib.Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print("\nours, peer, limit: median ns (C3: speedups); ratio = peer / ours, above 1 this library is faster\n")
    print(table(report["rows"]))
    drawn = plots.draw(results, out)
    print("\nwritten: " + ", ".join(str(path) for path in [out, *drawn]))


def compare_reports(old, new):
    """Yields (row key, old ratio, new ratio, verdict) for every row that both have measured."""
    before = {(row["id"], row["metric"]): row for row in old["rows"]}
    for row in new["rows"]:
        earlier = before.get((row["id"], row["metric"]))
        if not earlier or row["ours"] is None or earlier["ours"] is None:
            continue
        # Without a peer there is nothing that the machine's mood cancels against: times are shown, not judged.
        if row["ratio"] is None or earlier["ratio"] is None:
            yield row, earlier["ours"], row["ours"], "time only"
            continue
        change = row["ratio"] / earlier["ratio"] - 1
        noise = max(NOISE_FLOOR, 2 * max(row["aa_spread"] or 0, earlier["aa_spread"] or 0))
        verdict = "noise" if abs(change) <= noise else "better" if change > 0 else "WORSE"
        yield row, earlier["ratio"], row["ratio"], verdict


def compare(arguments):
    old, new = (json.loads(pathlib.Path(path).read_text()) for path in (arguments.old, arguments.new))
    worse = 0
    for row, earlier, now, verdict in compare_reports(old, new):
        print(f"{row['id']:8}{row['metric']:75} {number(earlier):>10} -> {number(now):>10}  {verdict}")
        worse += verdict == "WORSE"
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--programs", required=True, help="folder of the benchmark programs")
    runner.add_argument("--out", required=True, help="JSON file to write; plots go beside it")
    runner.add_argument("--only", help="ids of rows, separated by commas")
    runner.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help="added to the JSON")
    runner.set_defaults(action=run)
    comparer = commands.add_parser("compare")
    comparer.add_argument("old")
    comparer.add_argument("new")
    comparer.set_defaults(action=compare)
    arguments = parser.parse_args()
    try:
        return arguments.action(arguments) or 0
    except BenchmarkFailed as failure:
        print(f"perf_report: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
