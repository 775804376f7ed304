"""Serves `rollweave env`: lists the shipped environments, and makes, checks and plays one that is given by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.config import schema
from rollweave.config.document import Document
from rollweave.config.environments import SingleEnvironment, environment_from_text
from rollweave.config.load import check_document
from rollweave.config.rewards import RewardConfig
from rollweave.environments.check import CheckReport, EnvironmentCheck, text_of
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.latency import LateEnvironments, latencies
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import ConfigError
from rollweave.rewards.scorer import Scorer
from rollweave.seeds import derive
from rollweave.targets import nearest


def catalogue() -> list[dict[str, Any]]:
    """List the shipped environments with the options that they have in a job file."""
    return [
        {
            "name": kind,
            "about": (config.__doc__ or "").strip(),
            "options": [
                {
                    "name": name,
                    "default": "required"
                    if field.is_required()
                    else json.dumps(field.get_default(call_default_factory=True)),
                    "about": (field.description or "").replace("\n", " "),
                }
                for name, field in config.model_fields.items()
                if name != "type"
            ],
        }
        for kind, config in schema.kinds(SingleEnvironment).items()
    ]


def configure(target: str, options: Sequence[str], base: Path) -> SingleEnvironment:
    """Make the configuration of a shipped environment, or of `file.py:Class`, with `key=value` options."""
    data = environment_from_text(target)
    kinds: Mapping[str, type[Any]] = schema.kinds(SingleEnvironment)
    if data["type"] not in kinds:
        fix = f"{nearest(target, kinds)}; your own is named like my_env.py:MyEnvironment"
        raise ConfigError(f"no environment is called {target!r}{fix}")
    if data["type"] == "python":
        own = ("levels=", "latency.")
        options = [option if option.startswith(own) else f"arguments.{option}" for option in options]
    config: SingleEnvironment = check_document(Document(target, data), base, kinds[data["type"]], options)
    return config


async def check_target(
    target: str, options: Sequence[str], base: Path, rewards: Sequence[str], *, seed: int = 0, **limits: Any
) -> CheckReport:
    """Check the named environment. `limits` are `episodes`, `max_turns` and `deadline`."""
    config = configure(target, options, base)
    scorer = Scorer([RewardConfig(function=reward) for reward in rewards], base)
    pool = EnvironmentPool(EnvironmentFactory.from_config(config, base), per_process=1)
    try:
        late = LateEnvironments(pool, latencies(config), Clock())
        return await EnvironmentCheck(late, source(config, seed, base), scorer, seed=seed, **limits).run()
    finally:
        await pool.close()
        await scorer.aclose()


async def play_target(
    target: str,
    options: Sequence[str],
    base: Path,
    seed: int,
    max_turns: int,
    ask: Callable[[], str] | None,
    show: Callable[[str], None],
) -> None:
    """Play one episode. `ask` returns the next action (None: the environment's own script), `show` prints a line."""
    config = configure(target, options, base)
    task = source(config, seed, base).task(0)
    environment = LateEnvironments(EnvironmentFactory.from_config(config, base), latencies(config), Clock())(task)
    total, turn = 0.0, 0
    observation = await environment.reset(task.seed, task.data)
    show(text_of(observation))
    for turn in range(1, max_turns + 1):
        if ask is None:
            action = await environment.scripted_action(derive(seed, "play", turn))
            show(f"> {action}")
        else:
            action = ask()
        result = await environment.step(action)
        total += result.reward
        show(text_of(result.observation))
        if result.done or result.truncated:
            break
    await environment.close()
    show(f"{turn} turns, reward {total:g}")
