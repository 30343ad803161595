# SPDX-License-Identifier: Apache-2.0
"""Line plots as plain SVG: bandwidth over the number of requests, ns per node over the size of the tree."""
import math
from dataclasses import dataclass

COLOURS = ["#0b6e99", "#c44e1e", "#5a8f29", "#7a4fa3"]
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50


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


def text(x, y, content, anchor="middle", colour="#333", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{content}</text>'


def ticks(top):
    """About five round steps from 0 to at least `top`."""
    step = 10 ** math.floor(math.log10(top / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if top / (factor * step) <= 5)
    return [step * i for i in range(math.ceil(top / step) + 1)]


def svg(plot, points):
    """points: {x: {label: y}}. The x axis is logarithmic, the y axis starts at 0."""
    xs = sorted(points)
    marks = ticks(max(y for values in points.values() for y in values.values()))
    low, high = math.log(xs[0]), math.log(xs[-1])

    def at(x, y):
        across = (math.log(x) - low) / (high - low) if high > low else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / marks[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 22, plot.title, "start", size=15)]
    for mark in marks:
        _, y = at(xs[0], mark)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{mark:g}", "end"))
    for x in xs:
        parts.append(text(at(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:,}"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, plot.x))
    parts.append(f'<g transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)">{text(0, 0, plot.y)}</g>')
    for index, label in enumerate(plot.lines):
        colour = COLOURS[index]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, points[x][label]) for x in xs))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{pair.split(",")[0]}" cy="{pair.split(",")[1]}" r="3" fill="{colour}"/>'
                  for pair in path.split()]
        parts.append(text(WIDTH - RIGHT + 10, TOP + 20 * index + 10, label, "start", colour))
    return "\n".join([*parts, "</svg>", ""])


def draw(results, report_path):
    """Writes the plots whose benchmarks are in `results`, beside the report; returns their paths."""
    drawn = []
    for plot in PLOTS:
        found = results.get((plot.program, None), {})
        points = {x: {label: figure(found[name]) for label, figure in plot.lines.items()}
                  for x, name in plot.benchmarks.items() if name in found}
        if not points:
            continue
        path = report_path.with_name(f"{report_path.stem}-{plot.name}.svg")
        path.write_text(svg(plot, points))
        drawn.append(path)
    return drawn
