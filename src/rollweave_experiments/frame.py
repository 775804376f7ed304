"""What an experiment is: a paper's study, the claim we make about each of its rows, and a function that measures.

A claim is written down before anything is measured and says which of three things a row is:

    number        the inputs are known well enough that our ratio should land near the paper's
    shape         they are not: only a testable statement (monotone, crossover, plateau, best point) is claimed
    calibration   a constant of our models was taken from this very row, so agreement proves nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

ClaimKind = Literal["number", "shape", "calibration"]
KINDS: tuple[ClaimKind, ...] = ("number", "shape", "calibration")

Figure = float | tuple[float, float] | None
"""What a paper reports: a number, the range over several cases, or nothing that could be read off."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of a study."""

    label: str
    kind: ClaimKind
    paper: Figure
    evidence: str
    """How the paper's figure is known, in the tags of our notes: P read in the paper, A in its public code, S in a
    third party's note (S- in one that nothing confirms), D computed by us from published figures."""
    unit: str = "x"
    """x is a ratio; s, %, GPUs ... otherwise."""
    holds: str = ""
    """A shape's statement: what must be true of what was measured."""


@dataclass(frozen=True, slots=True)
class Study:
    """What a paper did: the inputs it states, those it leaves unknown and what we chose for them."""

    name: str
    paper: str
    where: str
    title: str
    known: str
    chosen: str
    claims: tuple[Claim, ...]

    @property
    def claim(self) -> ClaimKind:
        """The strongest claim among the rows: what the study as a whole is evidence of."""
        return min((claim.kind for claim in self.claims), key=KINDS.index)


@dataclass(frozen=True, slots=True)
class Plot:
    """Named series over one axis; `bars` if the places on it are names rather than quantities."""

    title: str
    x: str
    y: str
    series: Mapping[str, tuple[tuple[float | str, float], ...]]
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of an experiment found, by the labels of its claims.

    A number or calibration needs a value; a shape needs a verdict and may show a value.
    """

    values: Mapping[str, float]
    holds: Mapping[str, bool] = field(default_factory=dict)
    plots: tuple[Plot, ...] = ()


RunExperiment = Callable[[int, bool], Measurement]
"""(seed, small): `small` is the same experiment in miniature, for tests; its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Experiment:
    study: Study
    measure: RunExperiment

    @property
    def name(self) -> str:
        return self.study.name
