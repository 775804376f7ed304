"""The commands as Python functions, for a script or a notebook: `train`, `evaluate`, `simulate` and `plan`.

Each function takes the arguments of its command and returns its result; only `train` prints, as the command does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollweave.config.job import Job
from rollweave.config.load import SectionKind, load_file, parse_text
from rollweave.environments.registry import EnvironmentFactory, maker
from rollweave.errors import ConfigError
from rollweave.observability.metrics import read_metrics
from rollweave.rewards.scorer import NamedReward
from rollweave.runs.train import train_job
from rollweave.training.checkpoint import newest

Reward = str | Callable[..., Any]

DataFile = str | Path | Mapping[str, Any]
"""A YAML file, or its content."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    folder: Path

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint: a Hugging Face folder."""
        return newest(self.folder / "checkpoints")

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended (summary.json)."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per train step (metrics.jsonl)."""
        return read_metrics(self.folder).rows


def train(
    env: str | Mapping[str, Any] | Callable[..., Any],
    model: str | Mapping[str, Any] = "tiny",
    reward: Reward | Sequence[Reward] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    **sections: Any,
) -> Run:
    """Train a policy in an environment and return the finished run.

    env      a shipped name ("frozen_lake"), "file.py:Class", a section of a job file, or a class with reset and step
    model    "tiny", "smollm2", "./folder", "organisation/name" of the hub, or a section of a job file
    reward   a function of a Trajectory, "file.py:function", or several; added to the environment's rewards
    out      the run folder (default: a new one in runs/)
    resume   go on with the run in `out`, if there is one, from its newest intact checkpoint
    sections other sections of a job file: rollout={"group_size": 8}, training={"steps": 50}, runtime={"type": "inline"}
    """
    if taken := sections.keys() & {"model", "environment", "rewards"}:
        raise ConfigError(f"rollweave.train: say {', '.join(sorted(taken))} with the arguments env, model and reward")
    rewards = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    document = {
        **sections,
        "model": dict(model) if isinstance(model, Mapping) else model,
        "environment": _environment(env),
        "rewards": [{"function": name} for name in rewards if isinstance(name, str)],
    }
    job = parse_text(json.dumps(document), "rollweave.train(...)", Path.cwd(), Job)
    folder = Path(out) if out else None
    environments = EnvironmentFactory({"python": maker(env)}) if callable(env) else None
    functions = tuple(NamedReward(f.__name__, f, 1.0, f.__qualname__) for f in rewards if callable(f))
    return Run(_outside_any_loop(lambda: train_job(job, folder, resume, environments=environments, rewards=functions)))


def evaluate(target: str | Path, *, env: str | None = None, tasks: int = 100, **overrides: Any) -> dict[str, Any]:
    """Play held-out tasks greedily with a run's newest checkpoint or a model: what `rollweave eval --json` prints.

    target     a run folder, a Hugging Face folder, or a model as a job file names it ("Qwen/Qwen3-0.6B")
    env        the environment to play in; default: the run's own
    overrides  keys and sections of the job file to change: environment={"size": 8}
    """
    from rollweave.runs.evaluate import evaluate as play

    chosen = {"environment.type": env} if env else {}
    return _outside_any_loop(lambda: play(str(target), _overrides(chosen | overrides), tasks))


def simulate(file: DataFile, **overrides: Any) -> dict[str, Any]:
    """Run a job's control plane on modelled hardware: what `rollweave simulate --json` prints.

    file       a simulation file, or its content as a dict
    overrides  keys and sections to change: seed=3, pipeline={"type": "sync+"}
    """
    from rollweave.config.scenario import Scenario
    from rollweave.simulation.simulate import simulate as run

    scenario = _checked(file, Scenario, "rollweave.simulate(...)", overrides)
    outcome = _outside_any_loop(lambda: run(scenario))
    return dict(json.loads(outcome.json(rows=True)))


def plan(file: DataFile, *, top: int = 5, **overrides: Any) -> dict[str, Any]:
    """Search devices and settings for a job: what `rollweave plan --json` prints.

    file       a plan file, or its content as a dict
    top        candidates to return, the best first
    overrides  keys and sections to change: budget=300, rollout={"group_size": 16}
    """
    from rollweave.config.planning import PlanConfig
    from rollweave.simulation.planner.search import plan as search
    from rollweave.simulation.planner.words import as_data

    config = _checked(file, PlanConfig, "rollweave.plan(...)", overrides)
    return as_data(config, _outside_any_loop(lambda: search(config)), top)


def _checked(file: DataFile, kind: type[SectionKind], name: str, overrides: Mapping[str, Any]) -> SectionKind:
    changes = _overrides(overrides)
    if isinstance(file, Mapping):
        return parse_text(json.dumps(file), name, Path.cwd(), kind, changes)
    return load_file(Path(file), kind, changes)


def _overrides(changes: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Write keywords as overrides of the command line, key by key, so that a section keeps its other keys."""
    texts: list[str] = []
    for key, value in changes.items():
        if isinstance(value, Mapping) and value:
            texts += _overrides(value, f"{prefix}{key}.")
        else:
            texts.append(f"{prefix}{key}={json.dumps(value)}")
    return texts


def _environment(env: Any) -> Any:
    if isinstance(env, Mapping):
        return dict(env)
    return {"type": "python", "target": f"{env.__module__}:{env.__qualname__}"} if callable(env) else env


def _outside_any_loop(run: Callable[[], Found]) -> Found:
    """Call `run`, in a thread of its own if an event loop already runs here, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
