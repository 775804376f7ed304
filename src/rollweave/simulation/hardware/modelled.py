"""What all modelled engines have in common: weights that are a number, and death."""

from __future__ import annotations

from rollweave.clock import Clock
from rollweave.config.hardware import WeightTimes
from rollweave.errors import EngineGone
from rollweave.weights.buckets import Fingerprint

NO_TIME = WeightTimes(publish=0.0, prepare=0.0, commit=0.0)


class ModelledEngine:
    def __init__(self, clock: Clock, number: int, weights: WeightTimes = NO_TIME) -> None:
        self._clock = clock
        self._weights = weights
        self.number = number
        self._dead = False
        self._staged: int | None = None
        """Prepared, not yet committed."""

    async def prepare(self, version: int) -> Fingerprint:
        self._check_alive()
        await self._clock.sleep(self._prepare_seconds(version))
        self._check_alive()
        self._staged = version
        return simulated_fingerprint(version)

    async def _swap(self, version: int) -> None:
        """The first part of a commit, which takes time."""
        self._check_alive()
        refuse_unprepared(version, self._staged)
        await self._clock.sleep(self._commit_seconds(version))
        self._check_alive()
        self._staged = None

    def _prepare_seconds(self, version: int) -> float:
        return self._weights.prepare

    def _commit_seconds(self, version: int) -> float:
        return self._weights.commit

    def _check_alive(self) -> None:
        if self._dead:
            raise self._gone()

    def _gone(self) -> EngineGone:
        return EngineGone(f"engine {self.number} is gone")


def refuse_unprepared(version: int, staged: int | None) -> None:
    """A model needs no weights, but a control plane that forgets to prepare them is wrong on any engine."""
    if version != staged:
        raise ValueError(f"version {version} is not prepared")


def simulated_fingerprint(version: int) -> Fingerprint:
    return Fingerprint(version, f"simulated-{version}")
