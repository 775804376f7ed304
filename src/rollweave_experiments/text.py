"""Writes an experiment's rows as words and numbers, for the terminal, the page and the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from rollweave.observability.text import number
from rollweave_experiments.frame import Figure
from rollweave_experiments.verdict import ClaimRow, ExperimentResult, Scoreline

WORDS = {"ok": "agrees", "near": "near", "miss": "MISS"}
SHAPE_WORDS = {"ok": "holds", "near": "", "miss": "FAILS"}


def figure(value: Figure, unit: str) -> str:
    """Write a figure as 1.31-1.47x, 62 % or 365.7 s, or as a dash if there is no number."""
    if value is None:
        return "-"
    text = "-".join(number(end) for end in value) if isinstance(value, tuple) else number(value)
    return f"{text}x" if unit == "x" else f"{text} {unit}"


def measured(row: ClaimRow) -> str:
    return figure(row.measured, row.claim.unit)


def spread(row: ClaimRow) -> str:
    """The range from the least to the largest value over the seeds."""
    if row.spread is None or row.spread[0] == row.spread[1]:
        return "-"
    return figure(row.spread, row.claim.unit)


def off(row: ClaimRow) -> str:
    return "-" if row.off is None else f"{row.off * 100:.0f} %"


def verdict(row: ClaimRow) -> str:
    return (SHAPE_WORDS if row.claim.kind == "shape" else WORDS)[row.verdict]


def score_line(score: Scoreline) -> str:
    if score.kind == "shape":
        return f"shape: {score.ok} of {score.rows} hold"
    return f"{score.kind}: {score.ok} of {score.rows} within 15 %, {score.near} within 30 %, {score.miss} missed"


def table(result: ExperimentResult) -> str:
    """A table with aligned columns, for the terminal."""
    head = ("row", "claim", "paper", "measured", "seeds", "off", "")
    body = [
        (
            row.label,
            row.claim.kind,
            figure(row.claim.paper, row.claim.unit),
            measured(row),
            spread(row),
            off(row),
            _end(row),
        )
        for row in result.rows
    ]
    study = result.study
    return f"{study.name}: {study.title} ({study.paper}, {study.where})\n{aligned((head, *body))}\n"


def _end(row: ClaimRow) -> str:
    return f"{verdict(row)}: {row.claim.holds}" if row.claim.holds else verdict(row)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the first two and the last column to the left, and the numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    lines = (
        "  ".join(
            cell if i == last else cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(f"  {line}".rstrip() for line in lines)
