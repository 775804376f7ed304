"""From a scenario to modelled machinery: engines by pool, a trainer, environments, a judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES, Pool
from rollweave.config.control import ControlConfig
from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.fleet.colocated import AlternatingTrainer
from rollweave.fleet.fleet import EngineEntry, EngineRole, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import Emitter
from rollweave.rollout.manager import Stage, TurnBarrier
from rollweave.simulation.costs.measured import engine_costs, training_costs, weight_times
from rollweave.simulation.costs.roofline import EngineCosts
from rollweave.simulation.costs.training import TrainingCosts
from rollweave.simulation.faults import EnginePlace, Enter
from rollweave.simulation.hardware.engine import GpuEngine
from rollweave.simulation.hardware.environment import Scripts, WorkloadRewards, environments
from rollweave.simulation.hardware.judge import Judge, ShareDevices
from rollweave.simulation.hardware.modelled import simulated_fingerprint
from rollweave.simulation.hardware.prefill import PrefillEngine
from rollweave.simulation.workloads.episode import Workload
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch, Group
from rollweave.weights.buckets import Fingerprint


class GpuTrainer:
    """A train step takes as long as its tokens say, and teaches nothing."""

    def __init__(self, clock: Clock, costs: TrainingCosts, publish_seconds: float) -> None:
        self._clock = clock
        self._costs = costs
        self._publish_seconds = publish_seconds
        self._batch = Batch(0, [])
        self._stream = False
        self.busy_seconds = 0.0

    async def begin(self, step: int, stream: bool = False) -> None:
        self._batch, self._stream = Batch(step, []), stream

    async def accumulate(self, groups: Sequence[Group]) -> None:
        part = Batch(self._batch.step, list(groups))
        part.check()
        self._batch.groups += part.groups
        if self._stream:
            await self._work(self._costs.seconds(part) - self._costs.of_lengths([]))

    async def finish(self) -> Metrics:
        batch = self._batch
        await self._work(self._costs.of_lengths([]) if self._stream else self._costs.seconds(batch))
        return {"tokens/trained": float(batch.sampled_tokens)}

    async def _work(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self.busy_seconds += seconds

    async def publish(self, version: int) -> Fingerprint:
        await self._clock.sleep(self._publish_seconds)
        return simulated_fingerprint(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        pass

    async def load(self, folder: Path) -> None:
        pass

    async def restart(self) -> None:
        pass


class Machines:
    """All machinery of a scenario. Its engines join the fleet; a `judge` may belong to several jobs."""

    def __init__(
        self,
        scenario: Scenario,
        control: ControlConfig,
        fleet: Fleet,
        clock: Clock,
        judge: Judge | None = None,
        recorder: Emitter | None = None,
    ) -> None:
        """`recorder` hears of every turn."""
        self._scenario = scenario
        self._control = control
        self._fleet = fleet
        self._clock = clock
        self._recorder = recorder
        self._scripts = Scripts()
        self._weights = weight_times(scenario)
        self.judge = judge or make_judge(scenario, clock, self._share_engine)
        self.core = GpuTrainer(clock, training_costs(scenario), self._weights.publish)
        """The trainer itself, whatever it is wrapped in."""
        shared = bool(scenario.cluster.of_role("colocated"))
        self.trainer: Trainer = AlternatingTrainer(self.core, fleet) if shared else self.core
        self.engines: list[GpuEngine | PrefillEngine] = []
        """All that ever were, in order of joining."""
        self._beside_judge: dict[int, GpuEngine] = {}
        """Engines of the pool that a colocated judge computes on, by place."""
        generating = [pool for pool in scenario.cluster.pools if pool.role in GENERATES]
        self.places = [place for pool in generating for place in self._places(pool)]
        for place in self.places:
            place.begin()

    def stage(self, workload: Workload) -> Stage:
        """What the hosts' environment managers work with."""
        clock, control, scripts = self._clock, self._control, self._scripts
        proxy, scorer = LLMProxy(clock, self._fleet.update()), WorkloadRewards(workload, self.judge, clock)
        make = environments(self._scenario, workload, clock, scripts)
        barrier = TurnBarrier() if control.has_barrier else None
        return Stage(clock, proxy, make, scripts, scorer, control.rollout, barrier)

    def _places(self, pool: Pool) -> list[EnginePlace]:
        costs, longest = engine_costs(self._scenario, pool), self._control.rollout.max_context
        if costs.kv_tokens < longest:
            raise ConfigError(
                f"pool {pool.name}: the KV cache of an engine holds {costs.kv_tokens} tokens, but an episode may have "
                f"{longest} (rollout.max_context): raise tensor_parallel or lower max_context"
            )
        make = partial(self._make_engine, pool, costs)
        return [
            EnginePlace(self._fleet, pool.name, number, partial(make, number), _enter(pool))
            for number in range(pool.workers)
        ]

    def _share_engine(self, place: int, factor: float) -> None:
        """The engine that is in this place of the judge's pool, if one is, shares its devices."""
        engine = self._beside_judge.get(place)
        if engine is not None:
            engine.share(factor)

    def _make_engine(self, pool: Pool, costs: EngineCosts, place: int) -> GpuEngine | PrefillEngine:
        """Also the successor of one that died."""
        number = len(self.engines)
        engine = (
            PrefillEngine(self._clock, costs, number=number, weights=self._weights)
            if pool.role == "prefill"
            else GpuEngine(
                self._clock,
                costs,
                self._scripts.answer,
                in_flight=self._control.pipeline.in_flight,
                number=number,
                weights=self._weights,
                prefix_cache=self._scenario.prefix_cache,
                recorder=self._recorder,
                slowdown=pool.slowdown,
            )
        )
        self.engines.append(engine)
        if pool is self._scenario.judge_pool and isinstance(engine, GpuEngine):
            self._beside_judge[place] = engine
        return engine


def _enter(pool: Pool) -> Enter:
    role: EngineRole = "rollout"
    if pool.role == "prefill" or pool.role == "decode":
        role = pool.role
    return partial(EngineEntry, pool=pool.name, device=pool.device, tasks=pool.tasks, role=role)


def make_judge(scenario: Scenario, clock: Clock, share: ShareDevices | None = None) -> Judge | None:
    """`share` is told when a colocated judge computes beside an engine."""
    pool = scenario.judge_pool
    return Judge(scenario, pool, clock, share) if pool else None
