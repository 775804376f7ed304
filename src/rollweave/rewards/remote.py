"""A reward whose function is not called in the host itself, as a plain `async` function of a trajectory.

`RemoteReward` writes the trajectory down, lets `Delivery` make the call, and notes on the trajectory what it took. What
differs between the kinds of functions is how one try is made (`FunctionBackend`):

    pool://         processes of this host                          rewards/pool.py
    ray-serve://    a deployment of the Ray cluster                 rewards/ray_serve.py
    http(s)://      any function platform, or `reward serve`        rewards/http.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from rollweave.clock import Clock
from rollweave.config.rewards import REMOTE, RewardConfig
from rollweave.errors import RewardFailed
from rollweave.rewards.delivery import CallReport, Delivery, TryFailed
from rollweave.rewards.http import HttpFunction
from rollweave.rewards.pool import ElasticPool, pool_id
from rollweave.rewards.scorer import CALLS, RewardResult
from rollweave.rewards.wire import InstancesUsed, RewardAnswer, WireRequest, WrongMessage, read_answer, write_request
from rollweave.targets import load_target, split_scheme
from rollweave.trajectory import Trajectory


class FunctionBackend(Protocol):
    async def send(self, request: WireRequest) -> RewardAnswer:
        """Make one try. Raises TryFailed, or RewardFailed if no other can succeed."""
        ...

    async def aclose(self) -> None: ...


class RemoteReward:
    """Called like any reward function; closed with `aclose`."""

    def __init__(self, config: RewardConfig, base: Path, clock: Clock, seed: int) -> None:
        self._config = config
        self._name = config.shown_name
        self._backend = _backend(config, base, clock)
        guarded = config.scheme != "pool"
        self._delivery = Delivery(f"reward {self._name}", config.call, clock, seed, guarded)

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        request = write_request(trajectory, self._name)
        if len(request.body) > self._config.call.max_request_mb * 1e6:
            raise RewardFailed(
                f"{trajectory.id} is {len(request.body) / 1e6:.1f} MB on the wire, and call.max_request_mb is "
                f"{self._config.call.max_request_mb:g}: raise it, or use a local function"
            )
        report = CallReport()
        try:
            answer = await self._delivery.call(request.key, partial(self._backend.send, request), report)
            self._note(answer, report)
        except RewardFailed as failed:
            raise RewardFailed(f"{self._config.function} failed for {trajectory.id}: {failed}") from failed
        finally:
            trajectory.info.setdefault(CALLS, {})[self._name] = report.as_json()
        if answer.result is None:
            raise RewardFailed(f"{self._config.function} failed for {trajectory.id}: {answer.error}")
        return answer.result

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _note(self, answer: RewardAnswer, report: CallReport) -> None:
        instances = self._config.instances
        report.cold_starts = int(answer.cold)
        report.function_seconds = answer.seconds or 0.0
        report.cost = report.function_seconds * instances.memory_gb * instances.price_per_gb_second
        report.instances = None if answer.used is None else dict(answer.used._asdict())


class PoolFunction:
    """A function in an elastic pool of this process."""

    def __init__(self, target: str, config: RewardConfig, base: Path, clock: Clock) -> None:
        self._target = target
        self._pool = ElasticPool(config.instances, clock, base, config.call.timeout)
        self._id = pool_id()

    async def send(self, request: WireRequest) -> RewardAnswer:
        text = await self._pool.call(self._target, request.body)
        try:
            answer = read_answer(text, request.key)
        except WrongMessage as wrong:
            raise TryFailed("garbled", str(wrong)) from wrong
        counts = self._pool.counts()
        return replace(answer, used=InstancesUsed(self._id, counts.busy, counts.paid))

    async def aclose(self) -> None:
        self._pool.close()


def _backend(config: RewardConfig, base: Path, clock: Clock) -> FunctionBackend:
    setting = f"rewards: {config.shown_name}: call.token"
    if config.scheme in REMOTE:
        return HttpFunction(config.function, config.call, setting)
    target = split_scheme(config.function)[1]
    load_target(target, base)  # what cannot be loaded is refused before anything starts
    if config.scheme == "pool":
        return PoolFunction(target, config, base, clock)
    from rollweave.rewards.ray_serve import RayServeFunction

    return RayServeFunction(target, config, base)
