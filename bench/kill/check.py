"""What must hold of a run folder after any number of kills and resumes: each line is a promise of docs/resume.md."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rollweave.environments.registry import source
from rollweave.observability.events import read_events, surviving
from rollweave.rollout.ledger import LedgerState, TaskEnd
from rollweave.runs.folder import RunFolder
from rollweave.runs.resume import find
from rollweave.simulation.recorded.replay import replay


def problems(run: Path) -> list[str]:
    """Everything that is wrong with a run; nothing, if all is well."""
    folder = RunFolder.open(run)
    return [*_rows(folder), *_tasks(folder), *_books(folder), *_decisions(folder)]


def _rows(folder: RunFolder) -> Iterator[str]:
    rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "reward/mean" in row]
    if [row["step"] for row in rows] != list(range(len(rows))):
        yield f"steps of metrics.jsonl are not 0, 1, 2 ...: {[row['step'] for row in rows]}"
    if any(row["policy/version"] != row["step"] + 1 for row in rows):
        yield "versions of metrics.jsonl do not follow its steps"
    if any(not math.isfinite(row["reward/mean"]) for row in rows):
        yield "a reward is missing"
    times = [row["time/elapsed"] for row in rows]
    if times != sorted(times):
        yield f"the elapsed time goes back: {times}"


def _tasks(folder: RunFolder) -> Iterator[str]:
    events = surviving(read_events(folder.events))
    admitted = [event.data["group"] for event in events if event.name == "group.admit"]
    if admitted != list(range(len(admitted))):
        yield f"tasks were lost or admitted twice: {admitted}"
    ended = Counter(event.data["group"] for event in events if event.name == "task.end")
    if twice := [group for group, times in ended.items() if times > 1]:
        yield f"tasks ended twice: {twice}"
    trained = [e.data["group"] for e in events if e.name == "task.end" and e.data["end"] == "trained"]
    booked = sum(event.name == "step.end" for event in events)
    if len(trained) != booked * folder.job().rollout.groups_per_step:
        yield f"{len(trained)} tasks were trained in {booked} steps"
    if strangers := set(ended) - set(admitted):
        yield f"tasks ended that were never admitted: {strangers}"


def _books(folder: RunFolder) -> Iterator[str]:
    start = find(folder)
    if start.checkpoint is None:
        yield "there is no checkpoint"
        return
    state = start.driver.scheduler
    yield from _balance(state.ledger)
    events = surviving(read_events(folder.events))
    admitted = {event.data["group"] for event in events if event.name == "group.admit"}
    ended = {event.data["group"] for event in events if event.name == "task.end"}
    if start.version * folder.job().rollout.groups_per_step != state.ledger.tasks.get(TaskEnd.TRAINED, 0):
        yield f"version {start.version} is booked with {state.ledger.tasks} tasks"
    if admitted - ended != set(state.ledger.open_tasks):
        yield f"open by the events: {admitted - ended}, by the ledger: {state.ledger.open_tasks}"
    kept = {group.id for group in state.buffered} | {group.id for group in state.open}
    if kept != set(state.ledger.open_tasks):
        yield f"the checkpoint keeps the groups {sorted(kept)}, open are {state.ledger.open_tasks}"


def _balance(ledger: LedgerState) -> Iterator[str]:
    if ledger.admitted != sum(ledger.tasks.values()) + len(ledger.open_tasks):
        yield f"the ledger of tasks does not balance: {ledger}"
    if ledger.issued != sum(ledger.attempts.values()) + len(ledger.open_attempts):
        yield f"the ledger of attempts does not balance: {ledger}"


def _decisions(folder: RunFolder) -> Iterator[str]:
    job = folder.job()
    result = replay(job, source(job.environment, job.seed, Path()), read_events(folder.events))
    if result.difference is not None:
        yield f"the replay differs: {result.difference}"
