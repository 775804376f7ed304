"""Writes numbers, durations and small pictures as text, for the terminal view and the report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*%#"
"""For terminals that cannot show `BLOCKS`."""


def number(value: float | None, digits: int = 3) -> str:
    """Write a number in a form that fits a column: 0.412, 41.2, 4.12k, 1.3M, 2.1e-6."""
    if value is None or not math.isfinite(value):
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{_significant(value / limit, digits)}{unit}"
    return _significant(value, digits)


def _significant(value: float, digits: int) -> str:
    if value == int(value):
        return str(int(value))
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(0, digits - whole)}f}"
    if abs(value) >= 10.0 ** (1 - digits):
        return text
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{share * 100:.0f}%"


def duration(seconds: float | None) -> str:
    """Write a duration as 2.1 s, 3m 12s or 1h 04m."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"


def sparkline(values: Sequence[float | None], width: int, ramp: str = BLOCKS) -> str:
    """Draw a series in at most `width` characters; if it is longer, neighbouring values are averaged."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    bins = _bins(known, width)
    if not bins:
        return ""
    low, high = min(bins), max(bins)
    if high - low < 1e-12:
        return ramp[0] * len(bins)
    return "".join(ramp[round((value - low) / (high - low) * (len(ramp) - 1))] for value in bins)


def _bins(values: Sequence[float], width: int) -> list[float]:
    if width < 1 or len(values) <= width:
        return list(values) if width >= 1 else []
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def bar(share: float, width: int) -> tuple[str, str]:
    """The filled and the empty part of a bar."""
    filled = round(min(1.0, max(0.0, share)) * width) if math.isfinite(share) else 0
    return "█" * filled, "░" * (width - filled)
