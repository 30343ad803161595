# SPDX-License-Identifier: Apache-2.0
"""Line plots: bandwidth over the number of requests, ns per node over the size of the tree. stateport-plot draws them."""
import json
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    x: str
    y: str
    program: str
    benchmarks: dict  # x value: benchmark
    lines: dict  # label: function of the benchmark's object


def bandwidth(counter):
    """GB/s of a contender: all of a row move the same bytes."""
    return lambda result: result["GB_per_s"] * result["ours_ns"] / result[counter]


MANUAL = "/iterations:1/manual_time"
PLOTS = [
    Plot("bandwidth", "State copies, chunks of 1 MiB and more", "requests", "GB/s (read + written)",
         "slot_copy_bench", {n: f"C1/{n}{MANUAL}" for n in (1, 2, 4, 8)},
         {"stateport": bandwidth("ours_ns"), "memcpy per chunk": bandwidth("memcpy_ns"),
          "contiguous, non-temporal": bandwidth("contiguous_nontemporal_ns")}),
    Plot("chunk-size", "State copies over chunk size", "KiB per chunk", "GB/s (read + written)",
         "slot_copy_bench", {n: f"C2/KiB:{n}{MANUAL}" for n in (10, 20, 48, 80)},
         {"stateport": bandwidth("ours_ns"), "memcpy per chunk": bandwidth("memcpy_ns"),
          "deep_copy per chunk": bandwidth("deep_copy_ns")}),
    Plot("tree-match", "Prefix tree, match", "nodes in the tree", "ns per node of the path",
         "prefix_tree_bench",
         {n: f"match_in_tree_of/nodes:{n}/matched_before:1{MANUAL}" for n in (1000, 10000, 100000, 1000000)},
         {"stateport": lambda result: result["ns_per_node"],
          "chain of flat-map finds": lambda result: result["ns_per_node"] * result["chain_ns"] / result["match_ns"]}),
]


def points_of(plot, results):
    """{x: {label: y}} of the benchmarks that were run."""
    found = results.get((plot.program, None), {})
    return {x: {label: figure(found[name]) for label, figure in plot.lines.items()}
            for x, name in plot.benchmarks.items() if name in found}


def description(plot, points):
    """What stateport-plot reads."""
    places = sorted(points)
    return {"title": plot.title, "x": plot.x, "y": plot.y, "places": [f"{x:,}" for x in places],
            "series": {label: [points[x][label] for x in places] for label in plot.lines}}


def draw(results, report_path, programs):
    """Writes the plots whose benchmarks are in `results`, beside the report; returns their paths. None is drawn if
    stateport-plot is not among the programs."""
    drawn = []
    program = programs / "stateport-plot"
    if not program.exists():
        print(f"perf-report: no plots: {program} is not built", flush=True)
        return drawn
    for plot in PLOTS:
        points = points_of(plot, results)
        if not points:
            continue
        svg = subprocess.run([program], input=json.dumps(description(plot, points)), capture_output=True, text=True,
                             check=True).stdout
        path = report_path.with_name(f"{report_path.stem}-{plot.name}.svg")
        path.write_text(svg)
        drawn.append(path)
    return drawn
