"""What is predicted: one job, in three modes, with quick and with slow environments."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

_cases = import_module("bench.async.cases")  # `async` is a keyword, so it cannot be imported by name
Mode, Case = _cases.Mode, _cases.Case

JOB = Path(__file__).parent / "frozen_lake.yaml"

SLOW = ("environment.latency.mean=0.2", "environment.latency.std=0.2")
LATENCIES = {"none": (), "N(0.2 s, 0.2 s)": SLOW}
PIPELINES = {
    "sync": ("pipeline.type=sync",),
    "sync+": ("pipeline.type=sync+",),
    "rollart alpha=1": ("pipeline.type=rollart", "pipeline.alpha=1"),
}
SKIPPED_STEPS = 5
"""The first ones fill the pipeline, and the runtime gets a spare engine ready beside them."""
STEPS = {"sync": 6, "sync+": 8, "rollart alpha=1": 12}
"""After the three that bench.async skips: quick and uneven ones need more of them."""

MODES = tuple(
    Mode(f"{pipeline}, latency {latency}", (*overrides, *late))
    for latency, late in LATENCIES.items()
    for pipeline, overrides in PIPELINES.items()
)
CASE = Case(JOB, "FrozenLake", {mode.name: STEPS[mode.name.partition(",")[0]] for mode in MODES})

STEP_BAR = 0.15
"""Predicted step time against measured, at most."""
IDLE_BAR = 0.10
"""Predicted idle shares against measured, in shares of the time."""
