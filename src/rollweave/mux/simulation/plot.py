"""Dollars per hour over the hours of a replay, as an SVG file of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rollweave.observability.report_style import CHART_CSS, VARIABLES
from rollweave.observability.report_svg import LEFT, Point, Series, line_chart

WIDTH, HEIGHT, HEAD = 900, 320, 28
SAMPLES = 400


def cost_over_time(runs: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """`runs`: name -> the `cost_over_time` of its summary."""
    series = [Series(name, _steps(points), f"s{1 + i % 7}") for i, (name, points) in enumerate(runs.items())]
    chart = line_chart(series, WIDTH, HEIGHT, y_range=(0.0, None), fmt=lambda dollars: f"{dollars:.0f}")
    style = f'<style>{VARIABLES}{CHART_CSS}</style><rect width="100%" height="100%" fill="var(--surface)"/>'
    size = f'viewBox="0 0 {WIDTH} {HEIGHT + HEAD}" width="{WIDTH}" height="{HEIGHT + HEAD}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size}>{style}{_legend(list(runs))}'
        f'<svg y="{HEAD}" width="{WIDTH}" height="{HEIGHT}">{chart}</svg></svg>\n'
    )


def _steps(points: Sequence[dict[str, Any]]) -> list[Point]:
    """The cost stays as it is until it changes: what it is at evenly spaced moments."""
    hours = [point["at_s"] / 3600 for point in points]
    last = len(points) - 1
    moments = [hours[0] + (hours[-1] - hours[0]) * i / SAMPLES for i in range(SAMPLES)]
    return [(at, points[min(last, bisect_right(hours, at) - 1)]["cost_per_h"]) for at in moments]


def _legend(names: Sequence[str]) -> str:
    parts, x = [f'<text class="tick" x="{LEFT}" y="18">$/h over hours</text>'], LEFT + 120
    for i, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="9" width="10" height="10" fill="var(--s{1 + i % 7})"/>')
        parts.append(f'<text class="tick" x="{x + 14}" y="18">{escape(name)}</text>')
        x += 28 + 7 * len(name)
    return "".join(parts)
