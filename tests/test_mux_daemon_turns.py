"""Turn-taking: who may use which node next. Pure code, played on the virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.clock import Clock, run_virtual
from rollweave.mux.permits import Discipline, Permit, PermitTable, Seat, SharedPool, StalePermit

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
    """The share of a rollout after which it does with one node, if somebody waits for the others."""


@dataclass
class Stage:
    """Plays jobs against `PermitTable` as the daemon would, and writes down who had what when."""

    clock: Clock
    turns: PermitTable = field(default_factory=PermitTable)
    had: list[tuple[str, str, float, float]] = field(default_factory=list)
    """(node, job, from, to)"""
    ends: dict[str, list[float]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    tails: int = 0

    def look_again(self) -> None:
        self.turns.grant(self.clock.now())
        self.changed.set()
        self.changed = asyncio.Event()

    async def play(self, player: Player) -> None:
        await self.clock.sleep(player.begins_at)
        try:
            async with asyncio.timeout_at(player.dies_at):
                await self._live(player)
        except TimeoutError:
            pass
        self.turns.leave(player.name)
        self.look_again()

    async def _live(self, player: Player) -> None:
        self.turns.join(player.name, player.seat)
        epoch = None
        for iteration in range(player.iterations):
            for pool in POOLS:
                if epoch is not None:
                    self.turns.give_back(player.name, epoch)
                epoch = await self._phase(player, pool, f"{iteration}.{pool}")
            self.ends.setdefault(player.name, []).append(self.clock.now())

    async def _phase(self, player: Player, pool: SharedPool, ticket: str) -> int:
        self.turns.ask(player.name, ticket, pool, player.seat.nodes[pool], partly=player.tail is not None)
        self.look_again()
        while not self.turns.holds(player.name, ticket):
            await self.changed.wait()
        permit = self.turns.permits[player.name]
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
            while not self.turns.awaited(player.name, permit.epoch, 1):
                await self.changed.wait()
            self.turns.narrow(player.name, permit.epoch, 1)
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
            stage.turns.reseat({p.name: replace(p.seat, discipline=discipline) for p in players})
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
    """A group: everybody trains on all train nodes and rolls out on some of the rollout nodes."""
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
    assert not stage.turns.permits and not stage.turns.requests and not stage.turns.members


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
    turns = PermitTable()
    for rank, job in enumerate("ab"):
        turns.join(job, seat(rank))
    turns.ask("b", "b1", "rollout", ("rollout-0",))
    assert turns.grant() == []
    turns.ask("a", "a1", "rollout", ("rollout-0",))
    assert [permit.job for permit in turns.grant()] == ["a"]


def test_nobody_waits_for_the_next_rollout_of_who_is_leaving() -> None:
    turns = PermitTable()
    for rank, job in enumerate("ab"):
        turns.join(job, seat(rank))
    for job in "ab":
        turns.ask(job, f"{job}1", "rollout", ("rollout-0",))
        turns.give_back(job, turns.grant()[0].epoch)
    turns.ask("b", "b2", "rollout", ("rollout-0",))
    assert turns.grant() == []
    turns.members["a"].leaving = True
    assert [permit.job for permit in turns.grant()] == ["b"]


def test_first_come_first_served_does_not_wait() -> None:
    turns = PermitTable()
    for rank, job in enumerate("abc"):
        turns.join(job, seat(rank, "fifo"))
    turns.ask("c", "c1", "rollout", ("rollout-0",))
    assert [permit.job for permit in turns.grant()] == ["c"]
    turns.ask("b", "b1", "rollout", ("rollout-0",))
    turns.ask("a", "a1", "rollout", ("rollout-0",))
    assert turns.line("rollout-0") == ["b", "a"]
    turns.give_back("c", turns.permits["c"].epoch)
    assert [permit.job for permit in turns.grant()] == ["b"]


def test_a_newcomer_does_not_push_in() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    for ticket in ("1", "2", "3"):
        turns.ask("a", ticket, "rollout", ("rollout-0",))
        turns.give_back("a", turns.grant()[0].epoch)
        turns.ask("a", f"{ticket}t", "train", ("train-0",))
        turns.give_back("a", turns.grant()[0].epoch)
    turns.join("b", seat(1))
    turns.ask("b", "b1", "rollout", ("rollout-0",))
    turns.ask("a", "4", "rollout", ("rollout-0",))
    assert [permit.job for permit in turns.grant()] == ["a"]


def test_a_cold_start_goes_ahead_of_the_cycle_but_not_of_the_holder() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.join("b", seat(1))
    turns.ask("a", "a1", "train", ("train-0",))
    held = turns.grant()[0]
    turns.ask("b", "b1", "train", ("train-0",))
    turns.ask("new", "n1", "train", ("train-0",), visit=True)
    assert turns.grant() == []
    turns.give_back("a", held.epoch)
    assert [permit.job for permit in turns.grant()] == ["new"]


def test_a_start_that_takes_long_shares_its_node() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.ask("new", "n1", "rollout", ("rollout-0",), visit=True, alone_for=5.0)
    start = turns.grant(now=10.0)[0]
    turns.ask("a", "1", "rollout", ("rollout-0",))
    assert turns.grant(now=14.9) == []
    assert [permit.job for permit in turns.grant(now=15.0)] == ["a"]
    turns.give_back("new", start.epoch)
    assert turns.holder("rollout-0") == "a"


BOTH = ("rollout-0", "rollout-1")


def wide(rank: int) -> Seat:
    return Seat({"rollout": BOTH, "train": ("train-0",)}, rank)


def test_the_next_begins_on_what_a_tail_has_left_and_gets_the_rest_later() -> None:
    turns = PermitTable()
    turns.join("a", wide(0))
    turns.join("b", wide(1))
    turns.ask("a", "1", "rollout", BOTH)
    a = turns.grant(now=0.0)[0]
    assert not turns.awaited("a", a.epoch, 1), "there is nobody to make room for"
    turns.ask("b", "1", "rollout", BOTH, partly=True)
    assert turns.awaited("a", a.epoch, 1) and turns.grant(now=8.0) == []
    turns.narrow("a", a.epoch, 1)
    turns.narrow("a", a.epoch, 1)  # told twice
    (b,) = turns.grant(now=8.0)
    assert (a.nodes, b.job, b.nodes, b.owed) == (("rollout-0",), "b", ("rollout-1",), ("rollout-0",))
    turns.join("c", Seat({"rollout": ("rollout-0",), "train": ("train-0",)}, 2))
    turns.ask("c", "1", "rollout", ("rollout-0",))
    assert turns.grant(now=9.0) == []
    turns.give_back("a", a.epoch)
    assert turns.grant(now=10.0) == [b], "what is owed to one is not given to another"
    assert (b.nodes, b.owed) == (("rollout-1", "rollout-0"), ())
    assert b.worked(now=14.0) == 2 / 2 + 4
    turns.give_back("b", b.epoch)
    assert [permit.job for permit in turns.grant(now=14.0)] == ["c"]


def test_a_tail_lets_nobody_in_before_their_turn() -> None:
    turns = PermitTable()
    turns.join("a", wide(0))
    turns.join("b", wide(1))
    turns.join("c", Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 2))
    turns.ask("a", "1", "rollout", BOTH)
    a = turns.grant()[0]
    turns.ask("c", "1", "rollout", ("rollout-1",))
    assert not turns.awaited("a", a.epoch, 1), "nobody could begin"
    assert a.nodes == BOTH and a.handed_back == ()
    turns.narrow("a", a.epoch, 1)
    assert turns.grant() == [], "it is b's turn, whether it is ready or not"
    with pytest.raises(StalePermit):
        turns.narrow("a", a.epoch + 1, 1)


def test_who_needs_all_nodes_at_once_waits_for_all() -> None:
    turns = PermitTable()
    turns.join("a", wide(0))
    turns.join("b", wide(1))
    turns.ask("a", "1", "rollout", BOTH)
    a = turns.grant()[0]
    turns.ask("b", "1", "rollout", BOTH)
    assert not turns.awaited("a", a.epoch, 1)
    turns.narrow("a", a.epoch, 1)
    assert turns.grant() == []
    turns.give_back("a", a.epoch)
    assert turns.grant()[0].nodes == BOTH


def test_a_tail_beside_a_start_that_takes_long_is_still_a_tail() -> None:
    turns = PermitTable()
    turns.join("a", wide(0))
    turns.join("b", wide(1))
    turns.ask("new", "n", "rollout", ("rollout-0",), visit=True, alone_for=5.0)
    turns.grant(now=0.0)
    turns.ask("a", "1", "rollout", BOTH)
    a = turns.grant(now=6.0)[0]
    turns.ask("b", "1", "rollout", BOTH, partly=True)
    turns.narrow("a", a.epoch, 1)
    assert [permit.nodes for permit in turns.grant(now=7.0)] == [("rollout-1",)]


def test_an_old_epoch_is_refused() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.ask("a", "1", "rollout", ("rollout-0",))
    old = turns.grant()[0].epoch
    turns.give_back("a", old)
    turns.ask("a", "2", "train", ("train-0",))
    new = turns.grant()[0].epoch
    assert new > old
    with pytest.raises(StalePermit, match=f"number {old}.*now holds number {new}"):
        turns.give_back("a", old)
    assert turns.holder("train-0") == "a"


def test_asking_twice_is_asking_once() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.ask("a", "1", "rollout", ("rollout-0",))
    turns.ask("a", "1", "rollout", ("rollout-0",))
    permit = turns.grant()[0]
    turns.ask("a", "1", "rollout", ("rollout-0",))
    assert turns.grant() == [] and turns.permits["a"] == permit
    with pytest.raises(StalePermit, match="another process"):
        turns.ask("a", "other", "rollout", ("rollout-0",))


def test_who_is_moved_takes_its_next_turn_on_the_new_nodes() -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.ask("a", "1", "rollout", ("rollout-0",))
    turns.reseat({"a": Seat({"rollout": ("rollout-1",), "train": ("train-0",)}, 0)})
    assert turns.grant()[0].nodes == ("rollout-1",)


def take(turns: PermitTable, job: str, *pools: SharedPool) -> None:
    """Turns of a job, each granted at once and handed back."""
    for number, pool in enumerate(pools):
        turns.ask(job, f"{job} {turns.epoch} {number}", pool, turns.members[job].seat.nodes[pool])
        assert [permit.job for permit in turns.grant()] == [job]
        turns.give_back(job, turns.permits[job].epoch)


def test_from_first_come_first_served_to_round_robin_the_laps_start_anew() -> None:
    turns = PermitTable()
    turns.join("fast", seat(0, "fifo"))
    turns.join("slow", seat(1, "fifo"))
    take(turns, "fast", *POOLS * 5)
    turns.reseat({"fast": seat(0), "slow": seat(1)})
    for _ in range(3):
        take(turns, "fast", *POOLS)
        turns.ask("fast", "too early", "rollout", ("rollout-0",))
        assert turns.grant() == [], "one lap of one is one lap of the other"
        del turns.requests["fast"]
        take(turns, "slow", *POOLS)


def test_who_is_between_its_phases_when_laps_start_anew_has_had_its_rollout() -> None:
    turns = PermitTable()
    turns.join("a", seat(0, "fifo"))
    turns.join("b", seat(1, "fifo"))
    take(turns, "a", *POOLS * 2, "rollout")
    turns.ask("a", "a train", "train", ("train-0",))
    turns.grant()
    turns.reseat({"a": seat(0), "b": seat(1)})
    take(turns, "b", "rollout")
    turns.give_back("a", turns.permits["a"].epoch)
    turns.ask("a", "a next", "rollout", ("rollout-0",))
    assert [permit.job for permit in turns.grant()] == ["a"]
    take(turns, "b", "train")


@pytest.mark.parametrize("laps", [0, 7])
def test_who_moves_into_another_group_enters_the_lap_that_its_members_are_in(laps: int) -> None:
    turns = PermitTable()
    turns.join("a", seat(0))
    turns.join("b", Seat({"rollout": ("rollout-1",), "train": ("train-1",)}, 0))
    take(turns, "a", *POOLS * 3)
    take(turns, "b", *POOLS * laps, "rollout")
    turns.reseat({"a": seat(0), "b": seat(1)})
    take(turns, "a", *POOLS)
    take(turns, "b", "train")
    for _ in range(3):
        take(turns, "a", *POOLS)
        take(turns, "b", *POOLS)


@settings(max_examples=60)
@given(st.integers(2, 4), st.floats(0.1, 0.9), st.sampled_from(["rr", "fifo"]))
def test_tails_shorten_the_cycle_of_those_who_want_all_nodes(jobs: int, tail: float, discipline: Discipline) -> None:
    """Rollouts are the bottleneck: whoever makes room lets the next one begin sooner."""

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
