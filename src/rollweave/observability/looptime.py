"""LoopTime: what the run's loop is doing now, and how long it has done what."""

from __future__ import annotations

from collections import Counter


class LoopTime:
    """Phases may overlap or lie within each other; time counts for the one that began last."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._open: list[tuple[str, float]] = []
        self._at = 0.0

    @property
    def doing(self) -> tuple[str, float] | None:
        """The phase, and when it began."""
        return self._open[-1] if self._open else None

    def begin(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open.append((phase, time))

    def end(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open = [one for one in self._open if one[0] != phase]

    def totals(self, now: float) -> dict[str, float]:
        """Seconds by phase since the start."""
        self._advance(now)
        return dict(self._totals)

    def _advance(self, time: float) -> None:
        if self._open:
            self._totals[self._open[-1][0]] += time - self._at  # type: ignore[assignment]
        self._at = time
