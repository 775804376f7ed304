"""Draws small charts as inline SVG (lines and stacked bars over train steps), and holds the page's style and script.

Each chart carries the data that the script needs to show the values under the pointer. Colours are CSS variables, so
charts follow the light and dark mode of the page. Style and script are part of the page, so that it works offline.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean

from rollweave.observability.text import number

Point = tuple[float, float]
Format = Callable[[float], str]

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 18, 26
MOST_POINTS = 400
"""More points cannot be distinguished at the width of a page, so neighbours are combined."""
MOST_BARS = 120
MOST_DOTS = 60


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]
    colour: str
    """A CSS variable of the page: s1 .. s7, s0 for grey."""
    dots: bool = False
    faint: bool = False
    """Whether it is drawn thin and pale and left out of the legend, as raw data behind a smoothed line."""
    peak: bool = False
    """Whether combined neighbours show their maximum, not their mean; for values that must stay below a bound."""

    def thinned(self, most: int) -> Series:
        return replace(self, points=thin(self.points, most, max if self.peak else fmean))


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of a chart and the values at its edges."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, x: float) -> float:
        low, high = self.x
        share = (x - low) / (high - low) if high > low else 0.5
        return round(LEFT + share * (self.width - LEFT - RIGHT), 2)

    def py(self, y: float) -> float:
        low, high = self.y
        return round(self.height - BOTTOM - (y - low) / (high - low) * (self.height - TOP - BOTTOM), 2)


def line_chart(
    series: Sequence[Series],
    width: int = 560,
    height: int = 200,
    y_range: tuple[float | None, float | None] = (None, None),
    fmt: Format = number,
    rule: tuple[float, str] | None = None,
) -> str:
    """Draw lines over steps, and a dashed rule with a name; the result is empty if there is nothing to draw."""
    series = [one.thinned(MOST_POINTS) for one in series if one.points]
    if not series:
        return ""
    frame = _frame(series, width, height, y_range, [] if rule is None else [rule[0]])
    parts = [_axes(frame, fmt)]
    if rule is not None:
        y = frame.py(rule[0])
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"/>')
        # On the left, where a rising curve is still far below.
        parts.append(f'<text class="tick" x="{LEFT + 4}" y="{y - 5}">{escape(rule[1])}</text>')
    parts += [_line(frame, one) for one in series]
    return _svg(frame, parts, [s for s in series if not s.faint], fmt)


def stacked_bars(layers: Sequence[Series], width: int = 560, height: int = 200, fmt: Format = number) -> str:
    """Draw one bar per step, with its layers on top of each other. All layers have the same steps."""
    layers = [layer.thinned(MOST_BARS) for layer in layers if layer.points]
    if not layers:
        return ""
    steps = [x for x, _ in layers[0].points]
    totals = [sum(layer.points[i][1] for layer in layers) for i in range(len(steps))]
    gap = steps[1] - steps[0] if len(steps) > 1 else 1.0
    ticks = nice_ticks(0.0, max(totals) or 1.0)
    frame = Frame(width, height, (steps[0] - gap / 2, steps[-1] + gap / 2), (0.0, ticks[-1]))
    thickness = round(max(0.8, (width - LEFT - RIGHT) / len(steps) * 0.8), 2)
    parts = [_axes(frame, fmt)]
    base = [0.0] * len(steps)
    for layer in layers:
        parts.append(f'<g fill="var(--{layer.colour})">')
        for i, (x, value) in enumerate(layer.points):
            top, bottom = frame.py(base[i] + value), frame.py(base[i])
            left = round(frame.px(x) - thickness / 2, 2)
            parts.append(f'<rect x="{left}" y="{top}" width="{thickness}" height="{round(bottom - top, 2)}"/>')
            base[i] += value
        parts.append("</g>")
    return _svg(frame, parts, layers, fmt)


def thin(points: Sequence[Point], most: int, together: Callable[[Sequence[float]], float] = fmean) -> list[Point]:
    """Reduce the points to at most `most`, by combining neighbours."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return list(points)
    runs = [points[i : i + size] for i in range(0, len(points), size)]
    return [(run[0][0], together([y for _, y in run])) for run in runs]


def smooth(points: Sequence[Point]) -> list[Point]:
    """The mean over a window around each point, because a trailing mean would show learning too late."""
    reach = math.ceil(len(points) / 40) if len(points) > 8 else 0
    windows = (points[max(0, i - reach) : i + reach + 1] for i in range(len(points)))
    return [(x, fmean(y for _, y in near)) for (x, _), near in zip(points, windows, strict=True)]


def legend(series: Sequence[Series]) -> str:
    """The names of the lines, to be shown above a chart."""
    keys = [s for s in series if s.points and not s.faint]
    items = (f'<span><i style="background:var(--{s.colour})"></i>{escape(s.name)}</span>' for s in keys)
    return f'<div class="legend">{"".join(items)}</div>'


def _frame(
    series: Sequence[Series], width: int, height: int, y_range: tuple[float | None, float | None], more: list[float]
) -> Frame:
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points] + more
    low = min(ys) if y_range[0] is None else min(y_range[0], *ys)
    high = max(ys) if y_range[1] is None else max(y_range[1], *ys)
    if high - low < 1e-12:  # a constant value: leave room around it, and show 0 if it is near
        low, high = low - (abs(low) * 0.5 or 0.5), high + (abs(high) * 0.5 or 0.5)
        low = max(low, 0.0) if min(ys) >= 0 else low
    ticks = nice_ticks(low, high)
    return Frame(width, height, (min(xs), max(xs)), (ticks[0], ticks[-1]))


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Choose round numbers that enclose [low, high]."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * count >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _axes(frame: Frame, fmt: Format) -> str:
    parts = []
    for y in nice_ticks(*frame.y):
        py = frame.py(y)
        if not TOP - 1 <= py <= frame.height - BOTTOM + 1:
            continue
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{py}" y2="{py}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{py + 3.5}" text-anchor="end">{escape(_short(fmt(y)))}</text>'
        )
    for x in nice_ticks(*frame.x, count=6 if frame.width < 700 else 10):
        if x == int(x) and frame.x[0] <= x <= frame.x[1]:
            y = frame.height - 8
            parts.append(f'<text class="tick" x="{frame.px(x)}" y="{y}" text-anchor="middle">{int(x)}</text>')
    return "".join(parts)


def _short(label: str) -> str:
    """Write 0.750 as 0.75 and 2.0 s as 2 s, because trailing zeros only help in columns of numbers."""
    return re.sub(r"\.0+(?!\d)", "", re.sub(r"(\.\d*?[1-9])0+(?!\d)", r"\1", label))


def _line(frame: Frame, series: Series) -> str:
    places = [(frame.px(x), frame.py(y)) for x, y in series.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    faint = " faint" if series.faint else ""
    drawn = f'<polyline class="line{faint}" stroke="var(--{series.colour})" points="{path}"/>'
    if (series.dots and len(places) <= MOST_DOTS) or (len(places) == 1 and not series.faint):
        dots = (f'<circle class="dot" cx="{x}" cy="{y}" r="4" fill="var(--{series.colour})"/>' for x, y in places)
        drawn += "".join(dots)
    return drawn


def _svg(frame: Frame, parts: Sequence[str], series: Sequence[Series], fmt: Format) -> str:
    data = {
        "x": frame.x,
        "plot": [LEFT, TOP, frame.width - LEFT - RIGHT, frame.height - TOP - BOTTOM],
        "series": [{"n": s.name, "c": s.colour, "p": [[x, fmt(y)] for x, y in s.points]} for s in series],
    }
    names = escape(", ".join(s.name for s in series))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{names} over train steps" data-chart="{escape(json.dumps(data))}">{"".join(parts)}</svg>'
    )


def asset(name: str) -> str:
    """Read a style or a script that lies beside this file. It becomes part of the page, which so works offline."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def backdrop() -> str:
    """The style and the background of a chart that is a file of its own; otherwise they come from the page."""
    return f'<style>{asset("chart.css")}</style><rect width="100%" height="100%" fill="var(--surface)"/>'
