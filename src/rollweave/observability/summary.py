"""Makes and writes summary.json, which says how a run ended; people and programs read it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollweave.observability.jsonl import encode, replace_file, writing

ExitReason = Literal["completed", "target", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of summary.json."""

    name: str
    exit_reason: ExitReason
    """`completed`: all steps; `target`: evaluation reached its target; `interrupted`: Ctrl-C; `failed`: see error."""
    steps: int = 0
    reward: float | None = None
    """Mean reward of the last step's batch."""
    eval_first: float | None = None
    eval_final: float | None = None
    eval_best: float | None = None
    eval_best_version: int | None = None
    target: float | None = None
    target_reached: bool | None = None
    """None if the job has no target."""
    elapsed: float = 0.0
    tokens_generated: int = 0
    tokens_trained: int = 0
    tokens_wasted: dict[str, int] = field(default_factory=dict)
    staleness_max: float | None = None
    wasted_share: float | None = None
    """Wasted / (trained + wasted)."""
    duration_bias: float | None = None
    """The last measured value: -0.1 means that trained episodes are a tenth shorter than started ones."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Number of tasks, by how they ended."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Number of attempts, by how they ended."""
    error: str = ""


def summarise(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    exit_reason: ExitReason,
    target: float | None = None,
    error: str = "",
) -> Summary:
    """Summarise a run's metrics rows: all of `read_metrics(folder).rows`, also those from before a resume."""
    evaluations = [
        (x, row.get("eval/version", row["step"])) for row in rows if (x := row.get("eval/reward")) is not None
    ]
    best, best_version = max(evaluations, default=(None, None), key=lambda pair: (pair[0], -pair[1]))
    return Summary(
        name=name,
        exit_reason=exit_reason,
        steps=sum(is_train_step(row) for row in rows),
        reward=_last(rows, "reward/mean"),
        eval_first=evaluations[0][0] if evaluations else None,
        eval_final=evaluations[-1][0] if evaluations else None,
        eval_best=best,
        eval_best_version=best_version,
        target=target,
        target_reached=None if target is None else best is not None and best >= target,
        elapsed=_elapsed(rows),
        tokens_generated=_total(rows, "tokens/generated"),
        tokens_trained=_total(rows, "tokens/trained"),
        tokens_wasted={cause: _total(rows, f"tokens/wasted/{cause}") for cause in names(rows, "tokens/wasted/")},
        staleness_max=max((x for row in rows if (x := row.get("staleness/max")) is not None), default=None),
        wasted_share=_last(rows, "tokens/wasted_share"),
        duration_bias=_last(rows, "bias/duration"),
        tasks=_counts(rows, "ledger/task/"),
        attempts=_counts(rows, "ledger/attempt/"),
        error=error,
    )


def write_summary(folder: Path, summary: Summary) -> None:
    path = folder / "summary.json"
    with writing(path):
        replace_file(path, encode(asdict(summary)) + "\n")


def is_train_step(row: Mapping[str, Any]) -> bool:
    """Whether the row is of a train step. A row may also contain only an evaluation of the last version."""
    return "reward/mean" in row


def names(rows: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """The parts after a prefix in the rows' keys, each once, in order of appearance."""
    return list(dict.fromkeys(key.removeprefix(prefix) for row in rows for key in row if key.startswith(prefix)))


def _counts(rows: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, int]:
    return {state: int(_last(rows, prefix + state) or 0) for state in names(rows, prefix)}


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((row[key] for row in reversed(rows) if row.get(key) is not None), None)


def _elapsed(rows: Sequence[Mapping[str, Any]]) -> float:
    """The time of the whole run. Where `time/elapsed` goes back, a new count began, and both counts are added."""
    done = latest = 0.0
    for elapsed in (x for row in rows if (x := row.get("time/elapsed")) is not None):
        done, latest = (done + latest if elapsed < latest else done), elapsed
    return done + latest


def _total(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return int(sum(row.get(key) or 0 for row in rows))
