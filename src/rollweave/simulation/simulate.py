"""The entry: a scenario in, an outcome out.

The control plane is the production one (`pipelines/assemble.py`), on the virtual clock; engines, trainer,
environments, rewards and weights are models.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollweave.clock import Clock, collect_rarely, run_virtual
from rollweave.config.scenario import Scenario
from rollweave.config.workload import WorkloadConfig
from rollweave.errors import ConfigError
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import Recorder, Sink
from rollweave.pipelines.assemble import assemble
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.simulation.faults import see_every_failure, suffer
from rollweave.simulation.hardware.judge import Judge
from rollweave.simulation.hardware.machines import Machines
from rollweave.simulation.measure import SimulationMeter
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.workloads.episode import DrawnWorkload, Workload
from rollweave.simulation.workloads.presets import resolve
from rollweave.simulation.workloads.recorded import RecordedWorkload
from rollweave.tasks import TaskSource
from rollweave.trajectory import Trajectory

CHECKPOINTS = Path("modelled")
"""Nothing is written there."""

MANY_OBJECTS = 10_000_000
"""Thousands of GPUs keep about three million objects alive and leave no cycles: a third of the time went into looking
for some. Should they ever pile up, this is a gigabyte or two."""


Enough = Callable[[SimulationResult], bool]
"""Looks at the outcome so far and says whether the run may end before its last step."""


def scenario(data: Mapping[str, Any]) -> Scenario:
    """A scenario from plain data, checked as a file would be."""
    return Scenario.model_validate_json(json.dumps(data))


def simulate(
    scenario: Scenario,
    sinks: Sequence[Sink] = (),
    every_turn: bool = False,
    enough: Enough | None = None,
    tasks: TaskSource | None = None,
) -> SimulationResult:
    """Run it. `sinks` hear every event of the control plane, as in a real run; with `every_turn` the engines' too.
    `enough` is asked after every step that counts. `tasks` replace those of a recorded workload."""
    collect_rarely(MANY_OBJECTS, generations=1)
    return run_virtual(lambda clock: run(scenario, clock, sinks, every_turn=every_turn, enough=enough, tasks=tasks))


async def run(
    scenario: Scenario,
    clock: Clock,
    sinks: Sequence[Sink] = (),
    judge: Judge | None = None,
    every_turn: bool = False,
    enough: Enough | None = None,
    tasks: TaskSource | None = None,
) -> SimulationResult:
    """The same on a loop that is shared: several jobs at once, and perhaps one judge for all of them."""
    control = scenario.control
    _check_judge(scenario)
    workload = make_workload(scenario.workload, scenario.seed, tasks)
    recorder = Recorder(clock.now, sinks)
    fleet = Fleet()
    dispatcher = Dispatcher.of(control.rollout, fleet)
    machines = Machines(scenario, control, fleet, clock, judge, recorder if every_turn else None)
    host: EnvHost
    link = dispatcher.attach(lambda packet: host.link.receive(packet), control.rollout.slots)
    host = EnvHost(machines.stage(workload), link.receive)
    measure = SimulationMeter(scenario, fleet, machines, clock)

    def stop_early(step: int, trajectories: list[Trajectory]) -> None:
        if enough is not None and measure.steps_that_count and enough(measure.outcome(drive.loop.weights)):
            drive.loop.state.stop()

    drive = assemble(
        control,
        fleet,
        dispatcher,
        machines.trainer,
        workload.source,
        (),
        CHECKPOINTS,
        clock,
        recorder,
        on_row=[measure.row],
        on_trajectories=[measure.trajectories, stop_early],
    )
    async with asyncio.TaskGroup() as running:
        see_every_failure(running)
        playing = running.create_task(host.run(), name="host")
        trouble = running.create_task(suffer(scenario.outages, machines.places, clock), name="outages")
        await drive.advance()
        trouble.cancel()
        playing.cancel()
    drive.loop.scheduler.ledger.check()
    return measure.outcome(drive.loop.weights)


def make_workload(config: WorkloadConfig, seed: int, tasks: TaskSource | None = None) -> Workload:
    if config.trace is not None:
        return RecordedWorkload(Path(config.trace), seed, tasks)
    return DrawnWorkload([resolve(task) for task in config.tasks], seed)


def _check_judge(scenario: Scenario) -> None:
    tasks = [resolve(task) for task in scenario.workload.tasks]
    if any(task.judged for task in tasks) and not scenario.cluster.of_role("reward"):
        raise ConfigError("workload.tasks: some are judged, but cluster.pools has none with role: reward")
