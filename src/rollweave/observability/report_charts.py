"""The charts of a run, each a titled figure, and its learning curve as an SVG file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from rollweave.errors import RunFolderError
from rollweave.observability.report_data import Run, load_run
from rollweave.observability.report_style import CHART_CSS, VARIABLES
from rollweave.observability.report_svg import Format, Point, Series, legend, line_chart, smooth, stacked_bars
from rollweave.observability.text import duration, number, percent

PHASES = {
    "get_batch": "waiting for data",
    "train": "training",
    "sync_exposed": "weight sync",
    "eval": "evaluation",
}
"""What the trainer's loop does one after the other; recomputation overlaps it and is left out."""


def learning_curve(run: Run, width: int = 1140, height: int = 300) -> str:
    series = _curve_series(run)
    chart = line_chart(series, width, height, (0.0, None), rule=_target(run))
    hint = "reward of the trained batches (smoothed over the raw line), and greedy episodes on held-out tasks"
    return figure("Learning curve", hint, chart, series, wide=True)


def _curve_series(run: Run) -> list[Series]:
    raw = run.points("reward/mean")
    return [
        Series("raw", raw, "s1", faint=True),
        Series("training reward", smooth(raw), "s1"),
        Series("held-out reward", run.evaluations(), "s3", dots=True),
    ]


def _target(run: Run) -> tuple[float, str] | None:
    target = run.setting("evaluation", "target")
    return (float(target), f"target {target:g}") if isinstance(target, int | float) else None


def time_per_phase(run: Run) -> str:
    layers = [Series(label, run.points(f"time/{phase}"), f"s{i}") for i, (phase, label) in enumerate(PHASES.items(), 1)]
    layers = [layer for layer in layers if any(y for _, y in layer.points)]
    layers.append(Series("other", _rest(run.points("time/step"), layers), "s0"))
    layers = [_dense(layer, run.points("time/step")) for layer in layers]
    chart = stacked_bars(layers, fmt=duration)
    return figure("Time per step", "where the seconds went", chart, _with_shares(layers))


def _with_shares(layers: Sequence[Series]) -> list[Series]:
    """The same layers, for a legend that says how much each is of the whole."""
    sums = [sum(y for _, y in layer.points) for layer in layers]
    total = sum(sums) or 1.0
    return [
        replace(layer, name=f"{layer.name} {percent(part / total)}") for layer, part in zip(layers, sums, strict=True)
    ]


def _rest(totals: Sequence[Point], layers: Sequence[Series]) -> list[Point]:
    known = [dict(layer.points) for layer in layers]
    return [(x, max(0.0, y - sum(layer.get(x, 0.0) for layer in known))) for x, y in totals]


def _dense(layer: Series, steps: Sequence[Point]) -> Series:
    """Every step, zero where nothing was written: layers of a stack must line up."""
    known = dict(layer.points)
    return replace(layer, points=[(x, known.get(x, 0.0)) for x, _ in steps])


def idle_shares(run: Run) -> str:
    pools = list(run.last("idle/"))
    series = [Series(pool, run.points(f"idle/{pool}"), f"s{i}") for i, pool in enumerate(pools, 1)]
    chart = line_chart(series, y_range=(0.0, 1.0), fmt=percent)
    return figure("Idle share", "the part of each step in which a pool had nothing to do", chart, series)


def staleness(run: Run) -> str:
    series = [
        Series("mean", run.points("staleness/mean"), "s1"),
        Series("max", run.points("staleness/max"), "s3", peak=True),
    ]
    alpha = run.setting("pipeline", "alpha")
    rule = (float(alpha), f"bound α = {alpha}") if isinstance(alpha, int | float) else None
    chart = line_chart(series, y_range=(0.0, 1.0), rule=rule)
    return figure("Staleness", "policy versions between a trajectory's oldest token and its train step", chart, series)


def throughput(run: Run) -> str:
    series = [
        Series("generated", run.points("tokens_per_second/generated"), "s1"),
        Series("trained", run.points("tokens_per_second/trained"), "s2"),
    ]
    return figure("Throughput", "sampled tokens per second", line_chart(series, y_range=(0.0, None)), series)


def off_policy(run: Run) -> str:
    """Three small ones: their scales have nothing in common."""
    return "".join(
        _small(run, *which)
        for which in (
            ("Effective sample size", "of the importance ratios; 100%: on-policy", "offpolicy/ess", _fine_percent),
            ("Clip fraction", "tokens whose gradient was clipped", "offpolicy/clip_fraction", _fine_percent),
            ("Log-prob gap", "engine against trainer, same version", "mismatch/logprob_gap", number),
        )
    )


def _small(run: Run, title: str, hint: str, key: str, fmt: Format) -> str:
    series = [Series(title.lower(), run.points(key), "s4")]
    return figure(title, hint, line_chart(series, width=370, height=160, fmt=fmt), [])


def _fine_percent(share: float) -> str:
    return f"{share * 100:.3g}%"


def figure(title: str, hint: str, chart: str, series: Sequence[Series], wide: bool = False) -> str:
    body = chart or '<p class="empty">nothing recorded yet</p>'
    keys = legend(series) if len([s for s in series if not s.faint]) > 1 and chart else ""
    return (
        f'<figure class="card{" wide" if wide else ""}"><figcaption><b>{escape(title)}</b> '
        f'<span class="hint">{escape(hint)}</span>{keys}</figcaption>{body}</figure>'
    )


def curve_svg(run: Path, output: Path | None = None, width: int = 760, height: int = 320) -> str:
    """The learning curve of a run as a standalone SVG (for a README); also written to `output` if given."""
    loaded = load_run(run)
    series = _curve_series(loaded)
    chart = line_chart(series, width, height, (0.0, None), rule=_target(loaded))
    if not chart:
        raise RunFolderError(f"{run} has no learning curve yet: it holds neither a train step nor an evaluation")
    start, end = chart.index(">") + 1, chart.rindex("</svg>")
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    svg = f'<svg {size} class="chart">{_backdrop()}{chart[start:end]}{_labels(series, width, height)}</svg>\n'
    if output is not None:
        output.write_text(svg, encoding="utf-8")
    return svg


def _backdrop() -> str:
    """What otherwise comes from the page."""
    return f'<style>{VARIABLES}{CHART_CSS}</style><rect width="100%" height="100%" fill="var(--surface)"/>'


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
