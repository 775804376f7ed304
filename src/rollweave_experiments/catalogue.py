"""Lists all experiments by name, and runs them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from rollweave.errors import ConfigError
from rollweave_experiments import flash, rollart, rollmux
from rollweave_experiments.frame import Experiment
from rollweave_experiments.verdict import ExperimentResult, assess


def experiments() -> dict[str, Experiment]:
    every = (*rollart.EXPERIMENTS, *flash.EXPERIMENTS, *rollmux.EXPERIMENTS)
    return {experiment.name: experiment for experiment in every}


def chosen(name: str) -> list[Experiment]:
    """One experiment, or `all` of them."""
    known = experiments()
    if name == "all":
        return list(known.values())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "`rollweave experiments list` shows them all"
        raise ConfigError(f"there is no experiment {name!r}: {hint}")
    return [known[name]]


def run(experiment: Experiment, seeds: Sequence[int], small: bool = False) -> ExperimentResult:
    return assess(experiment.study, seeds, [experiment.measure(seed, small) for seed in seeds])


def run_all(
    wanted: Sequence[Experiment], seeds: Sequence[int], on_result: Callable[[ExperimentResult], None]
) -> list[ExperimentResult]:
    """Run the experiments one after another, and call `on_result` after each."""
    results = []
    for experiment in wanted:
        results.append(run(experiment, seeds))
        on_result(results[-1])
    return results
