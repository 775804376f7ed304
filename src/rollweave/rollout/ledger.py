"""The two ledgers: where every task and every attempt ended, exactly once.

One ledger has an entry for the *task* of each admitted group, the other one for each *attempt*, with its tokens. An
entry is open or has ended in exactly one of the states below; to end one twice, or one that was never opened, is a
bug and raises. An open attempt whose episode has ended is *scoring* until its reward has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rollweave.observability.events import Emitter


class TaskEnd(StrEnum):
    TRAINED = "trained"
    FILTERED = "filtered"
    DROPPED_STALE = "dropped-stale"
    FAILED = "failed"


class AttemptEnd(StrEnum):
    TRAINED = "trained"
    FILTERED = "filtered"
    SURPLUS = "surplus"
    STALE = "stale"
    ABORTED = "aborted"
    INFRA_FAILED = "infra-failed"
    REWARD_FAILED = "reward-failed"


class LedgerError(AssertionError):
    """The books do not balance: a bug in Rollweave, never in a job."""


@dataclass(slots=True)
class LedgerState:
    """What a checkpoint keeps of the ledger. Groups say which of the open attempts are scoring."""

    admitted: int = 0
    issued: int = 0
    tasks: dict[TaskEnd, int] = field(default_factory=dict)
    attempts: dict[AttemptEnd, int] = field(default_factory=dict)
    tokens: dict[AttemptEnd, int] = field(default_factory=dict)
    open_tasks: list[int] = field(default_factory=list)
    open_attempts: list[str] = field(default_factory=list)


class Ledger:
    def __init__(self, recorder: Emitter) -> None:
        """`recorder` hears of every end."""
        self._recorder = recorder
        self.scoring: set[str] = set()
        """Those of the open attempts whose episode has ended and whose reward is being computed."""
        self.restore(LedgerState())

    def admit(self, group: int) -> None:
        if group in self.open_tasks:
            raise LedgerError(f"group {group} was admitted twice")
        self.open_tasks.add(group)
        self.admitted += 1

    def issue(self, attempt: str) -> None:
        if attempt in self.open_attempts:
            raise LedgerError(f"attempt {attempt} was issued twice")
        self.open_attempts.add(attempt)
        self.issued += 1

    def begin_scoring(self, attempt: str) -> None:
        """Its episode has ended; its reward is being computed."""
        if attempt not in self.open_attempts or attempt in self.scoring:
            raise LedgerError(f"attempt {attempt} is to be scored, but is not open or is being scored already")
        self.scoring.add(attempt)

    def end_scoring(self, attempt: str) -> None:
        """Its reward has come, or never will."""
        if attempt not in self.scoring:
            raise LedgerError(f"attempt {attempt} was scored, but its reward was not awaited")
        self.scoring.remove(attempt)

    def end_task(self, group: int, end: TaskEnd) -> None:
        if group not in self.open_tasks:
            raise LedgerError(f"group {group} ended as {end}, but is not open")
        self.open_tasks.remove(group)
        self.tasks[end] += 1
        self._recorder.emit("task.end", group=group, end=end.value)

    def end_attempt(self, attempt: str, end: AttemptEnd, tokens: int) -> None:
        if attempt not in self.open_attempts:
            raise LedgerError(f"attempt {attempt} ended as {end}, but is not open")
        if attempt in self.scoring:
            raise LedgerError(f"attempt {attempt} ended as {end}, but its reward is still awaited")
        self.open_attempts.remove(attempt)
        self.attempts[end] += 1
        self.tokens[end] += tokens
        self._recorder.emit("attempt.end", id=attempt, end=end.value, tokens=tokens)

    def check(self) -> None:
        """Counts add up to what was admitted and issued."""
        if sum(self.tasks.values()) + len(self.open_tasks) != self.admitted:
            raise LedgerError(f"{self.admitted} tasks admitted, but {self.summary()}")
        if sum(self.attempts.values()) + len(self.open_attempts) != self.issued:
            raise LedgerError(f"{self.issued} attempts issued, but {self.summary()}")

    def state(self) -> LedgerState:
        return LedgerState(
            self.admitted,
            self.issued,
            dict(self.tasks),
            dict(self.attempts),
            dict(self.tokens),
            sorted(self.open_tasks),
            sorted(self.open_attempts),
        )

    def restore(self, state: LedgerState) -> None:
        self.admitted, self.issued = state.admitted, state.issued
        self.tasks, self.attempts, self.tokens = Counter(state.tasks), Counter(state.attempts), Counter(state.tokens)
        self.open_tasks, self.open_attempts = set(state.open_tasks), set(state.open_attempts)
        self.check()

    def go_back(self, kept: LedgerState, spared: Mapping[str, int]) -> None:
        """The run goes back to a checkpoint. Tasks are as they were there. Attempts were really made, so they stay in
        the books: what has ended since then, however it ended, now counts as aborted. `spared`: attempts whose
        trajectories the checkpoint kept, with their tokens; they are open again. What is being cancelled stays open."""
        again = {attempt: tokens for attempt, tokens in spared.items() if attempt not in self.open_attempts}
        ended, tokens = sum(self.attempts.values()) - len(again), sum(self.tokens.values()) - sum(again.values())
        aborted, lost = ended - sum(kept.attempts.values()), tokens - sum(kept.tokens.values())
        ends = {end.value: self.tokens[end] - kept.tokens.get(end, 0) for end in AttemptEnd}
        self.admitted, self.tasks, self.open_tasks = kept.admitted, Counter(kept.tasks), set(kept.open_tasks)
        self.attempts = Counter(kept.attempts) + Counter({AttemptEnd.ABORTED: aborted})
        self.tokens = Counter(kept.tokens) + Counter({AttemptEnd.ABORTED: lost})
        self.open_attempts |= spared.keys()
        self.check()
        self._recorder.emit("attempts.undone", aborted=aborted, tokens=lost, ends=ends, open=again)

    def summary(self) -> dict[str, dict[str, int]]:
        """Every state, also those with a count of zero. Attempts that are being scored are open, too."""
        return {
            "tasks": {**{end.value: self.tasks[end] for end in TaskEnd}, "open": len(self.open_tasks)},
            "attempts": {
                **{end.value: self.attempts[end] for end in AttemptEnd},
                "open": len(self.open_attempts),
                "scoring": len(self.scoring),
            },
            "tokens": {end.value: self.tokens[end] for end in AttemptEnd},
        }
