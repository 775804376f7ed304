"""A trace: which jobs arrive when, and how long each would run alone.

One CSV line per job, `submit_s,duration_s,gpus[,source_job_id]`, sorted by arrival. Times are seconds; `duration_s` is
what the job needs on nodes of its own. A line that cannot be meant is refused with its number and the fix: a replay
of a trace that was silently repaired would answer a question nobody asked.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollweave.errors import RollweaveError

COLUMNS = ("submit_s", "duration_s", "gpus")
OPTIONAL = "source_job_id"


class TraceError(RollweaveError):
    """A trace file that cannot be replayed; the message names file, line, value and fix."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    submit_s: float
    duration_s: float
    gpus: int
    source_job_id: str = ""


def read_trace(path: Path) -> list[TraceJob]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise TraceError(f"{path}: cannot be read ({reason}); give a CSV file {_form()}") from error
    rows = [row for row in enumerate(csv.reader(text.splitlines()), start=1) if any(cell.strip() for cell in row[1])]
    if not rows:
        raise TraceError(f"{path}: the file is empty; it needs the header {_form()} and a line per job")
    width = _check_header(path, rows[0][1])
    jobs = [_job(path, line, cells, width) for line, cells in rows[1:]]
    if not jobs:
        raise TraceError(f"{path}: there is a header but no job; add a line per job {_form()}")
    _check_order(path, [line for line, _ in rows[1:]], jobs)
    return jobs


def write_trace(jobs: Iterable[TraceJob]) -> str:
    lines = [",".join((*COLUMNS, OPTIONAL))]
    lines += [f"{_plain(job.submit_s)},{_plain(job.duration_s)},{job.gpus},{job.source_job_id}" for job in jobs]
    return "\n".join(lines) + "\n"


def _plain(seconds: float) -> str:
    return str(int(seconds)) if seconds == int(seconds) else repr(seconds)


def _form() -> str:
    return f"`{','.join(COLUMNS)}[,{OPTIONAL}]`"


def _check_header(path: Path, cells: list[str]) -> int:
    names = [cell.strip() for cell in cells]
    if names not in ([*COLUMNS], [*COLUMNS, OPTIONAL]):
        raise TraceError(f"{path}, line 1: the header is `{','.join(names)}`; it has to be {_form()}")
    return len(names)


def _job(path: Path, line: int, cells: list[str], width: int) -> TraceJob:
    cells = [cell.strip() for cell in cells]
    if len(cells) != width:
        raise TraceError(
            f"{path}, line {line}: {len(cells)} values where the header names {width} (`{','.join(cells)}`); "
            "one job per line, values separated by commas"
        )
    submit = _seconds(path, line, COLUMNS[0], cells[0])
    duration = _seconds(path, line, COLUMNS[1], cells[1])
    if submit < 0:
        raise TraceError(
            f"{path}, line {line}: submit_s is {cells[0]}; count seconds from the first arrival, from 0 up"
        )
    if duration <= 0:
        raise TraceError(
            f"{path}, line {line}: duration_s is {cells[1]}; a job needs more than 0 seconds, drop the line"
        )
    return TraceJob(submit, duration, _gpus(path, line, cells[2]), cells[3] if width > len(COLUMNS) else "")


def _seconds(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{path}, line {line}: {column} is {cell!r}; it has to be a number of seconds")
    return value


def _gpus(path: Path, line: int, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()) or int(cell) < 1:
        raise TraceError(f"{path}, line {line}: gpus is {cell!r}; it has to be a whole number of at least 1")
    return int(cell)


def _check_order(path: Path, lines: Sequence[int], jobs: Sequence[TraceJob]) -> None:
    for line, (before, job) in zip(lines[1:], itertools.pairwise(jobs), strict=True):
        if job.submit_s < before.submit_s:
            raise TraceError(
                f"{path}, line {line}: submit_s {_plain(job.submit_s)} comes after {_plain(before.submit_s)}; "
                "sort the file by submit_s"
            )


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """What tells one trace from another; hours, and jobs at a time when every job runs alone."""

    jobs: int
    arrival_span_h: float
    mean_h: float
    p10_h: float
    median_h: float
    p90_h: float
    max_h: float
    mean_concurrency: float
    peak_concurrency: int


def describe(jobs: Sequence[TraceJob]) -> TraceStatistics:
    hours = sorted(job.duration_s / 3600 for job in jobs)
    span = (jobs[-1].submit_s - jobs[0].submit_s) / 3600
    return TraceStatistics(
        jobs=len(jobs),
        arrival_span_h=span,
        mean_h=sum(hours) / len(hours),
        p10_h=quantile(hours, 0.1),
        median_h=quantile(hours, 0.5),
        p90_h=quantile(hours, 0.9),
        max_h=hours[-1],
        mean_concurrency=sum(hours) / span if span > 0 else float(len(jobs)),
        peak_concurrency=peak_concurrency(jobs),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest values of a sorted list."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def peak_concurrency(jobs: Sequence[TraceJob]) -> int:
    # At equal times a departure counts first: the next job finds its nodes free.
    changes = sorted([(job.submit_s, 1) for job in jobs] + [(job.submit_s + job.duration_s, -1) for job in jobs])
    return max(itertools.accumulate(change for _, change in changes))
