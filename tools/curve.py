"""Writes the learning curve of a run as an SVG file: `python -m tools.curve RUN docs/images/quickstart.svg`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rollweave.errors import RunFolderError
from rollweave.observability.report.charts import curve_series, target_rule
from rollweave.observability.report.data import load_run
from rollweave.observability.report.svg import Series, backdrop, line_chart


def curve_svg(run: Path, width: int = 760, height: int = 320) -> str:
    """The learning curve of a run folder, with the style and the names that otherwise come from the page."""
    loaded = load_run(run)
    series = curve_series(loaded)
    chart = line_chart(series, width, height, (0.0, None), rule=target_rule(loaded))
    if not chart:
        raise RunFolderError(f"{run} has no learning curve yet: it has neither a train step nor an evaluation")
    start, end = chart.index(">") + 1, chart.rindex("</svg>")
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} class="chart">{backdrop()}{chart[start:end]}{_labels(series, width, height)}</svg>\n'


def _labels(series: Sequence[Series], width: int, height: int) -> str:
    """Names of axes and lines, bottom right: a curve that climbs is not there."""
    right = width - 20
    parts = [
        '<text class="tick" x="6" y="11">reward</text>',
        f'<text class="tick" x="{right}" y="{height - 34}" text-anchor="end">train steps →</text>',
    ]
    for place, one in enumerate(s for s in series if s.points and not s.faint):
        y = height - 58 - 18 * place
        parts.append(f'<rect x="{right - 110}" y="{y - 9}" width="10" height="10" rx="2" fill="var(--{one.colour})"/>')
        parts.append(f'<text class="tick" x="{right - 94}" y="{y}">{escape(one.name)}</text>')
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(curve_svg(Path(sys.argv[1])), encoding="utf-8")
