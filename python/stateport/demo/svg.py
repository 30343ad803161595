# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG text, without a library."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 760, 260, 64, 34, 12, 12  # pixels


@dataclasses.dataclass(frozen=True)
class Series:
    """Values of one colour, a request each. colour: a CSS variable of the page."""

    name: str
    values: Sequence[float]
    colour: str


def bars(series: Sequence[Series], *, unit: str, x: str) -> str:
    """A plot of stacked bars."""
    count = max((len(one.values) for one in series), default=0)
    if count == 0:
        return ""
    base = [0.0] * count
    top = _round_up(max(sum(one.values[i] for one in series) for i in range(count)))
    step = (_WIDTH - _LEFT - _RIGHT) / count
    marks = []
    for one in series:
        for i, value in enumerate(one.values):
            y, low = _y(base[i] + value, top), _y(base[i], top)
            marks.append(f'<rect x="{_LEFT + i * step + 0.1 * step:.1f}" y="{y:.1f}" width="{0.8 * step:.1f}" '
                         f'height="{max(low - y, 0):.1f}" fill="var(--{one.colour})"><title>{x} {i + 1}: '
                         f'{html.escape(one.name)} {value:,.4g} {unit}</title></rect>')
            base[i] += value
    return _frame(marks, series, top, unit, x, count)


def lines(series: Sequence[Series], *, unit: str, x: str) -> str:
    """A plot of lines."""
    count = max((len(one.values) for one in series), default=0)
    if count == 0:
        return ""
    top = _round_up(max(max(one.values) for one in series))
    step = (_WIDTH - _LEFT - _RIGHT) / max(count - 1, 1)
    marks = []
    for one in series:
        points = " ".join(f"{_LEFT + i * step:.1f},{_y(value, top):.1f}" for i, value in enumerate(one.values))
        marks.append(f'<polyline points="{points}" fill="none" stroke="var(--{one.colour})" stroke-width="2"/>')
    return _frame(marks, series, top, unit, x, count)


def _frame(marks: list[str], series: Sequence[Series], top: float, unit: str, x: str, count: int) -> str:
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for tick in range(5):
        value = top * tick / 4
        y = _y(value, top)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                     f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.3g}</text>')
    parts += marks
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{html.escape(x)} 1 to {count}</text>'
                 f'<text x="4" y="{_HEIGHT - 8}">{html.escape(unit)}</text></svg>')
    legend = " ".join(f'<span style="color:var(--{one.colour})">&#9632;</span> {html.escape(one.name)}'
                      for one in series)
    return f'<p class="legend">{legend}</p>{"".join(parts)}'


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _round_up(value: float) -> float:
    """To 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * digit for digit in (1, 2, 4, 5, 8, 10) if power * digit >= value)
