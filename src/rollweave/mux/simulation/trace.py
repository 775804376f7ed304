"""A trace: which jobs arrive when, and how long each would run alone.

One CSV line per job, `submit_s,duration_s,gpus[,source_job_id]`, sorted by arrival. Times are seconds; `duration_s` is
what the job needs on nodes of its own. A line with an impossible value is refused with its number and the fix; nothing
is repaired silently.

Without a trace of your own, `generate` makes one from a few statistics. A profile names what is published about a trace
(quantiles, mean, span, peak). Durations come from a quantile curve through those points, straight in the logarithm,
with one bend above the median that makes the mean right; every job takes its own slice of the curve, so a drawn trace
has the profile's quantiles and not merely its expectation.
Arrivals are uniform over the span, except for a share that comes in bursts; the share is the one that makes the peak
come out. No job of any recorded trace is in here.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollweave.errors import ConfigError, RollweaveError
from rollweave.seeds import generator

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
    jobs: list[TraceJob] = []
    for line, cells in rows:
        try:
            if cells is rows[0][1]:
                _check_header(cells)
            else:
                jobs.append(_job(cells, len(rows[0][1]), jobs[-1].submit_s if jobs else 0.0))
        except ValueError as error:
            raise TraceError(f"{path}, line {line}: {error}") from None
    if not jobs:
        raise TraceError(f"{path}: there is a header but no job; add a line per job {_form()}")
    return jobs


def write_trace(jobs: Iterable[TraceJob]) -> str:
    lines = [",".join((*COLUMNS, OPTIONAL))]
    lines += [f"{_plain(job.submit_s)},{_plain(job.duration_s)},{job.gpus},{job.source_job_id}" for job in jobs]
    return "\n".join(lines) + "\n"


def _plain(seconds: float) -> str:
    return str(int(seconds)) if seconds == int(seconds) else repr(seconds)


def _form() -> str:
    return f"`{','.join(COLUMNS)}[,{OPTIONAL}]`"


def _check_header(cells: list[str]) -> None:
    names = [cell.strip() for cell in cells]
    if names not in ([*COLUMNS], [*COLUMNS, OPTIONAL]):
        raise ValueError(f"the header is `{','.join(names)}`; it has to be {_form()}")


def _job(cells: list[str], width: int, before: float) -> TraceJob:
    """The job of a line; the line before it arrives at `before`."""
    cells = [cell.strip() for cell in cells]
    if len(cells) != width:
        raise ValueError(
            f"{len(cells)} values where the header names {width} (`{','.join(cells)}`); one job per line, values "
            "separated by commas"
        )
    submit, duration, gpus = _seconds(COLUMNS[0], cells[0]), _seconds(COLUMNS[1], cells[1]), cells[2]
    if submit < 0:
        raise ValueError(f"submit_s is {cells[0]}; count seconds from the first arrival, from 0 up")
    if submit < before:
        raise ValueError(f"submit_s {cells[0]} comes after {_plain(before)}; sort the file by submit_s")
    if duration <= 0:
        raise ValueError(f"duration_s is {cells[1]}; a job needs more than 0 seconds, drop the line")
    if not (gpus.isascii() and gpus.isdigit()) or int(gpus) < 1:
        raise ValueError(f"gpus is {gpus!r}; it has to be a whole number of at least 1")
    return TraceJob(submit, duration, int(gpus), cells[3] if width > len(COLUMNS) else "")


def _seconds(column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{column} is {cell!r}; it has to be a number of seconds")
    return value


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


@dataclass(frozen=True, slots=True)
class TraceProfile:
    """Hours; jobs at a time when every job runs alone."""

    span_h: float
    curve_h: tuple[float, ...]
    """The durations at `CURVE_SHARES`: shortest, p10, median, p90 and longest."""
    mean_h: float
    peak: int
    bursts: int
    burst_h: float
    """How many bursts the span has, and how long each lasts."""
    gpus: tuple[tuple[int, int], ...]
    """How often each size comes among `JOBS`."""


JOBS = 300
PROFILES = {
    "primary": TraceProfile(578.95, (0.38, 1.31, 6.91, 49.45, 84.44), 14.4, 27, 3, 24.0, ((1, 171), (2, 3), (4, 126))),
    "heavy": TraceProfile(
        481.46, (0.336, 2.76, 33.32, 85.95, 173.33), 38.4, 189, 1, 20.0, ((1, 192), (4, 102), (8, 6))
    ),
}
CURVE_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
BURST_SHARES = [step / 40 for step in range(41)]


def generate(jobs: int = JOBS, seed: int = 0, like: str = "primary") -> list[TraceJob]:
    """A trace of that many jobs; the span grows with their number, so that as many run at a time."""
    if like not in PROFILES:
        raise ConfigError(f"there is no profile {like!r} of a trace; there are: {', '.join(PROFILES)}")
    profile = PROFILES[like]
    durations = _durations(profile, jobs, generator(seed, "trace", like, "durations"))
    sizes = [size for size, count in profile.gpus for _ in range(count)]
    draw = generator(seed, "trace", like, "sizes")
    gpus = [draw.choice(sizes) for _ in range(jobs)]
    wanted = profile.peak * min(1.0, jobs / JOBS)

    def with_bursts(share: float) -> list[TraceJob]:
        # The same draws for every share: only how many of the jobs belong to a burst differs.
        arrivals = _arrivals(profile, jobs, share, generator(seed, "trace", like, "arrivals"))
        lines = zip(arrivals, durations, gpus, strict=True)
        return [TraceJob(at, length, size, f"{like}-{seed}-{i}") for i, (at, length, size) in enumerate(lines)]

    return min(map(with_bursts, BURST_SHARES), key=lambda trace: abs(peak_concurrency(trace) - wanted))


def _arrivals(profile: TraceProfile, jobs: int, share: float, draw: random.Random) -> list[int]:
    span = profile.span_h * 3600 * jobs / JOBS
    burst = min(profile.burst_h * 3600, span)
    starts = [draw.uniform(0, span - burst) for _ in range(profile.bursts)]
    times = []
    for _ in range(jobs):
        alone, member, place, within = draw.uniform(0, span), draw.random(), draw.choice(starts), draw.uniform(0, burst)
        times.append(place + within if member < share else alone)
    times.sort()
    # The first job is at 0 and the last at the end of the span, as in a cut-out of a longer record.
    first, last = times[0], times[-1]
    stretch = span / (last - first) if last > first else 0.0
    return [round((time - first) * stretch) for time in times]


def _durations(profile: TraceProfile, jobs: int, draw: random.Random) -> list[int]:
    bend = _bend(profile)
    shares = [(slot + draw.random()) / jobs for slot in range(jobs)]
    shares[-1] = 1.0  # the longest job is as long as it is said to be
    draw.shuffle(shares)
    return [max(1, round(_hours(profile, share, bend) * 3600)) for share in shares]


def _hours(profile: TraceProfile, share: float, bend: float) -> float:
    """The quantile curve: how long the job is that is longer than this share of all jobs."""
    points = zip(CURVE_SHARES, profile.curve_h, strict=True)
    (low, short), (high, long) = next(pair for pair in itertools.pairwise(points) if share <= pair[1][0])
    way = (share - low) / (high - low)
    return float(short * (long / short) ** (way**bend if low >= 0.5 else way))


def _bend(profile: TraceProfile, slices: int = 2000) -> float:
    """The exponent above the median that gives the mean: a larger one keeps more jobs short."""

    def mean(bend: float) -> float:
        return sum(_hours(profile, (i + 0.5) / slices, bend) for i in range(slices)) / slices

    low, high = 0.1, 10.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean(middle) > profile.mean_h else (low, middle)
    return low
