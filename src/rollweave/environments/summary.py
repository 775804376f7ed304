"""The figures of a check: what a person wants to know about an environment before training in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollweave.environments.check import Played, Report


def summarise(report: Report) -> dict[str, Any]:
    players = {player: report.of(player) for player in ("random", "scripted")}
    return {
        "refused": bool(report.problems),
        "players": {player: _figures(episodes) for player, episodes in players.items() if episodes},
    }


def _figures(episodes: list[Played]) -> dict[str, Any]:
    rewards = [episode.reward for episode in episodes]
    return {
        "episodes": len(episodes),
        "outcomes": dict(_outcomes(episodes).most_common()),
        "turns": _spread([len(episode.trajectory.turns) for episode in episodes]),
        "observation characters": _spread([size for episode in episodes for size in episode.observations]),
        "reset ms": _spread([episode.reset_seconds * 1e3 for episode in episodes]),
        "step ms": _spread([seconds * 1e3 for episode in episodes for seconds in episode.step_seconds]),
        "reward": _spread(rewards),
        "different rewards": len(set(rewards)),
    }


def _outcomes(episodes: list[Played]) -> Counter[str]:
    return Counter(str(e.trajectory.outcome) if e.trajectory.info.get("ended") else "cut short" for e in episodes)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}


def in_words(figure: Any) -> str:
    """A figure of the summary in a table's cell."""
    match figure:
        case {"least": least, "mean": mean, "most": most}:
            return f"{least:.3g} to {most:.3g}, mean {mean:.3g}"
        case dict():
            return ", ".join(f"{count} {how}" for how, count in figure.items())
        case _:
            return str(figure)
