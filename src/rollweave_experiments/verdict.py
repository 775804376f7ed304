"""Compares measurements with the paper's rows, over one or several seeds.

A number agrees if it is within 15 % of the paper's, is near within 30 %, and is missed beyond. Any value within a range
of the paper agrees. A shape holds if it holds for every seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from rollweave_experiments.frame import Claim, ClaimKind, Figure, Measurement, Plot, Study

Agreement = Literal["ok", "near", "miss"]
CLOSE, NEAR = 0.15, 0.30


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim with its measured values and its verdict."""

    claim: Claim
    measured: float | None
    """The mean over the seeds."""
    spread: tuple[float, float] | None
    """The least and the largest over the seeds."""
    off: float | None
    """The distance from the paper's figure (or the nearer end of its range), as a share of it."""
    verdict: Agreement

    @property
    def label(self) -> str:
        return self.claim.label

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.label,
            "claim": self.claim.kind,
            "paper": list(self.claim.paper) if isinstance(self.claim.paper, tuple) else self.claim.paper,
            "evidence": self.claim.evidence,
            "unit": self.claim.unit,
            "holds": self.claim.holds,
            "measured": self.measured,
            "spread": None if self.spread is None else list(self.spread),
            "off": self.off,
            "verdict": self.verdict,
            "ok": self.ok,
        }


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The rows of a study with their verdicts."""

    study: Study
    seeds: tuple[int, ...]
    rows: tuple[ClaimRow, ...]
    plots: tuple[Plot, ...]

    def as_json(self) -> dict[str, Any]:
        study = self.study
        return {
            "name": study.name,
            "paper": study.paper,
            "where": study.where,
            "title": study.title,
            "claim": study.claim,
            "known": study.known,
            "chosen": study.chosen,
            "seeds": list(self.seeds),
            "rows": [row.as_json() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Scoreline:
    """How many rows of one kind agree, are near and are missed."""

    kind: ClaimKind
    rows: int
    ok: int
    near: int
    miss: int


def assess(study: Study, seeds: Sequence[int], measured: Sequence[Measurement]) -> ExperimentResult:
    labels = {claim.label for claim in study.claims}
    for one in measured:
        unknown = {*one.values, *one.holds} - labels
        if unknown:
            raise ValueError(f"{study.name} measured rows that its claims do not have: {sorted(unknown)}")
    rows = tuple(_row(claim, measured) for claim in study.claims)
    return ExperimentResult(study, tuple(seeds), rows, measured[0].plots)


def scores(results: Sequence[ExperimentResult]) -> list[Scoreline]:
    rows = [row for result in results for row in result.rows]
    kinds: tuple[ClaimKind, ...] = ("number", "shape", "calibration")
    return [_score(kind, [row for row in rows if row.claim.kind == kind]) for kind in kinds]


def _score(kind: ClaimKind, rows: Sequence[ClaimRow]) -> Scoreline:
    verdicts = [row.verdict for row in rows]
    return Scoreline(kind, len(rows), verdicts.count("ok"), verdicts.count("near"), verdicts.count("miss"))


def _row(claim: Claim, measured: Sequence[Measurement]) -> ClaimRow:
    values = [one.values[claim.label] for one in measured if claim.label in one.values]
    mean = round(fmean(values), 6) if values else None
    spread = (round(min(values), 6), round(max(values), 6)) if values else None
    off = deviation(mean, claim.paper)
    if claim.kind == "shape":
        kept = all(one.holds[claim.label] for one in measured)
        return ClaimRow(claim, mean, spread, off, "ok" if kept else "miss")
    if off is None:
        raise ValueError(f"{claim.label!r} is claimed as a {claim.kind} but nothing was measured")
    return ClaimRow(claim, mean, spread, off, "ok" if off <= CLOSE else "near" if off <= NEAR else "miss")


def deviation(measured: float | None, paper: Figure) -> float | None:
    """The relative distance to the paper's number, or to the nearer end of its range."""
    if measured is None or paper is None:
        return None
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    if low <= measured <= high:
        return 0.0
    nearer = low if measured < low else high
    return round(abs(measured - nearer) / abs(nearer), 6) if nearer else None
