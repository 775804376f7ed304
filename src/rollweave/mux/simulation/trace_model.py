"""Traces made from a few statistics, for whoever has no trace of their own.

A profile names what is published about a trace (quantiles, mean, span, peak). Durations come from a quantile curve
through those points, straight in the logarithm, with one bend above the median that makes the mean right; every
job takes its own slice of the curve, so a drawn trace has the profile's quantiles and not merely its expectation.
Arrivals are uniform over the span, except for a share that comes in bursts; the share is the one that makes the peak
come out. No job of any recorded trace is in here.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

from rollweave.errors import ConfigError
from rollweave.mux.simulation.trace import TraceJob, peak_concurrency
from rollweave.seeds import generator


@dataclass(frozen=True, slots=True)
class TraceProfile:
    """Hours; jobs at a time when every job runs alone."""

    span_h: float
    min_h: float
    p10_h: float
    median_h: float
    p90_h: float
    max_h: float
    mean_h: float
    peak: int
    bursts: int
    burst_h: float
    """How many bursts the span has, and how long each lasts."""
    gpus: tuple[tuple[int, int], ...]
    """How often each size comes among `JOBS`."""


JOBS = 300
PROFILES = {
    "primary": TraceProfile(578.95, 0.38, 1.31, 6.91, 49.45, 84.44, 14.40, 27, 3, 24.0, ((1, 171), (2, 3), (4, 126))),
    "heavy": TraceProfile(481.46, 0.336, 2.76, 33.32, 85.95, 173.33, 38.40, 189, 1, 20.0, ((1, 192), (4, 102), (8, 6))),
}
SHARES = [step / 40 for step in range(41)]


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
    candidates = (_trace(profile, durations, gpus, share, seed, like) for share in SHARES)
    return min(candidates, key=lambda trace: abs(peak_concurrency(trace) - wanted))


def _trace(
    profile: TraceProfile, durations: list[int], gpus: list[int], share: float, seed: int, like: str
) -> list[TraceJob]:
    # The same draws for every share: only how many of the jobs belong to a burst differs.
    arrivals = _arrivals(profile, len(durations), share, generator(seed, "trace", like, "arrivals"))
    lines = zip(arrivals, durations, gpus, strict=True)
    return [TraceJob(at, length, size, f"{like}-{seed}-{i}") for i, (at, length, size) in enumerate(lines)]


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
    points = [
        (0.0, profile.min_h),
        (0.1, profile.p10_h),
        (0.5, profile.median_h),
        (0.9, profile.p90_h),
        (1.0, profile.max_h),
    ]
    for (low, short), (high, long) in itertools.pairwise(points):
        if share <= high:
            way = (share - low) / (high - low)
            return float(short * (long / short) ** (way**bend if low >= 0.5 else way))
    return profile.max_h


def _bend(profile: TraceProfile, slices: int = 2000) -> float:
    """The exponent above the median that gives the mean: a larger one keeps more jobs short."""

    def mean(bend: float) -> float:
        return sum(_hours(profile, (i + 0.5) / slices, bend) for i in range(slices)) / slices

    low, high = 0.1, 10.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean(middle) > profile.mean_h else (low, middle)
    return low
