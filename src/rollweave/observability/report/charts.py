"""Makes the charts of the report, each as a figure with a title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import ceil

from rollweave.observability.report.data import RunRecord
from rollweave.observability.report.svg import (
    Format,
    Point,
    Series,
    legend,
    line_chart,
    smooth,
    stacked_bars,
)
from rollweave.observability.text import duration, number, percent

PHASES = {
    "get_batch": "waiting for data",
    "train": "training",
    "sync_exposed": "weight sync",
    "eval": "evaluation",
    "permit": "waiting for a permit",
}
"""The phases of the run's loop, which follow one another. Recomputation overlaps them and is left out."""


def learning_curve(run: RunRecord, width: int = 1140, height: int = 300) -> str:
    series = curve_series(run)
    chart = line_chart(series, width, height, (0.0, None), rule=target_rule(run))
    hint = "reward of the trained batches (smoothed over the raw line), and greedy episodes on held-out tasks"
    return figure("Learning curve", hint, chart, series, wide=True)


def curve_series(run: RunRecord) -> list[Series]:
    raw = run.points("reward/mean")
    return [
        Series("raw", raw, "s1", faint=True),
        Series("training reward", smooth(raw), "s1"),
        Series("held-out reward", run.evaluations(), "s3", dots=True),
    ]


def target_rule(run: RunRecord) -> tuple[float, str] | None:
    target = run.setting("evaluation", "target")
    return (float(target), f"target {target:g}") if isinstance(target, int | float) else None


def time_per_phase(run: RunRecord) -> str:
    layers = [Series(label, run.points(f"time/{phase}"), f"s{i}") for i, (phase, label) in enumerate(PHASES.items(), 1)]
    layers = [layer for layer in layers if any(y for _, y in layer.points)]
    layers.append(Series("other", _rest(run.points("time/step"), layers), "s0"))
    layers = [_dense(layer, run.points("time/step")) for layer in layers]
    chart = stacked_bars(layers, fmt=duration)
    return figure("Time per step", "where the seconds went", chart, _with_shares(layers))


def _with_shares(layers: Sequence[Series]) -> list[Series]:
    """The same layers, with each one's share of the whole in its name, for the legend."""
    sums = [sum(y for _, y in layer.points) for layer in layers]
    total = sum(sums) or 1.0
    return [
        replace(layer, name=f"{layer.name} {percent(part / total)}") for layer, part in zip(layers, sums, strict=True)
    ]


def _rest(totals: Sequence[Point], layers: Sequence[Series]) -> list[Point]:
    known = [dict(layer.points) for layer in layers]
    return [(x, max(0.0, y - sum(layer.get(x, 0.0) for layer in known))) for x, y in totals]


def _dense(layer: Series, steps: Sequence[Point]) -> Series:
    """Give the layer a value for every step, 0 where it has none, so that the layers of a stack align."""
    known = dict(layer.points)
    return replace(layer, points=[(x, known.get(x, 0.0)) for x, _ in steps])


def idle_shares(run: RunRecord) -> str:
    pools = [pool for pool in run.last("idle/") if pool != "get_batch"]  # a phase: it has its own chart
    series = [Series(pool, run.points(f"idle/{pool}"), f"s{i}") for i, pool in enumerate(pools, 1)]
    chart = line_chart(series, y_range=(0.0, 1.0), fmt=percent)
    return figure("Idle share", "the part of each step in which a pool had nothing to do", chart, series)


def staleness(run: RunRecord) -> str:
    series = [
        Series("mean", run.points("staleness/mean"), "s1"),
        Series("max", run.points("staleness/max"), "s3", peak=True),
    ]
    alpha = run.setting("pipeline", "alpha")
    # The bound is rounded up: with alpha 1.5, half of a batch may be 2 versions old.
    rule = (float(ceil(alpha)), f"bound α = {alpha:g}") if isinstance(alpha, int | float) else None
    chart = line_chart(series, y_range=(0.0, 1.0), rule=rule)
    return figure("Staleness", "policy versions between a trajectory's oldest token and its train step", chart, series)


def throughput(run: RunRecord) -> str:
    series = [
        Series("generated", run.points("tokens_per_second/generated"), "s1"),
        Series("trained", run.points("tokens_per_second/trained"), "s2"),
    ]
    return figure("Throughput", "sampled tokens per second", line_chart(series, y_range=(0.0, None)), series)


def queue(run: RunRecord) -> str:
    """Three charts of the buffer between rollout and trainer: its length, the waits in it, and what was delayed."""
    seen = [Series("groups", run.points("queue/length_seen"), "s1")]
    waits = [
        Series("mean", run.points("queue/wait_seconds"), "s1"),
        Series("longest", run.points("queue/wait_seconds_max"), "s3", peak=True),
    ]
    delayed = [
        Series("trainer, by missing data", run.points("queue/trainer_blocked_seconds"), "s2"),
        Series("rollout, by the bound", run.points("queue/backpressure_seconds"), "s5"),
    ]
    return (
        _small("Queue length", "complete groups when the trainer asked", seen)
        + _small("Time in the queue", "from complete to consumed", waits, duration)
        + _small("Delayed", "seconds of each step", delayed, duration)
    )


def fate(run: RunRecord) -> str:
    """Three charts of the sampled data: what was wasted, how old the batches were, and the duration bias."""
    causes = [cause for cause in run.last("tokens/wasted/") if any(y for _, y in run.points(f"tokens/wasted/{cause}"))]
    wasted = _stack(run, "tokens/wasted/", causes)
    ages = sorted(run.last("staleness/share/"), key=int)
    bias = [
        Series("seconds", run.points("bias/duration"), "s1"),
        Series("tokens", run.points("bias/tokens"), "s4"),
    ]
    shares = _stack(run, "staleness/share/", ages)
    return (
        _small("Wasted tokens", "by cause", wasted, bars=True, nothing="nothing was wasted")
        + _small("Age of the batch", "share of trajectories, by versions", shares, percent, bars=True)
        + _small("Duration bias", "trained episodes against started ones", bias, _fine_percent, (-0.05, 0.05))
    )


def _stack(run: RunRecord, prefix: str, names: Sequence[str]) -> list[Series]:
    steps = run.points("time/step")
    return [_dense(Series(name, run.points(prefix + name), f"s{i}"), steps) for i, name in enumerate(names, 1)]


def off_policy(run: RunRecord) -> str:
    """Three separate charts, because their scales have nothing in common."""
    ess = [Series("effective sample size", run.points("offpolicy/ess"), "s4")]
    clipped = [Series("clip fraction", run.points("offpolicy/clip_fraction"), "s4")]
    gap = [Series("log-prob gap", run.points("mismatch/logprob_gap"), "s4")]
    return (
        _small("Effective sample size", "of the importance ratios; 100%: on-policy", ess, _fine_percent)
        + _small("Clip fraction", "tokens whose gradient was clipped", clipped, _fine_percent, (0.0, 0.01))
        + _small("Log-prob gap", "engine against trainer, same version", gap)
    )


def _small(
    title: str,
    hint: str,
    series: list[Series],
    fmt: Format = number,
    y_range: tuple[float | None, float | None] = (None, None),
    bars: bool = False,
    nothing: str = "",
) -> str:
    chart = stacked_bars(series, 370, 160, fmt) if bars else line_chart(series, 370, 160, y_range, fmt)
    return figure(title, hint, chart, series, nothing=nothing)


def _fine_percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def figure(title: str, hint: str, chart: str, series: Sequence[Series], wide: bool = False, nothing: str = "") -> str:
    body = chart or f'<p class="empty">{nothing or "nothing recorded yet"}</p>'
    keys = legend(series) if len([s for s in series if not s.faint]) > 1 and chart else ""
    return (
        f'<figure class="card{" wide" if wide else ""}"><figcaption><b>{escape(title)}</b> '
        f'<span class="hint">{escape(hint)}</span>{keys}</figcaption>{body}</figure>'
    )
