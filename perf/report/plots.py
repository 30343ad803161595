# SPDX-License-Identifier: Apache-2.0
"""Line plots: bandwidth over the number of requests, ns per node over the size of the tree. apps/report draws them."""
import pathlib
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "apps" / "report"))


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


def of_limit(counter):
    """The share of the limit that a contender reaches."""
    return lambda result: result["limit_ns"] / result[counter]


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
    Plot("gpu-copies", "State copies on a GPU, 48 tensors a request", "requests", "share of the limit",
         "torch_copy_bench", {n: f"G1/{n}" for n in (1, 4, 16, 64, 256, 512)},
         {"stateport": of_limit("ours_ns"), "Triton": of_limit("triton_ns"), "torch indexing": of_limit("torch_ns")}),
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


def draw(results, report_path):
    """Writes the plots whose benchmarks are in `results`, beside the report; returns their paths. None without
    matplotlib."""
    try:
        from stateport_report.plots import Plot as Picture
        from stateport_report.plots import to_svg
    except ModuleNotFoundError as error:
        print(f"perf-report: no plots: {error.name} is not installed", flush=True)
        return []
    drawn = []
    for plot in PLOTS:
        points = points_of(plot, results)
        if not points:
            continue
        places = sorted(points)
        path = report_path.with_name(f"{report_path.stem}-{plot.name}.svg")
        path.write_text(to_svg(Picture(plot.title, plot.x, plot.y, [f"{x:,}" for x in places],
                                       {label: [points[x][label] for x in places] for label in plot.lines})),
                        encoding="utf-8")
        drawn.append(path)
    return drawn
