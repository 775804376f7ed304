"""Shows what a replay found: `as_json` for programs, `as_table` for people, `cost_over_time` as an SVG picture."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from rollweave.mux.simulation.replay import ReplayResult
from rollweave.mux.simulation.trace import quantile
from rollweave.observability.report.svg import LEFT, Point, Series, backdrop, line_chart

SCALARS = (
    "total_cost",
    "average_cost_per_h",
    "slo_attainment",
    "slo_attainment_per_iteration",
    "peak_gpus",
    "moves_per_hour",
)


def as_json(outcome: ReplayResult) -> dict[str, Any]:
    ledger = outcome.ledger
    admitted = sum(outcome.admissions.values()) or 1
    return {
        "total_cost": ledger.dollars,
        "average_cost_per_h": ledger.dollars / outcome.hours if outcome.hours else 0.0,
        "slo_attainment": outcome.slo_attainment,
        "slo_attainment_per_iteration": ledger.iterations_in_slo / ledger.iterations if ledger.iterations else 1.0,
        "peak_gpus": ledger.peak_gpus,
        "peak_gpus_by_pool": {"rollout": ledger.rollout.peak, "train": ledger.train.peak},
        "moves_per_hour": outcome.moves / outcome.hours if outcome.hours else 0.0,
        "moves": outcome.moves,
        "paused_h": outcome.paused_s / 3600,
        "bubbles": {"rollout": ledger.rollout.bubble, "train": ledger.train.bubble},
        "admissions": {how: outcome.admissions[how] / admitted for how in ("direct", "scaling", "isolated")},
        "cold_start_s": {"mean": fmean(job.cold_start_s for job in outcome.ended) if outcome.ended else 0.0},
        "waited_s": {"max": max((job.waited_s for job in outcome.ended), default=0.0)},
        "hours": outcome.hours,
        "jobs": len(outcome.ended),
        "missed": [job.job for job in outcome.ended if not job.in_slo],
        "decision_latency_ms": _latency(outcome),
        "decisions": [decision._asdict() for decision in outcome.decisions],
        "cost_over_time": [point._asdict() for point in ledger.points],
    }


def _latency(outcome: ReplayResult) -> dict[str, float]:
    times = sorted(decision.latency_ms for decision in outcome.decisions) or [0.0]
    return {"median": quantile(times, 0.5), "p99": quantile(times, 0.99), "max": times[-1]}


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of what can be averaged; the runs themselves, with their lists, beside them."""
    means: dict[str, Any] = {name: fmean(run[name] for run in runs) for name in SCALARS}
    for name in ("bubbles", "admissions", "decision_latency_ms"):
        means[name] = {key: fmean(run[name][key] for run in runs) for key in runs[0][name]}
    means["decisions"] = [decision for run in runs for decision in run["decisions"]]
    if "lower_bound" in runs[0]:
        means["lower_bound"] = fmean(run["lower_bound"] for run in runs)
    return {**means, "runs": list(runs)}


def as_table(run: dict[str, Any]) -> str:
    """One line per figure, units beside it."""
    bubbles, mix, latency = run["bubbles"], run["admissions"], run["decision_latency_ms"]
    kept, in_time = run["slo_attainment"], run["slo_attainment_per_iteration"]
    lines = [
        ("total cost", f"{run['total_cost'] / 1000:,.1f} k$", f"{run['average_cost_per_h']:,.0f} $/h on average"),
        ("SLO kept", f"{kept:.1%} of jobs", f"{in_time:.1%} of iterations"),
        ("peak", f"{run['peak_gpus']:,.0f} GPUs", ""),
        ("moves", f"{run['moves_per_hour']:.2f} /h", ""),
        ("bubbles", f"{bubbles['rollout']:.1%} rollout", f"{bubbles['train']:.1%} train"),
        ("admitted", f"{mix['direct']:.1%} direct", f"{mix['scaling']:.1%} scaling, {mix['isolated']:.1%} isolated"),
        ("decisions", f"{len(run['decisions']):,}", f"{latency['median']:.2f} ms median, {latency['p99']:.2f} ms p99"),
    ]
    if least := run.get("lower_bound"):
        over = f"the cost is {run['total_cost'] / least:.2f} times that"
        lines.insert(1, ("lower bound", f"{least / 1000:,.1f} k$", over))
    return "\n".join(f"  {name:<12}{value:<18}{more}".rstrip() for name, value, more in lines)


WIDTH, HEIGHT, HEAD = 900, 320, 28
SAMPLES = 400


def cost_over_time(runs: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """`runs`: name -> the `cost_over_time` of its summary."""
    series = [Series(name, _steps(points), f"s{1 + i % 7}") for i, (name, points) in enumerate(runs.items())]
    chart = line_chart(series, WIDTH, HEIGHT, y_range=(0.0, None), fmt=lambda dollars: f"{dollars:.0f}")
    size = f'viewBox="0 0 {WIDTH} {HEIGHT + HEAD}" width="{WIDTH}" height="{HEIGHT + HEAD}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size}>{backdrop()}{_legend(list(runs))}'
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
