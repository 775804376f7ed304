"""Requests that move while they are answered, and the tail of a batch that makes room for another job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.world.durations import constant, lognormal
from tests.world.engine import SimulatedEngine
from tests.world.environment import EnvironmentModel
from tests.world.faults import Outage
from tests.world.witness import Witness
from tests.world.world import SimulatedRun, World

from fleets import fleet_of
from rollweave.clock import Clock, run_virtual
from rollweave.engines.protocol import Completion, Sampling
from rollweave.fleet.fleet import Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.fleet.router import RouteAsk
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.permits import SharedPool, Tail
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.seeds import derive
from spans import request_of
from test_fleet_virtual import SLOW_UPDATES, comings_and_goings
from test_pipelines_virtual import many
from virtual_oracles import check_everything
from virtual_worlds import make_job, run

# ------------------------------------------------------------------------------------------------------- requests


@dataclass
class Hall:
    """Engines behind a proxy, and trajectories that ask for one turn after the other."""

    engines: list[SimulatedEngine]
    fleet: Fleet
    proxy: LLMProxy
    witness: Witness

    @classmethod
    def of(cls, clock: Clock, engines: int) -> Hall:
        witness = Witness()
        made = [
            SimulatedEngine(clock, constant(1.0), lambda rng: rng.randint(1, 9), number=n, witness=witness)
            for n in range(engines)
        ]
        fleet = fleet_of(made)
        proxy = LLMProxy(clock, fleet.update())
        fleet.on_change.append(lambda entry: proxy.update(fleet.update()))
        return cls(made, fleet, proxy, witness)

    def use(self, engines: int) -> None:
        """From now on only the first so many."""
        self.fleet.use(list(self.fleet.entries)[:engines])

    async def talk(self, name: str, turns: int) -> list[Completion]:
        answers = []
        for turn in range(turns):
            request = request_of(f"{name}#{turn}", name, [1, 2, 3], derive(7, name, turn), Sampling(max_tokens=8))
            answers.append(await self.proxy.generate(request))
        self.proxy.release(name)
        return answers

    async def working(self) -> list[int]:
        return [number for number, engine in enumerate(self.engines) if (await engine.stats()).running]


def tokens(answers: list[list[Completion]]) -> list[list[tuple[list[int], str]]]:
    return [[([t for s in one.spans for t in s.tokens.tolist()], one.finish) for one in talk] for talk in answers]


@many(100)
@given(st.integers(2, 4), st.lists(st.tuples(st.floats(0.1, 8.0), st.integers(1, 4)), max_size=8))
def test_moving_changes_nothing_of_what_is_said(engines: int, orders: list[tuple[float, int]]) -> None:
    async def main(clock: Clock, orders: list[tuple[float, int]]) -> tuple[list[list[Completion]], Witness]:
        hall = Hall.of(clock, engines)

        async def order_about() -> None:
            for seconds, workers in orders:
                await clock.sleep(seconds)
                hall.use(min(workers, engines))
                for _ in range(3):  # a request that was taken out of an engine notices
                    await clock.sleep(0)
                assert all(number < workers for number in await hall.working())

        ordering = asyncio.create_task(order_about())
        talks = await asyncio.gather(*(hall.talk(f"t{n}", turns=1 + n % 3) for n in range(7)))
        ordering.cancel()
        await asyncio.wait([ordering])
        assert ordering.cancelled() or ordering.exception() is None
        return talks, hall.witness

    moved, witness = run_virtual(lambda clock: main(clock, orders))
    unmoved, _ = run_virtual(lambda clock: main(clock, []))
    assert tokens(moved) == tokens(unmoved)
    assert not witness.answered_twice and not witness.redrawn
    for id, answered in witness.answered.items():
        assert witness.sampled[id] == len(answered.tokens), "nothing is sampled a second time"


def test_engines_that_are_used_share_the_work_evenly() -> None:
    async def main(clock: Clock) -> None:
        hall = Hall.of(clock, 3)
        hall.use(1)
        talks = [asyncio.create_task(hall.talk(f"t{n}", turns=9)) for n in range(6)]
        await clock.sleep(0.5)
        assert [(await engine.stats()).running for engine in hall.engines] == [6, 0, 0]
        hall.use(3)
        await clock.sleep(0)
        assert [(await engine.stats()).running for engine in hall.engines] == [2, 2, 2]
        for talk in talks:
            talk.cancel()

    run_virtual(main)


def test_who_is_given_up_while_it_moves_is_given_up() -> None:
    async def main(clock: Clock) -> None:
        hall = Hall.of(clock, 2)
        talks = [asyncio.create_task(hall.talk(f"t{n}", turns=1)) for n in range(2)]
        await clock.sleep(0.5)
        hall.use(1)  # taken out of its engine, and not yet in the other
        for name in ("t0", "t1"):
            hall.proxy.abort(name)
        assert [talk[0].finish for talk in await asyncio.gather(*talks)] == ["aborted", "aborted"]

    run_virtual(main)


def test_who_was_given_up_is_not_moved() -> None:
    async def main(clock: Clock) -> None:
        hall = Hall.of(clock, 2)
        talks = [asyncio.create_task(hall.talk(f"t{n}", turns=1)) for n in range(2)]
        await clock.sleep(0.5)
        hall.proxy.abort("t1")  # its engine has answered; the proxy has not looked yet
        hall.use(1)
        assert (await talks[1])[0].finish == "aborted"
        assert (await talks[0])[0].finish != "aborted"

    run_virtual(main)


def test_members_that_stay_together_move_together() -> None:
    async def main(clock: Clock) -> None:
        hall = Hall.of(clock, 2)
        hall.use(1)

        async def ask(group: int, member: int) -> Completion:
            name = f"g{group}m{member}"
            request = request_of(name, name, [1], derive(group, member), Sampling(max_tokens=8))
            hall.proxy.begin(RouteAsk(name, "default", group), None)
            return await hall.proxy.generate(request)

        asked = [asyncio.create_task(ask(group, member)) for group in range(2) for member in range(3)]
        await clock.sleep(0.5)
        hall.use(2)
        await clock.sleep(0)
        assert [(await engine.stats()).running for engine in hall.engines] == [3, 3]
        await asyncio.gather(*asked)

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------- batches


@dataclass
class Neighbours:
    """Pools shared with others, who come and go by dice."""

    clock: Clock
    rng: Random
    nodes: int
    said: list[str] = field(default_factory=list)

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        self.said.append(pool)
        await self.clock.sleep(self.rng.random())
        return self.rng.choice([None, self.rng.randint(1, self.nodes)]) if partly else None

    async def widened(self) -> None:
        await self.clock.sleep(self.rng.choice([0.0, 0.3, 3.0]))
        self.said.append("widened")

    async def awaited(self, keep: int) -> None:
        await self.clock.sleep(self.rng.choice([0.0, 0.2, 2.0, 1e6]))

    async def narrow(self, keep: int) -> None:
        self.said.append(f"narrow {keep}")


LONG_TAIL = EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.2, 1.5))


def shared(world: World, seed: int) -> tuple[World, list[Neighbours]]:
    met: list[Neighbours] = []

    def permits(clock: Clock) -> Neighbours:
        met.append(Neighbours(clock, Random(seed), world.engines))
        return met[-1]

    return replace(world, permits=permits), met


def learnt(result: SimulatedRun) -> list[object]:
    return [[member.turns for group in batch.groups for member in group.members] for batch in result.trainer.batches]


@many(80)
@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from(["sync", "sync+"]), st.integers(1, 3))
def test_a_job_among_others_trains_on_the_same_tokens(seed: int, engines: int, pipeline: str, hosts: int) -> None:
    job = make_job({"type": pipeline}, seed, evaluate=2)
    world = World(engines=engines, hosts=hosts, environment=LONG_TAIL, token_seconds=constant(0.05))
    among, _ = shared(world, seed)
    result = run(job, among)
    check_everything(job, among, result)
    strip = [[replace_times(turn) for turn in turns] for batch in learnt(result) for turns in batch]
    assert strip == [[replace_times(turn) for turn in turns] for batch in learnt(run(job, world)) for turns in batch]


def replace_times(turn: object) -> object:
    return replace(turn, generate_seconds=0.0, environment_seconds=0.0)  # type: ignore[type-var]


def test_most_is_done_before_room_is_made_and_everything_is_where_it_was_told_to() -> None:
    job = make_job({"type": "sync+"}, seed=3, group_size=10, groups_per_step=2, environments=20)
    world, met = shared(World(engines=4, environment=LONG_TAIL, token_seconds=constant(0.05)), seed=1)
    result = run(job, world)
    said = met[0].said
    assert said.count("narrow 1") >= 2, "a quarter of four"
    events = result.recorder.events
    moves = [n for n, event in enumerate(events) if event.name == "requests.move" and event.data["nodes"] == 1]
    assert moves
    for place in moves:
        last = max(n for n, event in enumerate(events[:place]) if event.name in ("weights.commit", "group.admit"))
        ended = sum(event.name == "trajectory.end" for event in events[last:place])
        assert ended >= 0.8 * 20


def test_no_room_is_made_where_an_evaluation_follows() -> None:
    world, met = shared(World(engines=4, environment=LONG_TAIL, token_seconds=constant(0.05)), seed=1)
    run(make_job({"type": "sync+"}, seed=3, evaluate=1), world)
    assert not any("narrow" in word for word in met[0].said)


def test_alone_nobody_makes_room() -> None:
    job = make_job({"type": "sync+"})
    assert run(job, World(engines=4)).loop.permits.tail is None


@pytest.mark.parametrize("engines", [1, 2])
def test_a_single_engine_keeps_its_node(engines: int) -> None:
    world, met = shared(World(engines=engines, environment=LONG_TAIL), seed=1)
    run(make_job({"type": "sync+"}), world)
    assert any("narrow" in word for word in met[0].said) == (engines > 1)


@many(80)
@given(
    st.integers(0, 10**6),
    st.integers(2, 4),
    st.sampled_from(["sync", "sync+"]),
    comings_and_goings,
    st.sampled_from(["background", "blocking"]),
)
def test_a_job_among_others_ends_whichever_engines_come_and_go_and_none_stands_still(
    seed: int, engines: int, pipeline: str, outages: list[Outage], transfer: str
) -> None:
    job = make_job({"type": pipeline}, seed, evaluate=2)
    job = job.model_copy(update={"weights": job.weights.model_copy(update={"transfer": transfer})})
    world = World(
        engines=engines,
        environment=LONG_TAIL,
        token_seconds=constant(0.05),
        outages=tuple(outages),
        sync=SLOW_UPDATES,
    )
    among, _ = shared(world, seed)
    result = run(job, among)
    check_everything(job, among, result)
    living = result.loop.weights._fleet.living()
    assert not [entry.id for entry in living if cast(SimulatedEngine, entry.control)._suspensions], "all go on"


class Ended:
    """A scheduler whose episodes have ended, but for the tail."""

    async def ended(self, share: float) -> None:
        pass


@pytest.mark.parametrize("gone", [0, 1, 4])
def test_a_tail_keeps_its_nodes_however_many_engines_have_died(gone: int) -> None:
    async def main(clock: Clock) -> list[str]:
        fleet, neighbours = fleet_of([None] * 4), Neighbours(clock, Random(0), 4)
        tail = Tail(fleet, fleet.size, neighbours, cast(RolloutScheduler, Ended()), MemoryRecorder())
        for id in list(fleet.entries)[:gone]:
            fleet.lose(id, "test")
        await tail.run(partly=False)
        return neighbours.said

    assert run_virtual(main) == ["narrow 1"]
