"""What is compared: job files beside this one, the modes each is run in, and what is asked of the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    overrides: tuple[str, ...]


SYNC = Mode("sync, a core each", ("pipeline.type=sync", "runtime.placement=disaggregated"))
COLOCATED = Mode("sync, both cores", ("pipeline.type=sync", "runtime.placement=colocated"))
SYNC_PLUS = Mode("sync+, a core each", ("pipeline.type=sync+", "runtime.placement=disaggregated"))
ROLLART = Mode("rollart alpha=1", ("pipeline.type=rollart", "pipeline.alpha=1", "runtime.placement=disaggregated"))
MODES = (SYNC, COLOCATED, SYNC_PLUS, ROLLART)


@dataclass(frozen=True, slots=True)
class Bar:
    """`fast` is to make at least `times` the steps per hour of `slow`."""

    fast: Mode
    slow: Mode
    times: float


@dataclass(frozen=True, slots=True)
class Case:
    file: Path
    about: str
    steps: dict[str, int]
    """Steady steps to measure, by mode: quick and uneven ones need more of them."""
    bars: tuple[Bar, ...] = ()


def _steps(sync: int, sync_plus: int, rollart: int) -> dict[str, int]:
    return {SYNC.name: sync, COLOCATED.name: sync, SYNC_PLUS.name: sync_plus, ROLLART.name: rollart}


CASES: dict[str, tuple[Case, ...]] = {
    "latency": (
        Case(
            HERE / "latency.yaml",
            "environments that take N(0.3 s, 0.3 s) a call",
            _steps(sync=4, sync_plus=6, rollart=12),
            (
                Bar(ROLLART, SYNC, 2.2),
                Bar(ROLLART, COLOCATED, 1.6),
                Bar(SYNC_PLUS, SYNC, 1.0),
                Bar(ROLLART, SYNC_PLUS, 1.0),
            ),
        ),
    ),
    "balanced": (
        Case(
            HERE / "balanced.yaml",
            "no latency; generation takes about as long as training",
            _steps(sync=8, sync_plus=8, rollart=12),
            (Bar(ROLLART, SYNC, 1.4), Bar(ROLLART, COLOCATED, 1.0)),
        ),
    ),
    "unbalanced": (
        Case(
            HERE / "generation_heavy.yaml",
            "no latency; generation takes several times as long as training",
            _steps(sync=6, sync_plus=6, rollart=10),
        ),
        Case(
            HERE / "train_heavy.yaml",
            "no latency; training takes several times as long as generation",
            _steps(sync=6, sync_plus=6, rollart=10),
        ),
    ),
}
