"""Whole lives of jobs in the daemon's controller: phases of any length, every policy, no job is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mux_daemon_stage import Theatre
from rollweave.mux.daemon.controller import Ask
from rollweave.mux.model.policy import POLICIES

STEPS = 8
NEXT = {"start": "rollout", "rollout": "train", "train": "rollout"}


@dataclass
class Life:
    """A job's process: what it asks next, and until when it computes."""

    ask: Ask
    mean: tuple[float, float]
    until: float | None = None

    def seconds(self, rng: Random) -> float:
        """Never what the profile said."""
        long = 8.0 if self.ask.wanted == "start" else self.mean[self.ask.wanted == "train"]
        return long * rng.uniform(0.7, 1.4)

    def go_on(self, epoch: int, number: int) -> None:
        step = self.ask.step + (self.ask.wanted == "train")
        wanted = NEXT[self.ask.wanted]
        self.ask = self.ask.model_copy(
            update={"ticket": f"{number}", "wanted": wanted, "epoch": epoch, "step": step},
        )
        self.until = None


class City:
    """Jobs that run to their end, however often they are stopped and placed anew."""

    def __init__(self, folder: Path, policy: str, seed: int) -> None:
        self.rng = Random(seed)
        self.theatre = Theatre(folder, policy=policy)
        self.means: dict[str, tuple[float, float]] = {}
        self.lives: dict[str, Life] = {}
        for name in "abcd"[: self.rng.randint(2, 4)]:
            job = self.theatre.submit(name, slo=self.rng.choice([1.5, 1.8, 2.5]), steps=STEPS)
            self.means[job] = (self.rng.uniform(1, 3), self.rng.uniform(1, 3))
            self.theatre.time += self.rng.uniform(0, 4)
            self.theatre.profile(job, *(mean * self.rng.uniform(0.9, 1.3) for mean in self.means[job]))

    def look(self) -> None:
        """As the daemon does: start who should run, end who should not, hear who asks."""
        controller = self.theatre.controller
        for record in controller.to_end():
            controller.exited(record.id, "killed")
            self.lives.pop(record.id, None)
        for record in controller.to_start():
            self.theatre.launch(record.id)
            ask = Ask(life=record.life, ticket="0", wanted="start")
            self.lives[record.id] = Life(ask, self.means[record.id])
        for job, life in self.lives.items():
            for _ in range(self.rng.randint(1, 2)):  # an answer may be lost
                if life.until is None and controller.ask(job, life.ask) is not None:
                    life.until = self.theatre.time + life.seconds(self.rng)

    def pass_time(self, number: int) -> None:
        busy = [(life.until, job) for job, life in self.lives.items() if life.until is not None]
        if not busy:
            self.theatre.time += 1.0
            self.theatre.controller.tick()
            return
        self.theatre.time, job = min(busy)
        life = self.lives[job]
        life.go_on(self.theatre.controller.permit_table.permits[job].epoch, number)
        if life.ask.step == STEPS:
            self.theatre.controller.exited(job, "finished", steps=STEPS)
            del self.lives[job]

    @property
    def states(self) -> set[str]:
        return {record.state for record in self.theatre.controller.jobs.values()}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_comes_to_an_end(tmp_path_factory: pytest.TempPathFactory, policy: str, seed: int) -> None:
    city = City(tmp_path_factory.mktemp("city"), policy, seed)
    for number in range(2000):
        city.look()
        if city.states == {"finished"}:
            return
        city.pass_time(number + 1)
    raise AssertionError(f"still {city.states} at {city.theatre.time:.0f} s")


def test_a_permit_handed_back_twice_is_handed_back_once(tmp_path: Path) -> None:
    """A job that lost its place and got it back before its process was ended asks again, in the same words."""
    theatre = Theatre(tmp_path)
    job = theatre.running("a")
    theatre.ask(job, "rollout", ticket="1")
    held = theatre.controller.permit_table.permits[job].epoch
    ask = Ask(life=theatre.controller.get(job).life, ticket="2", wanted="train", epoch=held)
    assert theatre.controller.ask(job, ask) is not None
    theatre.controller.permit_table.leave(job)  # whatever made it lose its place in line
    again = theatre.controller.ask(job, ask)
    assert again is not None and again.pool == "train"
    assert theatre.controller.get(job).progress.worked.t_train == 0.0


def test_a_rollout_that_began_on_fewer_nodes_is_not_taken_for_a_slow_one(tmp_path: Path) -> None:
    theatre = Theatre(tmp_path, rollout_nodes=2)
    jobs = []
    for name in "ab":
        jobs.append(theatre.submit(name, slo=3.0, n_roll=2))
        theatre.profile(jobs[-1], 4.0, 2.0)
        theatre.launch(jobs[-1])
        loaded = theatre.ask(jobs[-1], "start")
        assert loaded is not None
        theatre.controller.permit_table.give_back(jobs[-1], loaded.epoch)
    a, b = jobs
    controller = theatre.controller
    life = controller.get(a).life
    first = theatre.ask(a, "rollout")
    assert first is not None and len(first.nodes) == 2
    assert not controller.awaited(a, life, first.epoch, 1)
    asked = Ask(life=controller.get(b).life, ticket="b1", wanted="rollout", partly=True)
    assert controller.ask(b, asked) is None
    assert controller.awaited(a, life, first.epoch, 1)
    theatre.time += 3.0
    controller.narrow(a, life, first.epoch, 1)
    begun = controller.ask(b, asked)
    assert begun is not None and len(begun.nodes) == 1
    assert controller.widened(b, controller.get(b).life, begun.epoch) is None
    theatre.time += 2.0
    theatre.ask(a, "train")
    assert controller.widened(b, controller.get(b).life, begun.epoch) is begun and len(begun.nodes) == 2
    assert theatre.on_disk() == theatre.in_memory()
    theatre.time += 3.0
    theatre.ask(b, "train")
    assert controller.get(a).progress.took.t_roll == 5.0
    assert controller.get(b).progress.took.t_roll == 2.0 / 2 + 3.0
