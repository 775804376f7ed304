"""Ready rules for answers that can be checked: the last answer against a column of the task's row.

Name one in a job file as `rollweave.rewards.rules:exact_match`. The column is `answer`; for another one, two
lines in a file of your own do:

    def score(trajectory):
        return numeric_match(trajectory, column="solution")
"""

from __future__ import annotations

import re
from typing import Any

from rollweave.errors import RewardFailed
from rollweave.targets import nearest
from rollweave.trajectory import Trajectory

_NUMBER = re.compile(r"[-+]?(?:\d+(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


def exact_match(trajectory: Trajectory, column: str = "answer") -> float:
    """1 if the answer is the expected text, blanks around it aside."""
    return float(last_answer(trajectory) == str(expected(trajectory, column)).strip())


def contains(trajectory: Trajectory, column: str = "answer") -> float:
    """1 if the expected text is somewhere in the answer."""
    return float(str(expected(trajectory, column)).strip() in last_answer(trajectory))


def regex_match(trajectory: Trajectory, column: str = "answer") -> float:
    """1 if the regular expression in the column matches somewhere in the answer."""
    pattern = str(expected(trajectory, column))
    try:
        return float(re.search(pattern, last_answer(trajectory)) is not None)
    except re.error as error:
        message = f"{trajectory.task.id}: column {column!r} holds {pattern!r}, which is no regular expression: {error}"
        raise RewardFailed(message) from error


def numeric_match(trajectory: Trajectory, column: str = "answer", tolerance: float = 1e-6) -> float:
    """1 if the last number in the answer is the expected one, to a relative tolerance."""
    wanted = last_number(str(expected(trajectory, column)))
    if wanted is None:
        raise RewardFailed(f"{trajectory.task.id}: column {column!r} holds no number; use exact_match for text")
    given = last_number(last_answer(trajectory))
    return float(given is not None and abs(given - wanted) <= tolerance * max(1.0, abs(wanted)))


def last_answer(trajectory: Trajectory) -> str:
    return trajectory.turns[-1].text.strip() if trajectory.turns else ""


def last_number(text: str) -> float | None:
    """The last number written in the text; thousands may be separated by commas."""
    found = [match.group() for match in _NUMBER.finditer(text) if any(map(str.isdigit, match.group()))]
    return float(found[-1].replace(",", "")) if found else None


def expected(trajectory: Trajectory, column: str) -> Any:
    data = trajectory.task.data
    if column not in data:
        raise RewardFailed(f"{trajectory.task.id}: its row has no column {column!r}{nearest(column, data)}")
    return data[column]
