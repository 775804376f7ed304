"""The permit table: which job may use which node next. Pure code, played on the virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rollweave.clock import Clock, run_virtual
from rollweave.mux.permits import Discipline, Permit, PermitTable, Seat, StalePermit
from rollweave.pipelines.permits import SharedPool

TABLE = TypeAdapter(PermitTable)
POOLS: tuple[SharedPool, ...] = get_args(SharedPool)


@dataclass
class Player:
    """A job: its seat, how long its phases take, how many iterations it does, when it dies."""

    name: str
    seat: Seat
    seconds: dict[SharedPool, float]
    iterations: int
    dies_at: float | None = None
    begins_at: float = 0.0
    tail: float | None = None
    """The share of a rollout after which it does with one node, if a job waits for the others."""


@dataclass
class Stage:
    """Plays jobs against `PermitTable` as the daemon would, and writes down who had what when."""

    clock: Clock
    table: PermitTable = field(default_factory=PermitTable)
    had: list[tuple[str, str, float, float]] = field(default_factory=list)
    """(node, job, from, to)"""
    ends: dict[str, list[float]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    tails: int = 0

    def look_again(self) -> None:
        """Give out permits. A table that was stored and loaded looks at all requests: it must give out the same."""
        loaded = TABLE.validate_python(TABLE.dump_python(self.table, mode="json"))
        assert loaded.grant(self.clock.now()) == self.table.grant(self.clock.now())
        self.changed.set()
        self.changed = asyncio.Event()

    async def play(self, player: Player) -> None:
        await self.clock.sleep(player.begins_at)
        try:
            async with asyncio.timeout_at(player.dies_at):
                await self._live(player)
        except TimeoutError:
            pass
        self.table.leave(player.name)
        self.look_again()

    async def _live(self, player: Player) -> None:
        self.table.join(player.name, player.seat)
        epoch = None
        for iteration in range(player.iterations):
            for pool in POOLS:
                if epoch is not None:
                    self.table.give_back(player.name, epoch)
                epoch = await self._phase(player, pool, f"{iteration}.{pool}")
            self.ends.setdefault(player.name, []).append(self.clock.now())

    async def _phase(self, player: Player, pool: SharedPool, ticket: str) -> int:
        self.table.ask(player.name, ticket, pool, player.seat.nodes[pool], partly=player.tail is not None)
        self.look_again()
        while not self.table.holds(player.name, ticket):
            await self.changed.wait()
        permit = self.table.permits[player.name]
        since = dict.fromkeys(permit.nodes, self.clock.now())
        try:
            async with asyncio.timeout(player.seconds[pool]):
                await self._use(player, pool, permit, since)
        except TimeoutError:
            pass
        finally:
            self.had += [(node, player.name, began, self.clock.now()) for node, began in since.items()]
        return permit.epoch

    async def _use(self, player: Player, pool: SharedPool, permit: Permit, since: dict[str, float]) -> None:
        """Get what is owed, hand back what is not needed."""
        while permit.owed:
            await self.changed.wait()
            since.update({node: self.clock.now() for node in permit.nodes if node not in since})
        if pool == "rollout" and player.tail is not None:
            await self.clock.sleep(player.tail * player.seconds[pool])
            while not self.table.is_awaited(player.name, permit.epoch, 1):
                await self.changed.wait()
            self.table.narrow(player.name, permit.epoch, 1)
            for node in permit.handed_back:
                self.had.append((node, player.name, since.pop(node), self.clock.now()))
            self.tails += 1
            self.look_again()
        await asyncio.Event().wait()


def perform(players: list[Player], switches: Sequence[float] = ()) -> Stage:
    """All of them to their end; a deadlock raises. At `switches` the group goes from fifo to round robin, or back."""

    async def switch(stage: Stage) -> None:
        for at, discipline in zip(switches, itertools.cycle(("rr", "fifo")), strict=False):
            await stage.clock.sleep(at - stage.clock.now())
            stage.table.reseat({p.name: replace(p.seat, discipline=discipline) for p in players})
            stage.look_again()

    async def main(clock: Clock) -> Stage:
        stage = Stage(clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(switch(stage))
            for player in players:
                tasks.create_task(stage.play(player))
        return stage

    return run_virtual(main)


@st.composite
def casts(draw: st.DrawFn, gangs: bool = True, deaths: bool = True) -> list[Player]:
    """A group: every job trains on all train nodes and rolls out on some of the rollout nodes."""
    rollout = [f"rollout-{n}" for n in range(draw(st.integers(1, 3)))]
    train = tuple(f"train-{n}" for n in range(draw(st.integers(1, 2))))
    discipline: Discipline = draw(st.sampled_from(["rr", "fifo"]))
    seconds = st.integers(1, 9).map(float)
    players = []
    for rank in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, len(rollout) if gangs else 1))
        pins = tuple(sorted(draw(st.permutations(rollout))[:size]))
        players.append(
            Player(
                f"job-{rank}",
                Seat({"rollout": pins, "train": train}, rank, discipline),
                {"rollout": draw(seconds), "train": draw(seconds)},
                draw(st.integers(1, 4)),
                draw(st.none() | st.floats(0.5, 40.0)) if deaths else None,
                draw(st.sampled_from([0.0, 0.0, 3.5, 11.0])) if deaths else 0.0,
                draw(st.none() | st.floats(0.1, 0.9)) if size > 1 else None,
            )
        )
    return players


@settings(max_examples=150)
@given(casts())
def test_one_holder_per_node_and_everybody_alive_comes_to_an_end(players: list[Player]) -> None:
    stage = perform(players)
    for player in players:
        if player.dies_at is None:
            assert len(stage.ends[player.name]) == player.iterations
    for node in {node for node, *_ in stage.had}:
        uses = sorted((begin, end) for where, _, begin, end in stage.had if where == node)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(uses))
    assert not stage.table.permits and not stage.table.requests and not stage.table.tenants


@settings(max_examples=100)
@given(casts(deaths=False), st.lists(st.integers(1, 60).map(float), max_size=5).map(sorted))
def test_everybody_comes_to_an_end_when_the_discipline_changes(players: list[Player], switches: list[float]) -> None:
    stage = perform(players, switches)
    assert {name: len(ends) for name, ends in stage.ends.items()} == {p.name: p.iterations for p in players}


@settings(max_examples=60)
@given(casts(gangs=False, deaths=False))
def test_round_robin_keeps_the_planned_period(players: list[Player]) -> None:
    """Without gangs a cycle takes max(T_cycle, T_load), whatever the order."""
    for player in players:
        player.seat = Seat(player.seat.nodes, player.seat.rank, "rr")
        player.iterations = 12
    stage = perform(players)
    cycle = max(sum(player.seconds.values()) for player in players)
    nodes = {node for player in players for node in player.seat.nodes["rollout"]}
    load = max(
        sum(player.seconds["train"] for player in players),
        *(sum(p.seconds["rollout"] for p in players if node in p.seat.nodes["rollout"]) for node in nodes),
    )
    for player in players:
        ends = stage.ends[player.name]
        assert (ends[10] - ends[5]) / 5 <= max(cycle, load) + 1e-9


def seat(rank: int, discipline: Discipline = "rr") -> Seat:
    return Seat({"rollout": ("rollout-0",), "train": ("train-0",)}, rank, discipline)


def test_strict_order_waits_for_the_one_whose_turn_it_is() -> None:
    table = PermitTable()
    for rank, job in enumerate("ab"):
        table.join(job, seat(rank))
    table.ask("b", "b1", "rollout", ("rollout-0",))
    assert table.grant() == []
    table.ask("a", "a1", "rollout", ("rollout-0",))
    assert [permit.job for permit in table.grant()] == ["a"]


def test_nobody_waits_for_the_next_rollout_of_who_is_leaving() -> None:
    table = PermitTable()
    for rank, job in enumerate("ab"):
        table.join(job, seat(rank))
    for job in "ab":
        table.ask(job, f"{job}1", "rollout", ("rollout-0",))
        table.give_back(job, table.grant()[0].epoch)
    table.ask("b", "b2", "rollout", ("rollout-0",))
    assert table.grant() == []
    table.leave_after_this_lap("a")
    assert [permit.job for permit in table.grant()] == ["b"]


def test_first_come_first_served_does_not_wait() -> None:
    table = PermitTable()
    for rank, job in enumerate("abc"):
        table.join(job, seat(rank, "fifo"))
    table.ask("c", "c1", "rollout", ("rollout-0",))
    assert [permit.job for permit in table.grant()] == ["c"]
    table.ask("b", "b1", "rollout", ("rollout-0",))
    table.ask("a", "a1", "rollout", ("rollout-0",))
    assert table.line("rollout-0") == ["b", "a"]
    table.give_back("c", table.permits["c"].epoch)
    assert [permit.job for permit in table.grant()] == ["b"]


def test_a_newcomer_does_not_push_in() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    for ticket in ("1", "2", "3"):
        table.ask("a", ticket, "rollout", ("rollout-0",))
        table.give_back("a", table.grant()[0].epoch)
        table.ask("a", f"{ticket}t", "train", ("train-0",))
        table.give_back("a", table.grant()[0].epoch)
    table.join("b", seat(1))
    table.ask("b", "b1", "rollout", ("rollout-0",))
    table.ask("a", "4", "rollout", ("rollout-0",))
    assert [permit.job for permit in table.grant()] == ["a"]


def test_a_cold_start_goes_ahead_of_the_cycle_but_not_of_the_holder() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.join("b", seat(1))
    table.ask("a", "a1", "train", ("train-0",))
    held = table.grant()[0]
    table.ask("b", "b1", "train", ("train-0",))
    table.ask("new", "n1", "train", ("train-0",), visit=True)
    assert table.grant() == []
    table.give_back("a", held.epoch)
    assert [permit.job for permit in table.grant()] == ["new"]


def test_a_start_that_takes_long_shares_its_node() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.ask("new", "n1", "rollout", ("rollout-0",), visit=True, alone_for=5.0)
    start = table.grant(now=10.0)[0]
    table.ask("a", "1", "rollout", ("rollout-0",))
    assert table.grant(now=14.9) == []
    assert [permit.job for permit in table.grant(now=15.0)] == ["a"]
    table.give_back("new", start.epoch)
    assert table.holder("rollout-0") == "a"


BOTH = ("rollout-0", "rollout-1")


def wide(rank: int) -> Seat:
    return Seat({"rollout": BOTH, "train": ("train-0",)}, rank)


def test_the_next_begins_on_what_a_tail_has_left_and_gets_the_rest_later() -> None:
    table = PermitTable()
    table.join("a", wide(0))
    table.join("b", wide(1))
    table.ask("a", "1", "rollout", BOTH)
    a = table.grant(now=0.0)[0]
    assert not table.is_awaited("a", a.epoch, 1), "there is no job to make room for"
    table.ask("b", "1", "rollout", BOTH, partly=True)
    assert table.is_awaited("a", a.epoch, 1) and table.grant(now=8.0) == []
    table.narrow("a", a.epoch, 1)
    table.narrow("a", a.epoch, 1)  # told twice
    (b,) = table.grant(now=8.0)
    assert (a.nodes, b.job, b.nodes, b.owed) == (("rollout-0",), "b", ("rollout-1",), ("rollout-0",))
    table.join("c", Seat({"rollout": ("rollout-0",), "train": ("train-0",)}, 2))
    table.ask("c", "1", "rollout", ("rollout-0",))
    assert table.grant(now=9.0) == []
    table.give_back("a", a.epoch)
    assert table.grant(now=10.0) == [b], "what is owed to one is not given to another"
    assert (b.nodes, b.owed) == (("rollout-1", "rollout-0"), ())
    assert b.worked(now=14.0) == 2 / 2 + 4
    table.give_back("b", b.epoch)
    assert [permit.job for permit in table.grant(now=14.0)] == ["c"]


def test_a_tail_lets_nobody_in_before_their_turn() -> None:
    table = PermitTable()
    table.join("a", wide(0))
    table.join("b", wide(1))
    table.join("c", Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 2))
    table.ask("a", "1", "rollout", BOTH)
    a = table.grant()[0]
    table.ask("c", "1", "rollout", ("rollout-1",))
    assert not table.is_awaited("a", a.epoch, 1), "no job could begin"
    assert a.nodes == BOTH and a.handed_back == ()
    table.narrow("a", a.epoch, 1)
    assert table.grant() == [], "it is b's turn, whether it is ready or not"
    with pytest.raises(StalePermit):
        table.narrow("a", a.epoch + 1, 1)


def test_who_needs_all_nodes_at_once_waits_for_all() -> None:
    table = PermitTable()
    table.join("a", wide(0))
    table.join("b", wide(1))
    table.ask("a", "1", "rollout", BOTH)
    a = table.grant()[0]
    table.ask("b", "1", "rollout", BOTH)
    assert not table.is_awaited("a", a.epoch, 1)
    table.narrow("a", a.epoch, 1)
    assert table.grant() == []
    table.give_back("a", a.epoch)
    assert table.grant()[0].nodes == BOTH


def test_a_tail_beside_a_start_that_takes_long_is_still_a_tail() -> None:
    table = PermitTable()
    table.join("a", wide(0))
    table.join("b", wide(1))
    table.ask("new", "n", "rollout", ("rollout-0",), visit=True, alone_for=5.0)
    table.grant(now=0.0)
    table.ask("a", "1", "rollout", BOTH)
    a = table.grant(now=6.0)[0]
    table.ask("b", "1", "rollout", BOTH, partly=True)
    table.narrow("a", a.epoch, 1)
    assert [permit.nodes for permit in table.grant(now=7.0)] == [("rollout-1",)]


def test_an_old_epoch_is_refused() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.ask("a", "1", "rollout", ("rollout-0",))
    old = table.grant()[0].epoch
    table.give_back("a", old)
    table.ask("a", "2", "train", ("train-0",))
    new = table.grant()[0].epoch
    assert new > old
    with pytest.raises(StalePermit, match=f"number {old}.*now holds number {new}"):
        table.give_back("a", old)
    assert table.holder("train-0") == "a"


def test_asking_twice_is_asking_once() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.ask("a", "1", "rollout", ("rollout-0",))
    table.ask("a", "1", "rollout", ("rollout-0",))
    permit = table.grant()[0]
    table.ask("a", "1", "rollout", ("rollout-0",))
    assert table.grant() == [] and table.permits["a"] == permit
    with pytest.raises(StalePermit, match="another process"):
        table.ask("a", "other", "rollout", ("rollout-0",))


def test_who_is_moved_takes_its_next_turn_on_the_new_nodes() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.ask("a", "1", "rollout", ("rollout-0",))
    table.reseat({"a": Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 0)})
    assert table.grant()[0].nodes == ("rollout-1",)


def test_a_job_that_was_moved_makes_room_on_its_new_nodes_when_its_phase_ends() -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.join("b", Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 1))
    table.ask("a", "1", "rollout", ("rollout-0",))
    a = table.grant()[0]
    table.reseat({"a": Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 0)})
    table.ask("b", "1", "rollout", ("rollout-1",))
    assert table.grant() == [], "on this node a is before b, and its phase of this lap still runs"
    table.give_back("a", a.epoch)
    assert [permit.job for permit in table.grant()] == ["b"]


def take(table: PermitTable, job: str, *pools: SharedPool) -> None:
    """Turns of a job, each granted at once and handed back."""
    for number, pool in enumerate(pools):
        table.ask(job, f"{job} {table.epoch} {number}", pool, table.tenants[job].seat.nodes[pool])
        assert [permit.job for permit in table.grant()] == [job]
        table.give_back(job, table.permits[job].epoch)


def test_from_first_come_first_served_to_round_robin_the_laps_start_anew() -> None:
    table = PermitTable()
    table.join("fast", seat(0, "fifo"))
    table.join("slow", seat(1, "fifo"))
    take(table, "fast", *POOLS * 5)
    table.reseat({"fast": seat(0), "slow": seat(1)})
    for _ in range(3):
        take(table, "fast", *POOLS)
        early = deepcopy(table)
        early.ask("fast", "too early", "rollout", ("rollout-0",))
        assert early.grant() == [], "one lap of one is one lap of the other"
        take(table, "slow", *POOLS)


def test_who_is_between_its_phases_when_laps_start_anew_has_had_its_rollout() -> None:
    table = PermitTable()
    table.join("a", seat(0, "fifo"))
    table.join("b", seat(1, "fifo"))
    take(table, "a", *POOLS * 2, "rollout")
    table.ask("a", "a train", "train", ("train-0",))
    table.grant()
    table.reseat({"a": seat(0), "b": seat(1)})
    take(table, "b", "rollout")
    table.give_back("a", table.permits["a"].epoch)
    table.ask("a", "a next", "rollout", ("rollout-0",))
    assert [permit.job for permit in table.grant()] == ["a"]
    take(table, "b", "train")


@pytest.mark.parametrize("laps", [0, 7])
def test_who_moves_into_another_group_enters_the_lap_that_its_members_are_in(laps: int) -> None:
    table = PermitTable()
    table.join("a", seat(0))
    table.join("b", Seat({"rollout": ("rollout-1",), "train": ("train-1",)}, 0))
    take(table, "a", *POOLS * 3)
    take(table, "b", *POOLS * laps, "rollout")
    table.reseat({"a": seat(0), "b": seat(1)})
    take(table, "a", *POOLS)
    take(table, "b", "train")
    for _ in range(3):
        take(table, "a", *POOLS)
        take(table, "b", *POOLS)


@settings(max_examples=60)
@given(st.integers(2, 4), st.floats(0.1, 0.9), st.sampled_from(["rr", "fifo"]))
def test_tails_shorten_the_cycle_of_those_who_want_all_nodes(jobs: int, tail: float, discipline: Discipline) -> None:
    """Rollouts are the bottleneck: a job that makes room lets the next one begin sooner."""

    def last(tail: float | None) -> tuple[float, int]:
        seats = [Seat(wide(rank).nodes, rank, discipline) for rank in range(jobs)]
        cast = [
            Player(f"job-{seat.rank}", seat, {"rollout": 10.0, "train": 1.0}, iterations=5, tail=tail) for seat in seats
        ]
        stage = perform(cast)
        return max(ends[-1] for ends in stage.ends.values()), stage.tails

    (with_tails, made), (without, none) = last(tail), last(None)
    assert made > 0 and none == 0
    assert with_tails < without
