"""The wire format between a run and the function that computes a reward: JSON, version 1 (docs/functions.md).

A request is a trajectory with a key; the key is a digest of all the rest, so two tries of a call have the same one, and
different trajectories never do. The answer repeats the key, so that an answer that belongs to another call is noticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from rollweave.errors import RewardFailed
from rollweave.rewards.scorer import RewardResult, as_number
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Span, Trajectory, Turn, token_ids

WIRE_VERSION = 1


class WrongMessage(Exception):
    """What arrived is not in the wire format, or belongs to another call."""


class WireRequest(NamedTuple):
    key: str
    body: bytes


class InstancesUsed(NamedTuple):
    """What the instances behind an answer have done so far."""

    pool: str
    """An id, so that several pools are told apart."""
    busy: float
    """Instance-seconds in which a reward was computed."""
    paid: float
    """Instance-seconds from each start to each stop."""


@dataclass(frozen=True, slots=True)
class RewardAnswer:
    """What a function said: a reward, or why there is none."""

    result: RewardResult | None = None
    error: str = ""
    seconds: float | None = None
    """What computing took, if the function says it."""
    cold: bool = False
    """Its instance had to start for this call."""
    used: InstancesUsed | None = None


# -------------------------------------------------------------------------------------------------------- requests


def write_request(trajectory: Trajectory, reward: str) -> WireRequest:
    """`reward`: its name in the job."""
    content = {"version": WIRE_VERSION, "reward": reward, "trajectory": _trajectory(trajectory)}
    try:
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RewardFailed(
            f"{trajectory.id} cannot be sent to {reward}: a value of its task's row is no JSON ({error}): use a local "
            "function, or write text and numbers into the row"
        ) from error
    key = blake2b(text.encode(), digest_size=16).hexdigest()
    return WireRequest(key, f'{{"key":"{key}",{text[1:]}'.encode())


def read_request(body: bytes | str) -> tuple[str, Trajectory]:
    """The key and the trajectory. Raises WrongMessage."""
    try:
        data = json.loads(body)
        version = data["version"]
        if version != WIRE_VERSION:
            raise WrongMessage(f"the request has version {version}; this function reads version {WIRE_VERSION}")
        return str(data["key"]), _read_trajectory(data["trajectory"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongMessage(f"the body is no reward request ({type(error).__name__}: {error})") from error


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    task = trajectory.task
    return {
        "id": trajectory.id,
        "group": trajectory.group,
        "member": trajectory.member,
        "task": {"id": task.id, "environment": task.environment, "seed": task.seed, "data": task.data},
        "outcome": trajectory.outcome,
        "admitted_version": trajectory.admitted_version,
        "length": trajectory.length,
        "sampled_tokens": trajectory.sampled_tokens,
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "text": turn.text,
        "finish": turn.finish,
        "reward": turn.reward,
        "generate_seconds": turn.generate_seconds,
        "environment_seconds": turn.environment_seconds,
        "observation": turn.observation.tokens.tolist(),
        "answer": [{"tokens": span.tokens.tolist(), "version": span.version} for span in turn.answer],
    }


def _read_trajectory(data: dict[str, Any]) -> Trajectory:
    task, outcome = Task(**data["task"]), data["outcome"]
    made = Trajectory(data["id"], data["group"], data["member"], task, [_read_turn(turn) for turn in data["turns"]])
    made.outcome = None if outcome is None else Outcome(outcome)
    made.admitted_version = data["admitted_version"]
    return made


def _read_turn(data: dict[str, Any]) -> Turn:
    return Turn(
        Span(token_ids(data["observation"])),
        [Span(token_ids(span["tokens"]), version=span["version"]) for span in data["answer"]],
        data["text"],
        data["finish"],
        data["reward"],
        data["generate_seconds"],
        data["environment_seconds"],
    )


# --------------------------------------------------------------------------------------------------------- answers


def write_answer(key: str, answer: RewardAnswer) -> str:
    said: dict[str, Any] = {"version": WIRE_VERSION, "key": key}
    if answer.result is None:
        said["error"] = answer.error
    else:
        said |= {"reward": answer.result.value, "parts": answer.result.parts}
    if answer.seconds is not None:
        said |= {"seconds": answer.seconds, "cold": answer.cold}
    if answer.used is not None:
        said["instances"] = answer.used._asdict()
    return json.dumps(said)


def read_answer(body: bytes | str, key: str) -> RewardAnswer:
    """Raises WrongMessage; `RewardFailed` if the function is sure that there is no reward."""
    try:
        data = json.loads(body)
        if data["version"] != WIRE_VERSION:
            raise RewardFailed(f"it answers in version {data['version']} of the wire format, not {WIRE_VERSION}")
        if data["key"] != key:
            raise WrongMessage(f"the answer belongs to another call: its key is {data['key']!r:.40}, not {key!r}")
        used = InstancesUsed(**data["instances"]) if data.get("instances") else None
        said: dict[str, Any] = {"seconds": as_number(data.get("seconds")), "cold": bool(data.get("cold")), "used": used}
        if "error" in data:
            return RewardAnswer(error=str(data["error"]), **said)
        return RewardAnswer(_result(data), **said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongMessage(f"it is no reward answer ({type(error).__name__}: {error}): {body!r:.200}") from error


def _result(data: dict[str, Any]) -> RewardResult:
    value = as_number(data["reward"])
    if value is None:
        raise RewardFailed(f"it returned {data['reward']!r}, and a reward must be a finite number")
    parts = {str(name): float(part) for name, part in (data.get("parts") or {}).items()}
    return RewardResult(value, parts)
