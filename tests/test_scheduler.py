"""The scheduler, with the test in the place of the hosts: it is told how every lease ends, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rollweave.clock import Clock, run_virtual
from rollweave.config.control import Deadlines, RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.errors import EnvironmentFailed
from rollweave.observability.events import MemoryRecorder
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.groups import RolloutSettings
from rollweave.rollout.ledger import LedgerError
from rollweave.rollout.link import Cancel, HostLink, Lease, Packet, Report
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.scoring import HostBackend, Scoring
from rollweave.rollout.staleness import StalenessBound
from rollweave.rollout.state import SchedulerState, adapter, pack, unpack
from rollweave.tasks import Cursor, SeedSource
from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Outcome, Trajectory, Transform, token_ids
from spans import assert_same_files, span_of

TICK = 0.001


class Hands:
    """A host that does what the test says."""

    def __init__(self, dispatcher: Dispatcher, capacity: int) -> None:
        self.leases: dict[str, Lease] = {}
        self.cancelled: list[str] = []
        self.link: HostLink = dispatcher.attach(self._hear, capacity)

    def _hear(self, packet: Packet[Any]) -> None:
        for id, message in packet.messages.items():
            self.link.receive(Packet(confirmed=[id]))
            if isinstance(message, Cancel):
                self.cancelled.append(message.attempt)
            else:
                self.leases[message.id] = message

    def report(
        self,
        id: str,
        outcome: Outcome = Outcome.FINISHED,
        version: int = 0,
        reward: float | None = None,
        reward_failed: bool = False,
    ) -> None:
        lease = self.leases.pop(id)
        trajectory = Trajectory(id, lease.group, lease.member, lease.task, outcome=outcome, cause="as told")
        trajectory.observe(token_ids([1]))
        trajectory.answer([span_of([2, 3], [-1.0, -1.0], [-1.0, -1.0], version, Transform())], "x", "stop")
        trajectory.rewards = {"environment": float(lease.member) if reward is None else reward}
        self.link.receive(Packet({f"report.{id}": Report(id, trajectory, reward_failed)}))

    def finish_group(self, group: int, version: int = 0, reward: float | None = None) -> None:
        for id in [id for id, lease in self.leases.items() if lease.group == group]:
            self.report(id, version=version, reward=reward)


class World:
    def __init__(self, clock: Clock, alpha: float, size: int, capacity: int, state: SchedulerState | None, **plan: Any):
        self.clock = clock
        self.recorder = MemoryRecorder(clock.now)
        self.dispatcher = Dispatcher()
        numbers = {name: value for name, value in plan.items() if name in RolloutConfig.model_fields}
        rollout = RolloutConfig(**{"group_size": 2, "deadlines": Deadlines(get_batch=1000.0), **numbers})
        rest = {name: value for name, value in plan.items() if name not in numbers}
        self.scheduler = RolloutScheduler(
            RolloutSettings(rollout, Sampling(), 0, **rest),
            StalenessBound(alpha, size),
            Cursor(SeedSource("t", 0)),
            self.dispatcher,
            Scoring(HostBackend(self.dispatcher, self.recorder, max_retries=3), self.recorder),
            clock,
            self.recorder,
        )
        self.hands = Hands(self.dispatcher, capacity)
        if state is not None:
            self.scheduler.restore(state)

    async def tick(self) -> None:
        await self.clock.sleep(TICK)

    async def train(self, step: int) -> list[int]:
        batch = await self.scheduler.get_batch(step)
        self.scheduler.trained(batch)
        return [group.id for group in batch.groups]

    def tally(self, kind: str) -> dict[str, int]:
        self.scheduler.ledger.check()
        return {end: count for end, count in self.scheduler.ledger.summary()[kind].items() if count}

    def groups_out(self) -> list[int]:
        return sorted({lease.group for lease in self.hands.leases.values()})


def play(
    script: Callable[[World], Coroutine[Any, Any, None]],
    alpha: float = 0,
    size: int = 1,
    capacity: int = 100,
    state: SchedulerState | None = None,
    **plan: Any,
) -> None:
    async def main(clock: Clock) -> None:
        await script(World(clock, alpha, size, capacity, state, **plan))

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------ policies


def test_requeue_plays_a_stale_task_again_and_after_its_last_chance_waits_for_it() -> None:
    async def script(world: World) -> None:
        scheduler, hands = world.scheduler, world.hands
        for step in range(3):
            scheduler.advance(step)
            await world.tick()
            newest = max(world.groups_out())
            hands.finish_group(newest, version=step)
            if step:
                await world.tick()
            if step < 2:
                assert await world.train(step) == [newest]
                await world.tick()
        # Group 0 fell a version behind at step 1 and was issued again; at step 2 it may not be given up any more.
        assert [e.data["times"] for e in world.recorder.events if e.name == "group.requeued"] == [1]
        assert {"0.0.0", "0.1.0"} <= set(hands.cancelled)
        for id in ("0.0.0", "0.1.0"):
            hands.report(id, Outcome.ABORTED)
        await world.tick()
        assert world.tally("attempts")["stale"] == 2 and world.tally("tokens")["stale"] == 4
        async with asyncio.TaskGroup() as tasks:
            step2 = tasks.create_task(world.train(2))
            await world.tick()
            assert not step2.done()
            hands.finish_group(0, version=1)
        assert step2.result() == [0]

    play(script, alpha=1, policy="requeue", max_requeues=1)


def test_a_member_that_waits_to_be_tried_again_is_not_played_twice_when_its_group_is_requeued() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.hands.report("0.0.0", Outcome.ENV_FAILED)
        for step in range(2):
            world.scheduler.advance(step)
            await world.tick()
            world.hands.finish_group(max(world.groups_out()), version=step)
            await world.tick()
            await world.train(step)
        await world.clock.sleep(1000)
        assert "0.0.1" in world.hands.leases and "0.0.2" not in world.hands.leases

    play(script, alpha=1, policy="requeue", retry_backoff=60.0)


def test_a_retry_that_goes_wrong_ends_the_run_and_is_not_lost_in_its_timer() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.scheduler.ledger.issue("0.0.1")  # so that the retry finds its id taken
        world.hands.report("0.0.0", Outcome.ENV_FAILED)
        with pytest.raises(LedgerError, match=r"0\.0\.1 was issued twice"):
            await world.train(0)

    play(script)


def test_drop_ends_a_stale_task_and_starts_another() -> None:
    async def script(world: World) -> None:
        for step in range(2):
            world.scheduler.advance(step)
            await world.tick()
            newest = max(world.groups_out())
            world.hands.finish_group(newest, version=step)
            await world.tick()
            await world.train(step)
            await world.tick()
        assert world.tally("tasks")["dropped-stale"] == 1
        assert set(world.hands.cancelled) == {"0.0.0", "0.1.0"}
        assert world.groups_out()[0] == 0, "until the host has let go"
        assert len(world.scheduler.running) == 1, "another has taken its place"

    play(script, alpha=1, policy="drop")


def test_a_group_nobody_has_begun_is_as_new_as_the_weights() -> None:
    async def script(world: World) -> None:
        scheduler, hands = world.scheduler, world.hands
        scheduler.advance(0)
        await world.tick()
        assert world.groups_out() == [0], "there is room for one group only"
        hands.finish_group(0)
        await world.tick()
        assert world.groups_out() == [1]
        assert await world.train(0) == [0]
        scheduler.advance(1)  # group 1 plays since version 0, its followers have not begun
        await world.tick()
        renewed = [event.data["group"] for event in world.recorder.events if event.name == "group.renewed"]
        assert renewed == [2, 3]

    play(script, alpha=3, capacity=2)


# ---------------------------------------------------------------------------------------------------- redundancy


def test_the_first_members_make_the_group_and_the_others_are_cancelled() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        assert len(world.hands.leases) == 3
        world.hands.report("0.2.0")
        world.hands.report("0.0.0")
        await world.tick()
        assert world.hands.cancelled == ["0.1.0"]
        assert await world.train(0) == [0]
        world.hands.report("0.1.0", Outcome.ABORTED)
        await world.tick()
        assert world.tally("attempts") == {"trained": 2, "surplus": 1}

    play(script, redundant_members=1)


def test_surplus_groups_are_cancelled_when_no_step_can_consume_them() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        assert world.groups_out() == [0, 1, 2]
        world.hands.finish_group(2)
        world.hands.finish_group(0)
        await world.tick()
        assert await world.train(0) == [0, 2]
        await world.tick()
        assert set(world.hands.cancelled) == {"1.0.0", "1.1.0"}

    play(script, size=2, redundant_groups=0.5)


def test_surplus_is_carried_over_while_it_can_still_be_consumed() -> None:
    async def script(world: World) -> None:
        for step in range(2):
            world.scheduler.advance(step)
            await world.tick()
            for group in world.groups_out():
                world.hands.finish_group(group, version=step)
            await world.tick()
            assert await world.train(step) == [2 * step, 2 * step + 1]
            await world.tick()
        assert not world.hands.cancelled
        assert set(world.tally("attempts")) <= {"trained", "open"}

    play(script, alpha=1, size=2, redundant_groups=0.5)


# --------------------------------------------------------------------------------------------------------- filter


def test_a_group_that_teaches_nothing_is_replaced_and_more_are_started_the_fewer_survive() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        assert len(world.groups_out()) == 2
        for _ in range(6):
            for group in world.groups_out():
                world.hands.finish_group(group, reward=1.0)
            await world.tick()
        assert len(world.groups_out()) > 20, "one in fifty survives so far: many must start at once"
        assert "trained" not in world.tally("tasks") and world.tally("tasks")["filtered"] > 10
        first, second = world.groups_out()[:2]
        world.hands.finish_group(first)
        world.hands.finish_group(second)
        assert await world.train(0) == [first, second]

    play(script, size=2, filter="zero_variance")


def test_over_issue_fills_idle_environments_only() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        for _ in range(8):
            await world.tick()
            for group in world.groups_out():
                world.hands.finish_group(group, reward=1.0)
        await world.tick()
        assert len(world.hands.leases) == 10
        assert not world.dispatcher._queue

    play(script, capacity=10, filter="zero_variance")


# ------------------------------------------------------------------------------------------------------- failures


def test_a_failed_episode_is_tried_again_after_a_pause_that_doubles() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        pauses = []
        for attempt in range(3):
            while f"0.0.{attempt}" not in world.hands.leases:
                await world.tick()
            began = world.clock.now()
            world.hands.report(f"0.0.{attempt}", Outcome.ENV_FAILED)
            while f"0.0.{attempt + 1}" not in world.hands.leases:
                await world.tick()
            pauses.append(world.clock.now() - began)
        for pause, nominal in zip(pauses, (8.0, 16.0, 32.0), strict=True):
            assert 0.5 * nominal <= pause <= 1.5 * nominal + 2 * TICK
        assert world.tally("attempts")["infra-failed"] == 3

    play(script, retry_backoff=8.0)


def test_retries_run_out_and_a_group_of_one_survivor_fails() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.hands.report("0.0.0", Outcome.ENV_FAILED)
        await world.clock.sleep(5)
        world.hands.report("0.0.1", Outcome.TIMED_OUT)
        await world.tick()
        world.hands.report("0.1.0")
        await world.tick()
        assert world.tally("tasks") == {"failed": 1, "open": 1}
        assert world.tally("attempts") == {"infra-failed": 2, "aborted": 1, "open": 2}

    play(script, max_retries=1)


def test_leases_of_a_dead_host_are_issued_again_at_once_and_do_not_count_as_failures() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.hands.report("0.1.0")
        await world.tick()
        dead = world.hands
        world.dispatcher.detach(dead.link)
        world.hands = Hands(world.dispatcher, 10)
        await world.tick()
        assert list(world.hands.leases) == ["0.0.1"]
        dead.report("0.0.0")  # its last word comes too late
        world.hands.report("0.0.1")
        await world.tick()
        assert await world.train(0) == [0]
        assert world.tally("attempts") == {"trained": 2, "infra-failed": 1}

    play(script, max_retries=0)


def test_a_world_in_which_nothing_ever_works_ends_the_run_with_its_cause() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        with pytest.raises(EnvironmentFailed, match="first 16 episodes all failed; the last one: as told"):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(world.train(0))
                for id in list(world.hands.leases):
                    world.hands.report(id, Outcome.ENV_FAILED)
        raise EnvironmentFailed("seen")

    with pytest.raises(BaseExceptionGroup):
        play(script, size=20)


def test_failing_environments_do_not_make_the_first_failing_reward_hopeless() -> None:
    """Fifteen environments fail; one episode is played, and its reward fails. Only that one tells of rewards."""

    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        first, *others = list(world.hands.leases)
        for id in others:
            world.hands.report(id, Outcome.ENV_FAILED)
        world.hands.report(first, reward_failed=True)
        await world.clock.sleep(1.0)
        for group in world.groups_out():
            world.hands.finish_group(group)
        await world.train(0)
        assert world.tally("attempts") == {"trained": 15, "infra-failed": 15, "reward-failed": 1}

    play(script, size=4, group_size=4, retry_backoff=0.01)


def test_steps_consume_groups_in_the_order_of_their_admission_not_of_their_end() -> None:
    async def script(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.hands.finish_group(1)
        first = asyncio.ensure_future(world.train(0))
        await world.tick()
        assert not first.done(), "group 1 is complete, and group 0 is next"
        world.hands.finish_group(0)
        assert await first == [0]
        assert await world.train(1) == [1]

    play(script, alpha=1)


# --------------------------------------------------------------------------------------------------------- resume


def test_a_run_goes_on_from_its_state_without_losing_or_repeating_a_task() -> None:
    saved: list[DriverFiles] = []
    known = adapter(SchedulerState)

    async def first_life(world: World) -> None:
        world.scheduler.advance(0)
        await world.tick()
        world.hands.finish_group(0)
        world.hands.finish_group(2)
        world.hands.report("1.1.0", version=0)
        await world.tick()
        assert await world.train(0) == [0]
        await world.tick()
        saved.append(pack(known, world.scheduler.state(version=1)))

    async def second_life(world: World) -> None:
        assert sorted(world.scheduler.ledger.open_tasks) == [1, 2]
        world.scheduler.advance(1)
        await world.tick()
        assert "1.0.1" in world.hands.leases, "the unfinished member, as a new attempt"
        assert not any(id.startswith(("1.1.", "2.")) for id in world.hands.leases), "what was finished is kept"
        world.hands.report("1.0.1", version=1)
        assert await world.train(1) == [1], "the one that is next, though the other was complete in the first life"
        assert await world.train(2) == [2]
        assert world.tally("tasks")["trained"] == 3
        assert world.tally("attempts")["aborted"] == 1

    play(first_life, alpha=2)
    play(second_life, alpha=2, state=unpack(known, saved[0]))
    assert_same_files(pack(known, unpack(known, saved[0])), saved[0])
