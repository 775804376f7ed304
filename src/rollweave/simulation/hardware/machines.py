"""From a scenario to modelled machinery: engines by pool, a trainer, environments, a judge.

A simulated trainer on modelled hardware: a step takes as long as its tokens say, and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES, Pool
from rollweave.config.control import ControlConfig
from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.fleet.colocated import TakingTurns
from rollweave.fleet.fleet import EngineEntry, EngineRole, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import Emitter
from rollweave.rewards.scaling import ScalingLimits
from rollweave.rollout.manager import Stage, TurnBarrier
from rollweave.seeds import generator
from rollweave.simulation.costs.measured import engine_costs, training_costs, weight_model
from rollweave.simulation.costs.roofline import EngineCosts
from rollweave.simulation.costs.training import TrainingCosts
from rollweave.simulation.durations import Duration
from rollweave.simulation.faults import EnginePlace, Enter
from rollweave.simulation.hardware.engine import GpuEngine
from rollweave.simulation.hardware.environment import Scripts, WorkloadRewards, environments
from rollweave.simulation.hardware.judge import Judge, JudgeModel
from rollweave.simulation.hardware.prefill import PrefillEngine
from rollweave.simulation.workloads.episode import Workload
from rollweave.simulation.world.engine import simulated_fingerprint
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint


class GpuTrainer:
    def __init__(self, clock: Clock, costs: TrainingCosts, publish_seconds: Duration) -> None:
        self._clock = clock
        self._costs = costs
        self._publish_seconds = publish_seconds
        self.busy_seconds = 0.0

    async def train_step(self, batch: Batch) -> Metrics:
        batch.check()
        seconds = self._costs.seconds(batch)
        await self._clock.sleep(seconds)
        self.busy_seconds += seconds
        return {"tokens/trained": float(batch.sampled_tokens)}

    async def publish(self, version: int) -> Fingerprint:
        await self._clock.sleep(self._publish_seconds(generator(version, "publish")))
        return simulated_fingerprint(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        pass

    async def load(self, folder: Path) -> None:
        pass


ModelledGpu = GpuEngine | PrefillEngine


@dataclass(slots=True)
class Machines:
    seats: list[EnginePlace]
    engines: list[ModelledGpu]
    """All that ever were, in order of joining."""
    trainer: Trainer
    core: GpuTrainer
    """The trainer itself, whatever it is wrapped in."""
    judge: Judge | None
    scripts: Scripts


def build(
    scenario: Scenario,
    control: ControlConfig,
    fleet: Fleet,
    clock: Clock,
    judge: Judge | None = None,
    recorder: Emitter | None = None,
) -> Machines:
    """Its engines join the fleet. `recorder` hears of every turn; a `judge` may belong to several jobs."""
    core = GpuTrainer(clock, training_costs(scenario), weight_model(scenario).publish)
    shared = bool(scenario.cluster.of_role("colocated"))
    trainer: Trainer = TakingTurns(core, fleet) if shared else core
    machines = Machines([], [], trainer, core, judge or make_judge(scenario, clock), Scripts())
    for pool in scenario.cluster.pools:
        if pool.role in GENERATES:
            make = _maker(scenario, control, pool, machines, clock, recorder)
            machines.seats += [EnginePlace(fleet, pool.name, n, make, _enter(pool)) for n in range(pool.workers)]
    for seat in machines.seats:
        seat.begin()
    return machines


def _maker(
    scenario: Scenario,
    control: ControlConfig,
    pool: Pool,
    machines: Machines,
    clock: Clock,
    recorder: Emitter | None,
) -> Callable[[], ModelledGpu]:
    """Makes the engines of a pool, also the successors of those that die."""
    costs, sync, engines = engine_costs(scenario, pool), weight_model(scenario), machines.engines
    if costs.kv_tokens < control.rollout.max_context:
        raise ConfigError(
            f"pool {pool.name}: the KV cache of an engine holds {costs.kv_tokens} tokens, but an episode may have "
            f"{control.rollout.max_context} (rollout.max_context): raise tensor_parallel or lower max_context"
        )

    def make() -> ModelledGpu:
        number = len(engines)
        engine = (
            PrefillEngine(clock, costs, sync=sync, number=number)
            if pool.role == "prefill"
            else GpuEngine(
                clock,
                costs,
                machines.scripts.answer,
                in_flight=control.pipeline.in_flight,
                sync=sync,
                number=number,
                prefix_cache=scenario.prefix_cache,
                recorder=recorder,
            )
        )
        engines.append(engine)
        return engine

    return make


def _enter(pool: Pool) -> Enter:
    role: EngineRole = "rollout"
    if pool.role == "prefill" or pool.role == "decode":
        role = pool.role
    return partial(EngineEntry, pool=pool.name, device=pool.device, tasks=pool.tasks, role=role)


def make_judge(scenario: Scenario, clock: Clock) -> Judge | None:
    pools = scenario.cluster.of_role("reward")
    if not pools:
        return None
    pool, config, constants = pools[0], scenario.judge, scenario.constants
    elastic = pool.device == "serverless"
    model = JudgeModel(
        EngineCosts(scenario.spec(config.model), scenario.cluster.device(pool), constants),
        ScalingLimits(pool.count, config.concurrency, 0 if elastic else pool.count, config.idle_seconds),
        config.answer_tokens,
        config.seconds,
        constants.cold_start if config.cold_start is None else config.cold_start,
        constants.serverless_io if elastic else 0.0,
    )
    return Judge(model, clock, scenario.seed)


def stage(
    scenario: Scenario, control: ControlConfig, fleet: Fleet, machines: Machines, workload: Workload, clock: Clock
) -> Stage:
    proxy = LLMProxy(clock, fleet.update())
    scripts, scorer = machines.scripts, WorkloadRewards(workload, machines.judge, clock)
    make = environments(scenario, workload, clock, scripts)
    return Stage(clock, proxy, make, scripts, scorer, control.rollout, TurnBarrier() if control.has_barrier else None)
