"""Draws a plot of an experiment as inline SVG: lines over numbers, or grouped bars over names.

Colours are the variables of the report's style, so a plot follows the light and dark mode of the page; `standalone`
puts the style into the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rollweave.observability.report.svg import BOTTOM, LEFT, RIGHT, TOP, Frame, backdrop, nice_ticks
from rollweave.observability.text import number
from rollweave_experiments.frame import Plot
from rollweave_experiments.verdict import ClaimRow, ExperimentResult

WIDTH, HEIGHT = 480, 250
PAPER = "s0"
"""The paper's values are grey."""
COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6", "s7")
LABEL_ROOM = 34
"""Space for names of two lines under bars."""


def plots(result: ExperimentResult) -> tuple[Plot, ...]:
    """The experiment's own plots, or, if it has none, the paper's values beside ours, row by row."""
    return result.plots or tuple(_compared(result.rows))


def _compared(rows: Sequence[ClaimRow]) -> list[Plot]:
    """One plot per unit, because a percentage and a number of seconds cannot share an axis."""
    drawn = []
    for unit in dict.fromkeys(row.claim.unit for row in rows):
        mine = [
            row for row in rows if row.claim.unit == unit and row.measured is not None and row.claim.paper is not None
        ]
        if mine:
            paper = tuple((row.label, _middle(row)) for row in mine)
            ours = tuple((row.label, row.measured or 0.0) for row in mine)
            axis = "ratio" if unit == "x" else unit
            drawn.append(Plot("paper and measured", "", axis, {"paper": paper, "measured": ours}, bars=True))
    return drawn


def _middle(row: ClaimRow) -> float:
    paper = row.claim.paper
    return sum(paper) / 2 if isinstance(paper, tuple) else float(paper or 0.0)


def standalone(plot: Plot) -> str:
    """The content of an SVG file, with the style and the legend that otherwise come from the page."""
    size = (
        f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 24}" width="{WIDTH}" height="{HEIGHT + 24}"'
    )
    names, x = [], LEFT
    for name, colour in _coloured(plot).items():
        names.append(f'<rect x="{x}" y="8" width="10" height="10" fill="var(--{colour})"/>')
        names.append(f'<text class="tick" x="{x + 14}" y="17">{escape(name)}</text>')
        x += 28 + 7 * len(name)
    drawn = f'{"".join(names)}<g transform="translate(0 20)">{_drawn(plot)}</g>'
    return f'<svg {size} class="chart">{backdrop()}{drawn}</svg>\n'


def svg(plot: Plot) -> str:
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {size} class="chart" role="img" aria-label="{escape(plot.title)}">{_drawn(plot)}</svg>'


def legend(plot: Plot) -> str:
    keys = (
        f'<span><i style="background:var(--{colour})"></i>{escape(name)}</span>'
        for name, colour in _coloured(plot).items()
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def _coloured(plot: Plot) -> dict[str, str]:
    ours = [name for name in plot.series if name != "paper"]
    return {name: PAPER if name == "paper" else COLOURS[ours.index(name) % len(COLOURS)] for name in plot.series}


def _drawn(plot: Plot) -> str:
    return _bars(plot) if plot.bars else _lines(plot)


def _lines(plot: Plot) -> str:
    points = [(float(x), y) for line in plot.series.values() for x, y in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    ticks = nice_ticks(min(0.0, *ys), max(ys) or 1.0)
    frame = Frame(WIDTH, HEIGHT - 12, (min(xs), max(xs)), (ticks[0], ticks[-1]))
    parts = [_grid(frame, ticks), _axis_names(plot)]
    for x in _places(xs):
        parts.append(f'<text class="tick" x="{frame.px(x)}" y="{HEIGHT - 22}" text-anchor="middle">{number(x)}</text>')
    for name, line in plot.series.items():
        colour = _coloured(plot)[name]
        places = [(frame.px(float(x)), frame.py(y)) for x, y in line]
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline class="line" stroke="var(--{colour})" points="{path}"/>')
        parts += [f'<circle class="dot" cx="{x}" cy="{y}" r="4" fill="var(--{colour})"/>' for x, y in places]
    return "".join(parts)


def _places(xs: Sequence[float]) -> list[float]:
    """The values at which the x axis is labelled: the points themselves if they are few."""
    distinct = sorted(set(xs))
    return distinct if len(distinct) <= 12 else nice_ticks(distinct[0], distinct[-1], 6)


def _bars(plot: Plot) -> str:
    names = list(dict.fromkeys(str(x) for line in plot.series.values() for x, _ in line))
    values = [y for line in plot.series.values() for _, y in line]
    ticks = nice_ticks(min(0.0, *values), max(values) or 1.0)
    frame = Frame(WIDTH, HEIGHT - LABEL_ROOM, (0.0, float(len(names))), (ticks[0], ticks[-1]))
    parts = [_grid(frame, ticks), _axis_names(plot)]
    room = (WIDTH - LEFT - RIGHT) / len(names)
    thick = room * 0.8 / len(plot.series)
    for i, (colour, line) in enumerate(zip(_coloured(plot).values(), plot.series.values(), strict=True)):
        for name, y in line:
            left = LEFT + names.index(str(name)) * room + room * 0.1 + i * thick
            top, base = frame.py(max(y, 0.0)), frame.py(min(y, 0.0))
            parts.append(
                f'<rect x="{left:.2f}" y="{top}" width="{thick:.2f}" height="{base - top:.2f}" '
                f'fill="var(--{colour})"><title>{escape(str(name))}: {number(y)}</title></rect>'
            )
    return "".join(parts) + _names_under(names, room)


def _names_under(names: Sequence[str], room: float) -> str:
    """The names under the bars if they fit on two lines, else numbers, in the order of the table."""
    letters = int(room / 5.6)
    fits = all(len(part) <= letters for name in names for part in _two_lines(name, letters))
    parts = []
    for i, name in enumerate(names):
        lines = _two_lines(name, letters) if fits else [str(i + 1)]
        for j, line in enumerate(lines):
            x, y = LEFT + (i + 0.5) * room, HEIGHT - LABEL_ROOM - BOTTOM + 16 + 13 * j
            parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(line)}</text>')
    return "".join(parts)


def _two_lines(name: str, letters: int) -> list[str]:
    if len(name) <= letters or " " not in name:
        return [name]
    spaces = [i for i, letter in enumerate(name) if letter == " "]
    cut = min(spaces, key=lambda i: abs(i - len(name) / 2))
    return [name[:cut], name[cut + 1 :]]


def _grid(frame: Frame, ticks: Sequence[float]) -> str:
    parts = []
    for tick in ticks:
        y = frame.py(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 3.5}" text-anchor="end">{number(tick)}</text>')
    return "".join(parts)


def _axis_names(plot: Plot) -> str:
    y = f'<text class="tick" x="{LEFT}" y="{TOP - 7}">{escape(plot.y)}</text>'
    return y + f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(plot.x)}</text>'
