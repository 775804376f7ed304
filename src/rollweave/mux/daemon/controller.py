"""Makes every transition of the daemon's state, one method each: check, change, write to the disk, then answer.

The controller starts no process and waits for nothing. The daemon asks it what should be (a job that should run and has
no process, a process that should not run) and makes it so, as often as needed: after a crash at any point, asking again
is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rollweave.errors import RollweaveError
from rollweave.mux.daemon.admission import Admission, NeverFits
from rollweave.mux.daemon.records import Ending, JobRecord, PhaseTimes, check_slo
from rollweave.mux.daemon.store import JobEvent, Store, StoreError
from rollweave.mux.decisions.invariants import PlanError
from rollweave.mux.model.job import ProfileError
from rollweave.mux.permits import Node, Permit, PermitTable, StalePermit
from rollweave.pipelines.permits import SharedPool
from rollweave.runtimes.machine import Process

Wanted = Literal["start", "rollout", "train"]
"""What a process asks a permit for: its cold start, or a phase."""

KILLS = 3
"""A job that is killed more often than this without completing an iteration in between is given up."""

LEASE_SECONDS = 120.0
LEASE_FACTOR = 10.0
"""A permit is good for ten times the worst case, and at least two minutes; a process that holds it longer hangs."""

_TABLE = TypeAdapter(PermitTable)


class UnknownJob(RollweaveError):
    pass


class Refused(RollweaveError):
    """An order that makes no sense for this job."""


class FiniteMessage(BaseModel):
    """A message that becomes part of the daemon's state, which holds finite numbers only."""

    model_config = ConfigDict(allow_inf_nan=False)


class Ask(FiniteMessage):
    """The message by which a process hands its permit back and asks for the next."""

    life: int
    ticket: str
    wanted: Wanted
    epoch: int | None = None
    """The permit it hands back."""
    step: int = 0
    tokens: int = 0
    warm_seconds: float = 0.0
    """Seconds between the grant and the start of the phase that ends here."""
    partly: bool = False
    """It can begin on some of its nodes."""


class Controller:
    def __init__(self, store: Store, admission: Admission, now: Callable[[], float]) -> None:
        self.store = store
        self._now = now
        self._began = now()
        self._events: list[JobEvent] = []
        self.admission = admission
        self.load()

    def load(self) -> None:
        """Read the state from the disk: at the start, and after a transition that failed halfway."""
        self.jobs, self.set_aside = self.store.read_jobs()
        """Stored jobs that cannot be read are set aside, with the reason: the others go on without them."""
        self._numbered = self.store.fact("numbered") or len(self.jobs)
        self._events.clear()
        try:
            self.permit_table = _TABLE.validate_python(self.store.fact("permits") or {})
            self.admission.restore(self.store.fact("scheduler"))
            self._forget_set_aside()
            self._check_places()
        except (PlanError, ProfileError, ValidationError) as error:
            raise StoreError(
                f"{self.store.path}: the jobs cannot go on, their stored places contradict each other ({error}); "
                "start with another --state folder and submit them again (their runs stay in this one)"
            ) from error

    def _forget_set_aside(self) -> None:
        """A job that cannot be read keeps no place, and no other job waits for it."""
        for job in self.set_aside:
            self.permit_table.leave(job)
            if job in self.admission.state.home:
                self.admission.depart(job, self._now())
        if self.set_aside:
            self.permit_table.reseat(self.admission.seats())

    def _check_places(self) -> None:
        """A job has a place exactly while it runs."""
        running = sorted(job.id for job in self.jobs.values() if job.state == "running")
        placed = sorted(self.admission.state.home)
        if running != placed:
            raise PlanError(f"{_listed(running)} run, but those with a place are: {_listed(placed)}")

    # -------------------------------------------------------------------------------------------- from people

    def submit(self, record: JobRecord, write: Callable[[str], None]) -> JobRecord:
        """Book a job under a new name. Its file is written before: a job that is known has one."""
        check_slo(record.slo)
        self.admission.check_fits(record.n_roll, record.n_train, record.memory_gb)
        self._numbered += 1
        record.id = f"{record.name}-{self._numbered}"
        record.submitted = self._now()
        write(record.id)
        self.jobs[record.id] = record
        self._say("submitted", record, f"SLO {record.slo:g}, {record.steps} steps")
        self._commit(record)
        return record

    def cancel(self, job: str) -> JobRecord:
        record = self.get(job)
        if record.over:
            raise Refused(f"job {job} is {record.state} already; there is nothing to cancel")
        self._end(record, "cancelled", "")
        self._place_waiting()
        self._commit(record)
        return record

    def resubmit(self, job: str) -> JobRecord:
        """An ended job arrives again and goes on from its last checkpoint."""
        record = self.get(job)
        if not record.over or record.state == "finished":
            raise Refused(f"job {job} is {record.state}; only a failed or cancelled job can be submitted again")
        self.admission.check_fits(record.n_roll, record.n_train, record.memory_gb)
        if record.process is not None:
            raise Refused(f"job {job} has not ended yet; try again in a moment")
        record.state = "profiling" if record.profile is None else "waiting"
        record.error, record.ended, record.kills = "", None, 0
        self._say("resubmitted", record, f"from step {record.progress.step}")
        self._place_waiting()
        self._commit(record)
        return record

    def get(self, job: str) -> JobRecord:
        if job not in self.jobs:
            raise UnknownJob(f"there is no job {job!r} (known: {_listed(self.jobs)}); see `rollweave jobs`")
        return self.jobs[job]

    # ----------------------------------------------------------------------------------------- from processes

    def ask(self, job: str, ask: Ask) -> Permit | None:
        """Hand back the last permit and ask for the next. Returns it if it is granted; None: ask again."""
        record, table = self._current(job, ask.life), self.permit_table
        if table.ticket(job) != ask.ticket:
            if ask.epoch not in (None, record.handed_back):
                self._hand_back(record, ask)
            if record.state != "waiting":
                self._get_in_line(record, ask)
            table.grant(self._now())
            self._commit(record)
        return table.permits.get(job)

    def awaited(self, job: str, life: int, epoch: int, keep: int) -> bool:
        """Whether another job could begin if this permit kept its first `keep` nodes only."""
        self._current(job, life)
        return self.permit_table.is_awaited(job, epoch, keep, self._now())

    def narrow(self, job: str, life: int, epoch: int, keep: int) -> Permit:
        """A rollout of which little is left goes on on fewer nodes."""
        record = self._current(job, life)
        self.permit_table.narrow(job, epoch, keep)
        self._say("narrowed", record, f"the rest of its rollout runs on {keep} node(s)")
        self.permit_table.grant(self._now())
        self._commit(record)
        return self.permit_table.permits[job]

    def widened(self, job: str, life: int, epoch: int) -> Permit | None:
        """The permit once it has all its nodes."""
        self._current(job, life)
        permit = self.permit_table.check(job, epoch)
        return None if permit.owed else permit

    def profiled(self, job: str, life: int, measured: PhaseTimes, memory_gb: float) -> None:
        record = self._current(job, life)
        record.profile, record.memory_gb = measured, memory_gb
        self._say("profiled", record, f"rollout {measured.t_roll:.2f} s, train {measured.t_train:.2f} s, worst case")
        self._commit(record)

    def _current(self, job: str, life: int) -> JobRecord:
        record = self.get(job)
        placed = record.state in ("profiling", "running")
        if life != record.life or record.process is None or not placed:
            newest = record.life + (record.process is None)
            now = f"run by its process number {newest}" if placed else record.state
            raise StalePermit(f"process number {life} of job {job} has no say any more: the job is {now}")
        return record

    def _hand_back(self, record: JobRecord, ask: Ask) -> None:
        assert ask.epoch is not None
        permit = self.permit_table.give_back(record.id, ask.epoch)
        record.handed_back = ask.epoch
        if permit.visit:
            if ask.wanted == "rollout" and (record.state == "running" or ask.step == 0):
                record.cold_seconds += self._measured_seconds(permit)  # of the visit to load everything
            return
        progress, seconds = record.progress, self._measured_seconds(permit)
        progress.tokens += ask.tokens
        record.warm_seconds = max(record.warm_seconds, ask.warm_seconds)
        if permit.pool == "rollout":
            progress.worked.t_roll += seconds
            progress.took.t_roll = seconds
        else:
            progress.worked.t_train += seconds
            progress.took.t_train = seconds
            progress.step, record.kills = ask.step, 0
            self._observe(record)

    def _measured_seconds(self, permit: Permit) -> float:
        """Seconds of work under a permit that ends now; 0 if they are not known: a phase that began under an earlier
        daemon may have ended while no daemon ran."""
        return permit.worked(self._now()) if permit.since >= self._began else 0.0

    def _observe(self, record: JobRecord) -> None:
        """Tell the scheduler what an iteration really took. A job that has drifted out of its place arrives again."""
        drifted = self.admission.observe(record.id, record.progress.took, self._now())
        if drifted is not None:
            record.profile, record.state = drifted, "waiting"
            self._say("drifted", record, f"rollout {drifted.t_roll:.2f} s, train {drifted.t_train:.2f} s; placed anew")
            self._place_waiting()
        self.permit_table.reseat(self.admission.seats())

    def _get_in_line(self, record: JobRecord, ask: Ask) -> None:
        if ask.wanted == "start":
            record.cold_seconds = self._now() - record.launched
        visit = ask.wanted == "start" or record.state == "profiling"
        pool: SharedPool = "rollout" if ask.wanted == "rollout" else "train"
        if not visit:
            seat = self.admission.seat(record.id)
            if record.id not in self.permit_table.tenants:
                self.permit_table.join(record.id, seat)
            nodes = seat.nodes[pool]
            if pool == "rollout":
                self._count_iteration(record)
            elif ask.step + 1 >= record.steps:
                self.permit_table.leave_after_this_lap(record.id)
        else:
            nodes = self._nodes_to_visit(record, pool)
        alone_for = self._longest_phase() if ask.wanted == "start" else None
        self.permit_table.ask(record.id, ask.ticket, pool, nodes, visit, alone_for, ask.partly)

    def _longest_phase(self) -> float | None:
        """Seconds for which a start may keep other jobs waiting; None while there are no others."""
        placed = [job.profile for job in self.jobs.values() if job.id in self.permit_table.tenants and job.profile]
        return max((max(profile.t_roll, profile.t_train) for profile in placed), default=None)

    def _nodes_to_visit(self, record: JobRecord, pool: SharedPool) -> tuple[Node, ...]:
        if record.state == "running":
            pinned = self.admission.seat(record.id).nodes
            busy = any(self.permit_table.holder(node) or self.permit_table.line(node) for node in pinned[pool])
            return pinned["rollout" if busy else pool]
        return self.admission.quietest(pool, record.n_roll if pool == "rollout" else record.n_train)

    def _count_iteration(self, record: JobRecord) -> None:
        progress, now = record.progress, self._now()
        if progress.asked_at is not None:
            seconds = now - progress.asked_at
            progress.iterations += 1
            progress.seconds += seconds
            progress.slowest = max(progress.slowest, seconds)
        if progress.first_ready is None:
            progress.first_ready = now
        progress.asked_at = now

    # ------------------------------------------------------------------------------------- from the daemon

    def to_start(self) -> list[JobRecord]:
        """Jobs that should have a process and have none."""
        return [job for job in self.jobs.values() if job.state in ("profiling", "running") and job.process is None]

    def to_end(self) -> list[JobRecord]:
        """Jobs whose process should not run: they have no place (any more), or hold a permit far too long.

        A job could not hand back its permit while no daemon ran, so only the time of this daemon counts.
        """
        over = [job for job in self.jobs.values() if (job.over or job.state == "waiting") and job.process is not None]
        held = [(permit, self._now() - max(permit.since, self._began)) for permit in self.permit_table.permits.values()]
        late = [self.jobs[permit.job] for permit, seconds in held if seconds > self._lease(permit)]
        for job in late:
            self._say("hangs", job, "holds a permit for ten times its worst case: its process is ended")
        return over + late

    def tick(self) -> bool:
        """Grant what time alone has made free. Returns whether there was anything."""
        granted = self.permit_table.grant(self._now())
        if granted:
            self._commit()
        return bool(granted)

    def starting(self, job: str) -> int:
        """A process is about to be started; returns its number. What an earlier one says is refused from now on."""
        record = self.get(job)
        record.life += 1
        record.launched = self._now()
        self._forget_permits(record)
        self._commit(record)
        return record.life

    def started(self, job: str, process: Process) -> None:
        record = self.get(job)
        record.process = process
        self._say("started", record, f"process {process.pid}, number {record.life}")
        self._commit(record)

    def exited(self, job: str, how: Ending, error: str = "", steps: int = 0) -> None:
        """Its process is gone; `steps`: what it said it had trained, if it could."""
        record = self.get(job)
        record.process = None
        record.progress.step = max(record.progress.step, steps)
        if record.state in ("profiling", "running"):
            self._after_exit(record, how, error)
        self._forget_permits(record)
        self._place_waiting()
        self._commit(record)

    def stopped(self, job: str) -> None:
        """Its process ended because the daemon stops its jobs: it goes on when the daemon is started again."""
        record = self.get(job)
        record.process = None
        if record.state == "running":
            record.state = "waiting"
            self.admission.depart(record.id, self._now())
        self._forget_permits(record)
        self._commit(record)

    def place_waiting(self) -> None:
        """At the start: place the jobs that waited when the daemon stopped."""
        self._place_waiting()
        self._commit()

    def _after_exit(self, record: JobRecord, how: Ending, error: str) -> None:
        profiling = record.state == "profiling"
        if profiling and record.profile is not None:
            record.state = "waiting"
        elif how == "finished" and not profiling:
            self._end(record, "finished", "")
        elif how == "failed":
            self._end(record, "failed", error)
        else:
            self._killed(record, error)

    def _killed(self, record: JobRecord, error: str) -> None:
        record.kills += 1
        if record.kills > KILLS:
            times = f"its process ended {record.kills} times before it had completed another iteration"
            self._end(record, "failed", f"{times}; the last words of its log: {error}")
            return
        self._say("killed", record, f"at step {record.progress.step}; it arrives again")
        if record.state == "running":
            record.state = "waiting"
            self.admission.depart(record.id, self._now())

    def _end(self, record: JobRecord, state: Literal["finished", "failed", "cancelled"], error: str) -> None:
        placed = record.state == "running"
        record.state, record.error, record.ended = state, error, self._now()
        if placed:
            self.admission.depart(record.id, self._now())
        if record.process is None or state == "finished":
            self._forget_permits(record)
        self._say(state, record, error or f"at step {record.progress.step}")

    def _forget_permits(self, record: JobRecord) -> None:
        self.permit_table.leave(record.id)
        record.progress.asked_at = None
        self.permit_table.reseat(self.admission.seats())
        self.permit_table.grant(self._now())

    def _place_waiting(self) -> None:
        """Place waiting jobs, oldest first. One that does not fit keeps its place; smaller ones may go ahead. One that
        would not fit into empty pools has failed: a job measured its memory, or the daemon has fewer nodes now."""
        for record in self.jobs.values():
            if record.state == "waiting":
                self._place(record)
        self.permit_table.reseat(self.admission.seats())

    def _place(self, record: JobRecord) -> None:
        try:
            self.admission.check_fits(record.n_roll, record.n_train, record.memory_gb)
        except NeverFits as error:
            self._end(record, "failed", str(error))
            return
        placed, record.why = self.admission.arrive(record, self._now())
        if placed:
            record.state = "running"
            self._say("placed", record, record.why[0])

    def held_seconds(self, node: Node) -> float | None:
        return next((self._now() - p.since for p in self.permit_table.permits.values() if node in p.nodes), None)

    def _lease(self, permit: Permit) -> float:
        """Seconds after which a job that still holds the permit hangs."""
        profile = self.jobs[permit.job].profile
        if permit.visit or profile is None:
            return LEASE_SECONDS * LEASE_FACTOR
        phase = profile.t_roll if permit.pool == "rollout" else profile.t_train
        return max(LEASE_SECONDS, LEASE_FACTOR * phase)

    # ------------------------------------------------------------------------------------------------- the disk

    def _say(self, name: str, record: JobRecord, text: str) -> None:
        self._events.append((self._now(), name, record.id, text))

    def _commit(self, *changed: JobRecord) -> None:
        """Write the jobs that changed or of which there is something to say; and the waiting ones, because their
        reasons to wait may change with every transition."""
        named = {record.id for record in changed} | {job for _, _, job, _ in self._events}
        jobs = [record for record in self.jobs.values() if record.id in named or record.state == "waiting"]
        self.store.save(jobs, self.facts(), self._events)
        self._events.clear()

    def facts(self) -> dict[str, Any]:
        """The state that changes together and belongs to no single job."""
        return {
            "permits": _TABLE.dump_python(self.permit_table, mode="json"),
            "scheduler": self.admission.dump(),
            "numbered": self._numbered,
        }


def _listed(jobs: Iterable[str]) -> str:
    return ", ".join(jobs) or "none"
