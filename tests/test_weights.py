"""WeightSync and placement: the checked protocol, its deadlines and times, taking turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.world.durations import constant
from tests.world.engine import SimulatedEngine, SyncModel
from tests.world.trainer import SimulatedTrainer

from fleets import fleet_of
from rollweave.clock import Clock, DeadlineExceeded, run_virtual
from rollweave.engines.protocol import EngineStats, Sampling
from rollweave.fleet.colocated import AlternatingTrainer
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.weight_sync import Transfer, WeightSync
from rollweave.observability.events import MemoryRecorder
from rollweave.weights.buckets import Fingerprint, WeightMismatch
from rollweave.weights.store import WeightStoreError
from spans import request_of


class Forgetful(SimulatedEngine):
    async def prepare(self, version: int) -> Fingerprint:
        return Fingerprint(version, "something else")


class Deaf(SimulatedEngine):
    """Says yes, and goes on with what it had."""

    async def commit(self, version: int) -> None:
        pass


def forever(phase: str) -> type[SimulatedEngine]:
    async def wait(self: SimulatedEngine, *arguments: int) -> None:
        await asyncio.get_running_loop().create_future()

    return type("Stuck", (SimulatedEngine,), {phase: wait})


def engine(kind: type[SimulatedEngine], clock: Clock, **options: Any) -> SimulatedEngine:
    return kind(clock, constant(1.0), lambda rng: 4, **options)


def sync(engines: list[SimulatedEngine], clock: Clock, transfer: Transfer = "background") -> WeightSync:
    trainer = SimulatedTrainer(clock, constant(1.0), 0, publish_seconds=constant(2.0))
    return WeightSync(trainer, fleet_of(engines), clock, MemoryRecorder(), timeout=9.0, transfer=transfer)


async def update(kind: type[SimulatedEngine], clock: Clock) -> None:
    weights = sync([engine(SimulatedEngine, clock), engine(kind, clock)], clock)
    await weights.publish(1)
    await weights.commit(1)


def test_an_engine_that_echoes_other_weights_stops_the_run() -> None:
    with pytest.raises(WeightMismatch, match=r"engine-1/1 .* version 1 \(checksum something else instead of"):
        run_virtual(lambda clock: update(Forgetful, clock))


def test_an_engine_that_holds_something_else_after_the_commit_stops_the_run() -> None:
    with pytest.raises(WeightMismatch, match=r"engine-1/1 holds version 0 .* where version 1"):
        run_virtual(lambda clock: update(Deaf, clock))


class Scoring(SimulatedEngine):
    """Scores the probe, more or less as the trainer does."""

    gap = 0.0

    async def stats(self) -> EngineStats:
        return replace(await super().stats(), probe=(-1.0, -2.0 - self.gap))


class Stale(Scoring):
    gap = 2e-3


class ProbingTrainer(SimulatedTrainer):
    async def publish(self, version: int) -> Fingerprint:
        return replace(await super().publish(version), probe=(-1.0, -2.0))


@pytest.mark.parametrize("kind", [Stale, SimulatedEngine])
def test_an_engine_that_scores_the_probe_otherwise_counts_as_dead(kind: type[SimulatedEngine]) -> None:
    """Or one that does not score it at all; the others go on."""

    async def main(clock: Clock) -> Fleet:
        fleet = fleet_of([engine(Scoring, clock), engine(kind, clock)])
        weights = WeightSync(ProbingTrainer(clock, constant(1.0), 0), fleet, clock, MemoryRecorder(), timeout=9.0)
        await weights.publish(1)
        await weights.commit(1)
        assert (await fleet.look()).engines[0].version == 1
        return fleet

    fleet = run_virtual(main)
    assert {id: entry.state for id, entry in fleet.entries.items()} == {"engine-0/1": "serving", "engine-1/1": "gone"}


def test_how_far_the_probe_may_differ_is_a_setting() -> None:
    async def main(clock: Clock) -> int:
        trainer, fleet = ProbingTrainer(clock, constant(1.0), 0), fleet_of([engine(Stale, clock)])
        weights = WeightSync(trainer, fleet, clock, MemoryRecorder(), timeout=9.0, probe_tolerance=3e-3)
        await weights.publish(1)
        await weights.commit(1)
        return fleet.size

    assert run_virtual(main) == 1


@pytest.mark.parametrize(
    ("phase", "named"),
    [
        ("prepare", "engine-1/1 to prepare version 1"),
        ("suspend", "engine-1/1 to end its step"),
        ("commit", "engine-1/1 to commit version 1"),
        ("stats", "engine-1/1 to commit version 1"),
    ],
)
def test_every_phase_has_a_deadline_that_names_the_engine(phase: str, named: str) -> None:
    with pytest.raises(DeadlineExceeded, match=named):
        run_virtual(lambda clock: update(forever(phase), clock))


def test_a_trainer_that_never_pushes_is_named() -> None:
    async def main(clock: Clock) -> None:
        trainer = SimulatedTrainer(clock, constant(1.0), 0, publish_seconds=constant(100.0))
        await WeightSync(
            trainer, fleet_of([engine(SimulatedEngine, clock)]), clock, MemoryRecorder(), timeout=9.0
        ).publish(1)

    with pytest.raises(DeadlineExceeded, match="the trainer to push version 1"):
        run_virtual(main)


@pytest.mark.parametrize(("transfer", "exposed", "tokens"), [("background", 1.0, 5), ("blocking", 6.0, 0)])
def test_blocking_exposes_the_whole_transfer_and_background_only_the_commit(
    transfer: Transfer, exposed: float, tokens: int
) -> None:
    """Push 2 s, prepare 3 s, commit 1 s; a token a second."""

    async def main(clock: Clock) -> tuple[WeightSync, int]:
        times = SyncModel(prepare=constant(3.0), commit=constant(1.0))
        one = SimulatedEngine(clock, constant(1.0), lambda rng: 50, sync=times)
        weights = sync([one], clock, transfer)
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(request_of("a#1", "a", [1], 0, Sampling(max_tokens=50))))
            await clock.sleep(0)
            await weights.publish(1)
            await weights.commit(1)
            one.abort("a#1")
        return weights, sum(len(span.tokens) for span in answer.result().spans)

    weights, drawn = run_virtual(main)
    assert (weights.sync_seconds, weights.sync_exposed_seconds) == (6.0, exposed)
    assert drawn == tokens
    assert (weights.version, weights.checksum) == (1, "simulated-1")


def test_a_fresh_engine_takes_any_version() -> None:
    async def main(clock: Clock) -> int:
        one = engine(SimulatedEngine, clock)
        weights = sync([one], clock)
        await weights.publish(17)
        await weights.commit(17)
        return (await one.stats()).version

    assert run_virtual(main) == 17


def test_a_commit_changes_the_version_of_what_is_sampled_next_and_of_nothing_before() -> None:
    async def main(clock: Clock) -> list[int | None]:
        one = engine(SimulatedEngine, clock)
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet_of([one]), clock, MemoryRecorder(), 9.0)
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(request_of("a#1", "a", [1], 0, Sampling())))
            await clock.sleep(2.5)
            await weights.publish(1)
            await weights.commit(1)
        return [span.version for span in answer.result().spans for _ in span.tokens]

    assert run_virtual(main) == [0, 0, 1, 1]


def test_when_taking_turns_no_token_is_drawn_while_the_trainer_works() -> None:
    class Training(SimulatedTrainer):
        async def finish(self) -> dict[str, float]:
            await self._clock.sleep(50.0)
            return {}

    async def main(clock: Clock) -> tuple[float, float]:
        one = engine(SimulatedEngine, clock)
        trainer = AlternatingTrainer(Training(clock, constant(1.0), 0), fleet_of([one]))
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(request_of("a#1", "a", [1], 0, Sampling())))
            await clock.sleep(1.5)
            await trainer.finish()
            trained = clock.now()
        assert len(answer.result().spans[0].tokens) == 4
        return trained, clock.now()

    trained, answered = run_virtual(main)
    assert trained == 51.5
    assert answered > 53.0, "two tokens were still to come when the trainer began"


def test_when_taking_turns_an_update_does_not_wake_engines_while_the_trainer_works() -> None:
    class Training(SimulatedTrainer):
        async def finish(self) -> dict[str, float]:
            await self._clock.sleep(50.0)
            return {}

    async def main(clock: Clock) -> tuple[int, int]:
        one = SimulatedEngine(clock, constant(1.0), lambda rng: 100, sync=SyncModel(prepare=constant(3.0)))
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet_of([one]), clock, MemoryRecorder(), 9.0)
        trainer = AlternatingTrainer(Training(clock, constant(1.0), 0), fleet_of([one]))
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(request_of("a#1", "a", [1], 0, Sampling(max_tokens=100))))
            await clock.sleep(1.5)
            training = tasks.create_task(trainer.finish())
            await weights.publish(1)
            await weights.commit(1)
            await clock.sleep(30.0)
            stats = await one.stats()
            await training
            one.abort("a#1")
            await answer
        return stats.version, stats.sampled_tokens

    assert run_virtual(main) == (1, 1), "committed beside the train step, and no token drawn in it"


def test_engines_are_never_two_published_versions_behind() -> None:
    """The store keeps two: the one that engines have, which a successor asks for, and the one on its way."""

    async def main(clock: Clock) -> list[tuple[str, int]]:
        one = SimulatedEngine(clock, constant(1.0), lambda rng: 4, sync=SyncModel(prepare=constant(30.0)))
        recorder = MemoryRecorder(clock.now)
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet_of([one]), clock, recorder, timeout=99.0)

        async def engines() -> None:
            for version in (1, 2):
                await weights.published(version)
                await weights.commit(version)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engines())
            await weights.publish(1)
            await weights.publish(2)  # at once, were it allowed
            assert clock.now() == 30.0
        return [(event.name, int(str(event.data["version"]))) for event in recorder.events]

    assert run_virtual(main) == [
        *(("weights.publish", 1), ("weights.stage", 1), ("weights.commit", 1)),
        *(("weights.publish", 2), ("weights.stage", 2), ("weights.commit", 2)),
    ]


# ------------------------------------------------------------------------------------------------------- newcomers


def newcomer(weights: WeightSync, fleet: Fleet, made: SimulatedEngine) -> EngineEntry:
    entry = EngineEntry("late/1", made)
    fleet.join(entry)
    assert entry.state == "starting", "not asked before it has caught up"
    return entry


async def published(weights: WeightSync, version: int) -> None:
    await weights.publish(version)
    await weights.commit(version)


def test_a_newcomer_takes_the_version_that_the_others_have_by_then() -> None:
    """They commit the next one while it prepares the one before."""

    async def main(clock: Clock) -> None:
        fleet = fleet_of([engine(SimulatedEngine, clock)])
        trainer = SimulatedTrainer(clock, constant(1.0), 0)
        weights = WeightSync(trainer, fleet, clock, MemoryRecorder(), timeout=99.0)
        await published(weights, 1)
        slow = engine(SimulatedEngine, clock, sync=SyncModel(prepare=constant(5.0)), number=1)
        entry = newcomer(weights, fleet, slow)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(weights.catch_up(entry))
            await clock.sleep(1.0)
            began = clock.now()
            await published(weights, 2)
            await published(weights, 3)
            assert clock.now() == began, "nothing waited for it"
        assert (entry.state, entry.version, (await slow.stats()).version) == ("serving", 3, 3)

    run_virtual(main)


def test_a_newcomer_stands_still_while_the_others_do_and_no_longer() -> None:
    async def main(clock: Clock) -> None:
        fleet = fleet_of([engine(SimulatedEngine, clock)])
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet, clock, MemoryRecorder(), timeout=99.0)
        one = engine(SimulatedEngine, clock, number=1)
        entry = newcomer(weights, fleet, one)
        request = request_of("a#0", "a", [1], 0, Sampling(max_tokens=4))
        async with fleet.standing():
            await fleet.match_standing(entry)  # it does not serve yet: another version is on its way
            answer = asyncio.ensure_future(one.generate(request))
            await clock.sleep(50.0)
            assert not answer.done()
        await weights.catch_up(entry)
        began = clock.now()
        await answer
        assert entry.state == "serving" and clock.now() - began == pytest.approx(4.0)

    run_virtual(main)


def test_a_newcomer_that_takes_too_long_is_lost_and_the_run_goes_on() -> None:
    async def main(clock: Clock) -> None:
        fleet = fleet_of([engine(SimulatedEngine, clock)])
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet, clock, MemoryRecorder(), timeout=9.0)
        await published(weights, 1)
        entry = newcomer(weights, fleet, engine(forever("prepare"), clock, number=1))
        await weights.catch_up(entry)
        assert entry.state == "gone"
        await published(weights, 2)

    run_virtual(main)


class Dropped(SimulatedEngine):
    """Is slow to pull, and finds that the store has dropped version 1 meanwhile."""

    async def prepare(self, version: int) -> Fingerprint:
        await self._clock.sleep(5.0)
        if version == 1:
            raise WeightStoreError(f"version {version} is not in the store")
        return await super().prepare(version)


@pytest.mark.parametrize("newest", [1, 3])
def test_a_newcomer_whose_version_the_store_has_dropped_takes_the_one_of_the_others(newest: int) -> None:
    """If the others still have the version that is not there, something is broken, and the run stops."""

    async def main(clock: Clock) -> str:
        fleet = fleet_of([engine(SimulatedEngine, clock)])
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet, clock, MemoryRecorder(), timeout=99.0)
        await published(weights, 1)
        entry = newcomer(weights, fleet, engine(Dropped, clock, number=1))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(weights.catch_up(entry))
            await clock.sleep(1.0)
            for version in range(2, newest + 1):
                await published(weights, version)
        return f"{entry.state} with {entry.version}"

    if newest == 1:
        with pytest.raises(ExceptionGroup) as raised:
            run_virtual(main)
        assert raised.group_contains(WeightStoreError)
    else:
        assert run_virtual(main) == "serving with 3"


# ------------------------------------------------------------------------------------------- engines that do not answer


@pytest.mark.parametrize("answer", ["suspend", "resume", "stats"])
def test_an_engine_that_does_not_answer_the_fleet_is_named_when_its_deadline_is_over(answer: str) -> None:
    async def main(clock: Clock) -> None:
        fleet = fleet_of([engine(SimulatedEngine, clock), engine(forever(answer), clock, number=1)])
        WeightSync(SimulatedTrainer(clock, constant(1.0), 0), fleet, clock, MemoryRecorder(), timeout=9.0)
        async with fleet.standing():
            await fleet.look()

    with pytest.raises(DeadlineExceeded, match=r"fleet waits for engine-1/1 to .* \(deadline 9 s"):
        run_virtual(main)


def test_engines_go_on_after_a_standstill_that_was_given_up_half_way() -> None:
    """One of them does not end its step in time: the caller leaves, and the others must not stand for ever."""

    async def main(clock: Clock) -> None:
        quick = engine(SimulatedEngine, clock)
        fleet = fleet_of([quick, engine(forever("suspend"), clock, number=1)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0), fleet.standing():
                pass
        assert len((await quick.generate(request_of("a#0", "a", [1], 0, Sampling()))).spans[0].tokens) == 4

    run_virtual(main)
