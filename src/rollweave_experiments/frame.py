"""Defines what an experiment is: a paper's study, the claim we make about each of its rows, and a measuring function.

A claim is written before anything is measured. A row is one of three kinds:

    number        the inputs are known well enough that our ratio should be near the paper's
    shape         they are not, so only a testable statement (monotone, crossover, plateau, best point) is claimed
    calibration   a constant of our models was taken from this row, so agreement proves nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

ClaimKind = Literal["number", "shape", "calibration"]
KINDS: tuple[ClaimKind, ...] = ("number", "shape", "calibration")

Figure = float | tuple[float, float] | None
"""What a paper reports: a number, the range over several cases, or None if no number can be read from it."""


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
    """`x` for a ratio, else `s`, `%`, `GPUs` ..."""
    holds: str = ""
    """The statement of a shape, which must be true for the measured values."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study of a paper: the inputs that it states, and what we chose for the inputs that it does not state."""

    name: str
    paper: str
    where: str
    title: str
    known: str
    chosen: str
    claims: tuple[Claim, ...]

    @property
    def claim(self) -> ClaimKind:
        """The strongest kind of claim among the rows."""
        return min((claim.kind for claim in self.claims), key=KINDS.index)


@dataclass(frozen=True, slots=True)
class Plot:
    """Named series over one axis. `bars` says that the values on the axis are names and not numbers."""

    title: str
    x: str
    y: str
    series: Mapping[str, tuple[tuple[float | str, float], ...]]
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one run of an experiment, by the labels of its claims.

    A number or a calibration needs a value; a shape needs a verdict and may have a value.
    """

    values: Mapping[str, float]
    holds: Mapping[str, bool] = field(default_factory=dict)
    plots: tuple[Plot, ...] = ()


RunExperiment = Callable[[int, bool], Measurement]
"""(seed, small): `small` is the same experiment in miniature, for tests; its numbers mean nothing."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A study and the function that measures it."""

    study: Study
    measure: RunExperiment

    @property
    def name(self) -> str:
        return self.study.name
