"""From the results of all repeats to medians, ratios and a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

from .cases import MODES, Bar, Case
from .measure import Result

Results = dict[str, list[Result]]
"""By mode, one per repeat."""


def figures(case: Case, results: Results) -> dict[str, Any]:
    return {
        "job": case.file.name,
        "about": case.about,
        "repeats": len(results[MODES[0].name]),
        "modes": {name: _medians(runs) for name, runs in results.items()},
        "runs": {name: [asdict(run) for run in runs] for name, runs in results.items()},
        "bars": [_judge(bar, results) for bar in case.bars],
    }


def _medians(runs: list[Result]) -> dict[str, float]:
    return {key: median(asdict(run)[key] for run in runs) for key in asdict(runs[0])}


def _judge(bar: Bar, results: Results) -> dict[str, Any]:
    """Paired: each repeat's runs stood next to each other in time."""
    pairs = zip(results[bar.fast.name], results[bar.slow.name], strict=True)
    ratios = [fast.steps_per_hour / slow.steps_per_hour for fast, slow in pairs]
    measured = median(ratios)
    return {
        "fast": bar.fast.name,
        "slow": bar.slow.name,
        "ratio": measured,
        "least": min(ratios),
        "most": max(ratios),
        "bar": bar.times,
        "met": measured >= bar.times,
    }


COLUMNS: dict[str, Callable[[dict[str, float]], str]] = {
    "steps/h": lambda r: f"{r['steps_per_hour']:,.0f}",
    "step s": lambda r: f"{r['step_seconds']:.2f}",
    "get_batch s": lambda r: f"{r['get_batch_seconds']:.2f}",
    "train s": lambda r: f"{r['train_seconds']:.2f}",
    "weights s": lambda r: f"{r['sync_seconds']:.2f}",
    "engine idle": lambda r: f"{r['engine_idle']:.0%}",
    "trainer idle": lambda r: f"{r['trainer_idle']:.0%}",
    "stale": lambda r: f"{r['staleness']:.2f}",
    "tokens": lambda r: f"{r['tokens']:,.0f}",
}


def table(figures: dict[str, Any]) -> str:
    modes = figures["modes"]
    slowest = modes[MODES[0].name]["steps_per_hour"]
    lines = [f"{figures['job']}: {figures['about']} (median of {figures['repeats']})"]
    lines.append(f"  {'':20}" + "".join(f"{column:>13}" for column in COLUMNS) + f"{'speed':>9}")
    for name, row in modes.items():
        cells = "".join(f"{show(row):>13}" for show in COLUMNS.values())
        lines.append(f"  {name:20}{cells}{row['steps_per_hour'] / slowest:8.2f}x")
    return "\n".join([*lines, *map(_verdict, figures["bars"])])


def _verdict(bar: dict[str, Any]) -> str:
    spread = f"{bar['least']:.2f} to {bar['most']:.2f}"
    verdict = "met" if bar["met"] else "MISSED"
    return f"  {bar['fast']} over {bar['slow']}: {bar['ratio']:.2f}x ({spread}), asked {bar['bar']:g}x: {verdict}"
