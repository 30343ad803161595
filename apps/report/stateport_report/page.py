# SPDX-License-Identifier: Apache-2.0
"""A page of HTML that fetches nothing: headings, tables, and plots as inline SVG."""
import re
from html import escape

from stateport_report.plots import Plot, to_svg

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2.5rem 0 .3rem}p{margin:.2rem 0 .8rem;color:#444}
svg{width:100%;height:auto;display:block}
.table{overflow-x:auto;border:1px solid #ddd;margin:.6rem 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}tbody tr:nth-child(even){background:#f6f6f6}
thead th{border-bottom:1px solid #bbb}
[data-table=run] td{text-align:left;white-space:normal}
[data-table=figures] td:first-child{white-space:pre}
"""


class Page:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def chapter(self, heading: str) -> None:
        self.parts.append(f"<h1>{escape(heading)}</h1>")

    def section(self, heading: str, explanation: str) -> None:
        self.parts.append(f"<h2>{escape(heading)}</h2>\n<p>{escape(explanation)}</p>")

    def table(self, name: str, rows: list[list[str]], head: list[str] | None = None) -> None:
        def line(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

        top = f"<thead>{line(head, 'th')}</thead>" if head else ""
        body = "".join(line(row, "td") for row in rows)
        self.parts.append(f'<div class="table"><table data-table="{name}">{top}<tbody>\n{body}</tbody></table></div>')

    def plot(self, plot: Plot) -> None:
        """Groups lose their ids, which are the same in every plot; those of shapes are of their content."""
        svg = to_svg(plot)
        svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg"):])
        self.parts.append(svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.title)}"', 1))

    def plot_with_table(self, name: str, place: str, plot: Plot, more: dict[str, list[str]] | None = None,
                        decimals: int = 2) -> None:
        """A plot above its numbers: a row for each place, with the columns `more` before the series."""
        self.plot(plot)
        series = ([f"{value:.{decimals}f}" for value in values] for values in plot.series.values())
        columns = [*(more or {}).values(), *series]
        self.table(name, [list(row) for row in zip(plot.places, *columns, strict=True)],
                   [place, *(more or {}), *plot.series])

    def html(self, title: str) -> str:
        body = "\n".join(self.parts)
        return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
                f'content="width=device-width">\n<title>stateport: {escape(title)}</title>\n<style>{STYLE}</style>\n'
                f"</head>\n<body>\n{body}\n</body>\n</html>\n")
