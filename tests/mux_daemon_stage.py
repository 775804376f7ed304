"""A controller without a daemon: a store in a folder, a clock that the test moves, jobs that say what they are told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from rollweave.mux.daemon.admission import Admission
from rollweave.mux.daemon.controller import Ask, Controller, Wanted
from rollweave.mux.daemon.records import JobRecord, PhaseTimes
from rollweave.mux.daemon.store import Store
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.policy import policy
from rollweave.mux.permits import Permit
from rollweave.runtimes.machine import Process


@dataclass
class Theatre:
    folder: Path
    rollout_nodes: int = 1
    train_nodes: int = 1
    policy: str = "per-iteration"
    time: float = 1000.0
    tickets: count[int] = field(default_factory=lambda: count(1))
    pids: count[int] = field(default_factory=lambda: count(100))

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> Controller:
        """As a daemon that starts on what is on the disk."""
        admission = Admission(Scheduler(policy(self.policy)), self.rollout_nodes, self.train_nodes, host_gb=64.0)
        self.store = Store(self.folder / "state.db")
        self.controller = Controller(self.store, admission, lambda: self.time)
        return self.controller

    def submit(self, name: str, slo: float = 2.0, steps: int = 5, n_roll: int = 1, n_train: int = 1) -> str:
        record = JobRecord("", name, f"{name}.yaml", slo, 0.0, n_roll, n_train, steps)
        return self.controller.submit(record, lambda job: None).id

    def launch(self, job: str) -> None:
        self.controller.starting(job)
        self.controller.started(job, Process(next(self.pids), 1))

    def profile(self, job: str, t_roll: float = 3.0, t_train: float = 3.0) -> None:
        """From submission to a placement, if there is one."""
        self.launch(job)
        life = self.controller.get(job).life
        self.controller.profiled(job, life, PhaseTimes(t_roll, t_train), 1.0)
        self.controller.exited(job, "finished")

    def ask(self, job: str, wanted: Wanted, step: int = 0, ticket: str = "", life: int = 0) -> Permit | None:
        """Hand back what the job holds, if it does, and ask for the next."""
        held = self.controller.permit_table.permits.get(job)
        life = life or self.controller.get(job).life
        ticket = ticket or f"t{next(self.tickets)}"
        epoch = held.epoch if held else None
        return self.controller.ask(job, Ask(life=life, ticket=ticket, wanted=wanted, epoch=epoch, step=step))

    def running(self, name: str, **options: float) -> str:
        """A job that is placed, started and loaded."""
        job = self.submit(name, slo=options.pop("slo", 2.0))
        self.profile(job, **options)
        self.launch(job)
        permit = self.ask(job, "start")
        assert permit is not None
        self.controller.permit_table.give_back(job, permit.epoch)  # in no job's way until it asks for its first phase
        return job

    def on_disk(self) -> dict[str, object]:
        """What a daemon that started now would know."""
        store = Store(self.folder / "state.db")
        found = {"jobs": store.jobs(), "permits": store.fact("permits"), "scheduler": store.fact("scheduler")}
        store.close()
        return found

    def in_memory(self) -> dict[str, object]:
        facts = json.loads(json.dumps(self.controller.facts()))
        return {"jobs": self.controller.jobs, "permits": facts["permits"], "scheduler": facts["scheduler"]}
