"""`rollweave.train`: a job from Python, in a script or a notebook."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rollweave.config.load import parse_job
from rollweave.environments.registry import EnvironmentFactory, ObjectMaker
from rollweave.errors import ConfigError
from rollweave.observability.metrics import read_metrics
from rollweave.rewards.scorer import NamedReward
from rollweave.runs.train import train_job
from rollweave.training.checkpoint import newest

Reward = str | Callable[..., Any]

DEFAULTS: dict[str, Any] = {
    "pipeline": {"type": "rollart", "alpha": 1},
    "training": {"loss": {"type": "ppo", "denominator": "behaviour"}},
}
"""What `train` chooses where its caller does not; everything else has the job file's defaults."""


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
        """How it ended (summary.json)."""
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
    model    "tiny", "smollm2-135m", a Hugging Face folder, or a section of a job file
    reward   a function of a Trajectory, "file.py:function", or several; added to the environment's rewards
    out      the run folder (default: a new one in runs/)
    resume   go on with the run in `out`, if there is one, from its newest whole checkpoint
    sections other sections of a job file: rollout={"group_size": 8}, training={"steps": 50}, runtime={"type": "inline"}
    """
    if taken := sections.keys() & {"model", "environment", "rewards"}:
        raise ConfigError(f"rollweave.train: say {', '.join(sorted(taken))} with the arguments env, model and reward")
    rewards = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    document = {
        **_merged(DEFAULTS, sections),
        "model": _model(model),
        "environment": _environment(env),
        "rewards": [{"function": name} for name in rewards if isinstance(name, str)],
    }
    job = parse_job(json.dumps(document), "rollweave.train(...)", Path.cwd())
    start = partial(
        train_job,
        job,
        Path(out) if out else None,
        resume,
        environments=EnvironmentFactory({"python": ObjectMaker(env)}) if callable(env) else None,
        rewards=tuple(NamedReward(f.__name__, f, 1.0, f.__qualname__) for f in rewards if callable(f)),
    )
    return Run(_outside_any_loop(start))


def _environment(env: Any) -> Any:
    if isinstance(env, Mapping):
        return dict(env)
    if callable(env):
        return {"type": "python", "target": f"{env.__module__}:{env.__qualname__}"}
    return {"type": "python", "target": env} if ":" in env else {"type": env}


def _model(model: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(model, Mapping):
        return dict(model)
    return {"type": model} if model in ("tiny", "smollm2-135m") else {"type": "local", "path": model}


def _merged(defaults: Any, given: Any) -> dict[str, Any]:
    """Given values win; sections are merged, unless they are of another type."""
    result = dict(defaults)
    for key, value in given.items():
        base: Any = result.get(key)
        sections = isinstance(value, Mapping) and isinstance(base, Mapping)
        same_type = sections and value.get("type", base.get("type")) == base.get("type")
        result[key] = _merged(base, value) if same_type else value
    return result


def _outside_any_loop(run: Callable[[], Path]) -> Path:
    """A notebook has a running event loop of its own; then the run gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
