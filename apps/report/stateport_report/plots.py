# SPDX-License-Identifier: Apache-2.0
"""Plots of series over named places, as SVG."""
import io
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

# Okabe and Ito's: colour-blind readers tell them apart, too.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#333333"]
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "stateport", "font.family": "sans-serif", "font.size": 10,
         "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.edgecolor": "#888",
         "axes.prop_cycle": cycler(color=COLOURS)}
LABELS_MAX = 12


@dataclass(frozen=True)
class Plot:
    """Numbers >= 0 over places at equal distances."""

    title: str
    x: str
    y: str  # with the unit
    places: list[str]
    series: dict[str, list[float]]  # a number for each place
    kind: str = "lines"  # of KINDS
    level: tuple[str, float] | None = None  # a dashed line across


def draw_lines(axes: Axes, plot: Plot) -> None:
    for name, values in plot.series.items():
        axes.plot(values, marker="o", markersize=4, label=name)


def draw_stacked(axes: Axes, plot: Plot) -> None:
    """A column for each place, of the series on top of each other."""
    tops = [0.0] * len(plot.places)
    for name, values in plot.series.items():
        axes.bar(range(len(values)), values, bottom=tops, width=0.8, label=name)
        tops = [top + value for top, value in zip(tops, values, strict=True)]


def draw_beside(axes: Axes, plot: Plot) -> None:
    """A column for each place and series."""
    width = 0.8 / max(len(plot.series), 1)
    for index, (name, values) in enumerate(plot.series.items()):
        left = (index - (len(plot.series) - 1) / 2) * width
        axes.bar([at + left for at in range(len(values))], values, width=width, label=name)


KINDS: dict[str, Callable[[Axes, Plot], None]] = {"lines": draw_lines, "stacked": draw_stacked, "beside": draw_beside}


def figure_of(plot: Plot) -> Figure:
    """Call it, and save the figure, in matplotlib.rc_context(STYLE)."""
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    KINDS[plot.kind](axes, plot)
    if plot.level:
        axes.axhline(plot.level[1], color="black", linestyle="--", label=plot.level[0])
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.grid(axis="y", color="#e4e4e4")
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 0 else 1)
    step = -(-len(plot.places) // LABELS_MAX) or 1
    axes.set_xticks(range(0, len(plot.places), step), plot.places[::step])
    if len(plot.series) > 1 or plot.level:
        # Series that lie on top of each other are listed as they lie.
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=plot.kind == "stacked")
    return figure


def to_svg(plot: Plot) -> str:
    """A file of its own. Its texts are text, and equal plots are equal files."""
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure_of(plot).savefig(text, format="svg",
                                metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()
