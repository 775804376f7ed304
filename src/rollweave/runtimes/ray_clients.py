"""The driver's and the hosts' ends of the Ray workers.

An engine that dies is gone: each open call to it fails with `EngineGone`, and so does each later one. What becomes of
requests and updates is decided above: hosts route again, the driver goes on with the other engines.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rollweave.clock import Clock
from rollweave.config.control import Deadlines
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.errors import EngineGone, WorkerDied, first_cause
from rollweave.observability.events import Emitter
from rollweave.rollout.link import Packet
from rollweave.runtimes.resources import ClusterNode
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint

LOG_LINES = 12
"""How much of a dead worker's log is shown."""

CRASH = "Fatal Python error"
"""How `faulthandler` begins."""


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """A worker process as seen from another. Ray wraps what a worker raises into its own error, with a traceback for a
    message; here it comes out as it was raised. A worker that is gone cannot say why; the end of its log does."""

    actor: Any
    name: str
    log: Path
    """On the driver's machine; what a worker elsewhere says is brought there."""
    node: ClusterNode | None = None
    """Where it runs; None: where its caller runs."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Raises what the worker raised, or WorkerDied."""
        from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

        try:
            return await getattr(self.actor, method).remote(*arguments)
        except RayTaskError as error:
            cause = error.cause
            raise (first_cause(cause) if isinstance(cause, BaseExceptionGroup) else cause) from error
        except ActorUnschedulableError as error:
            message = f"the worker {self.name!r} could not be started: its node {self.node} is gone"
            raise WorkerDied(message, self.name, out_of_reach=True) from error
        except RayActorError as error:
            out_of_reach = isinstance(error, ActorUnavailableError)
            raise WorkerDied(self._death_message(error), self.name, out_of_reach) from error

    def tell(self, method: str, *arguments: Any) -> None:
        """Call without waiting for an answer. The worker notices what goes wrong in it (see `Mishaps`)."""
        getattr(self.actor, method).remote(*arguments)

    def end(self) -> None:
        """Make sure that it is gone, though it may only have been out of reach."""
        import ray

        ray.kill(self.actor)

    def _death_message(self, error: Exception) -> str:
        if getattr(error, "actor_init_failed", False):
            return f"the worker {self.name!r} could not be started: {error}"
        if self.log == Path():
            return f"{self.name} is gone, or the process there that keeps the files of the run"
        lines = self._last_lines()
        said = f"the end of {self.log}:\n{lines}" if lines else f"{self.log} is empty."
        return f"the worker {self.name!r} died: its process was killed or crashed; {said}\n{self._advice()}"

    def _advice(self) -> str:
        if self.name.startswith("host"):
            return "if an environment did it, set rollout.isolation=process: then it can only end its own process"
        return (
            "if it was killed for memory (see `dmesg`), lower engine.slots or training.microbatch_tokens; "
            "`rollweave doctor` looks for what crashes on this machine"
        )

    def _last_lines(self) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:  # another machine's log, or none yet
            return ""
        _, crash, trace = text.rpartition(CRASH)
        # A crash reports its innermost line first; everything else ends with what matters.
        lines = f"{crash}{trace}".splitlines()[:LOG_LINES] if crash else text.splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines)


WhileReachable = Callable[[WorkerHandle, Awaitable[Any]], Awaitable[Any]]
"""Waits for a call, as long as the worker's node answers; raises WorkerDied when it is given up."""


class Mishaps:
    """Keeps what goes wrong in a call without an answer for the task that awaits `raised`."""

    def __init__(self) -> None:
        self._first: BaseException | None = None
        self._happened = asyncio.Event()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the boundary between calls without an answer and `raised`
            self._first = self._first or error
            self._happened.set()

    async def raised(self) -> NoReturn:
        await self._happened.wait()
        assert self._first is not None
        raise self._first


MOST_DEATHS = 5
"""Of one worker, without a completed train step in between."""


class Restarts:
    """Counts the deaths of workers. One that was killed is started again; one that dies again and again without a train
    step in between was not unlucky: its cause will kill the next one too, and ends the run."""

    def __init__(self, recorder: Emitter) -> None:
        self._recorder = recorder
        self._deaths: Counter[str] = Counter()

    def died(self, death: WorkerDied) -> None:
        """Write a death down. Raises it when it is one too many."""
        self._recorder.emit("worker.died", worker=death.worker, cause=str(death))
        self._deaths[death.worker] += not death.out_of_reach
        if (deaths := self._deaths[death.worker]) >= MOST_DEATHS:
            raise WorkerDied(
                f"{deaths} times without a completed train step in between, {death}", death.worker
            ) from death

    def back(self, death: WorkerDied, seconds: float) -> None:
        """The dead worker's successor works, that long after its death."""
        self._recorder.emit("worker.restarted", worker=death.worker, seconds=seconds, cause=str(death))

    def progress(self) -> None:
        """A train step was completed."""
        self._deaths.clear()


RELEASE_SECONDS = 0.5
"""How long the end of a trajectory may wait for a request to travel with. A call costs about a millisecond of work; an
engine that needs the room sooner takes it from trajectories that wait for their environment."""


@dataclass(slots=True)
class Orders:
    """What a client wants of an engine, all that came up within one tick of its loop."""

    released: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)


class RayEngineClient:
    """An engine in another process, as a host sees it. Requests of one tick travel together, and so do the answers of
    one step."""

    def __init__(self, worker: WorkerHandle, client: str) -> None:
        self._worker = worker
        self._client = client
        self._open: dict[str, asyncio.Future[Completion]] = {}
        self._orders = Orders()
        self._flush_scheduled = False
        self._later: asyncio.TimerHandle | None = None
        """Until trajectories are released, if no request comes first."""
        self._gone: EngineGone | None = None
        self.on_refused: Callable[[int], None] = lambda answers: None
        """Hears how many answers came from the engine after it was given up."""

    async def run(self) -> None:
        """Bring answers back until the engine is gone; then every open request fails, and every later one."""
        try:
            while True:
                completions = await self._worker.call("collect", self._client)
                if self._gone is not None:
                    self.on_refused(len(completions))
                for completion in completions:
                    self._answer(completion)
        except WorkerDied as death:
            self.give_up(str(death))

    def give_up(self, cause: str) -> None:
        """The engine is gone, or so the driver says: what it still answers is refused."""
        if self._gone is None:
            self._gone = EngineGone(cause)
            for answer in self._open.values():
                if not answer.done():
                    answer.set_exception(EngineGone(cause))

    async def generate(self, request: Request) -> Completion:
        if self._gone is not None:
            raise EngineGone(str(self._gone))
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._open[request.id] = answer
        self._orders.requests.append(request)
        self._schedule_flush()
        try:
            return await answer
        finally:
            self._open.pop(request.id, None)

    def abort(self, request_id: str) -> None:
        self._orders.aborted.append(request_id)
        self._schedule_flush()

    def release(self, trajectory: str) -> None:
        self._orders.released.append(trajectory)
        if self._later is None and not self._flush_scheduled and self._gone is None:
            self._later = asyncio.get_running_loop().call_later(RELEASE_SECONDS, self._flush)

    def _answer(self, completion: Completion) -> None:
        answer = self._open.get(completion.id)
        if answer is not None and not answer.done():
            answer.set_result(completion)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._gone is None:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        orders, self._orders = self._orders, Orders()
        self._worker.tell("serve", self._client, orders)


@dataclass(frozen=True, slots=True)
class RayEngineControl:
    """An engine in another process, as the driver sees it."""

    worker: WorkerHandle
    reachable: WhileReachable

    async def suspend(self) -> None:
        await self._call("suspend")

    async def resume(self) -> None:
        await self._call("resume")

    async def prepare(self, version: int) -> Fingerprint:
        staged: Fingerprint = await self._call("prepare", version)
        return staged

    async def commit(self, version: int) -> None:
        await self._call("commit", version)

    async def stats(self) -> EngineStats:
        stats: EngineStats = await self._call("stats")
        return stats

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self.reachable(self.worker, self.worker.call("control", method, *arguments))
        except WorkerDied as death:
            raise EngineGone(str(death)) from death


class CheckpointCarrier(Protocol):
    """Brings checkpoints from the trainer's machine to the driver's and back; on one machine there is nothing to do."""

    def there(self, folder: Path) -> Path:
        """Where the trainer reads or writes a checkpoint that lies in this folder on the driver's machine."""

    async def fetch(self, folder: Path) -> None: ...

    async def send(self, folder: Path) -> None: ...


@dataclass(slots=True)
class RayTrainer:
    """A `Trainer` in another process."""

    worker: WorkerHandle
    clock: Clock
    deadlines: Deadlines
    restarts: Restarts
    carrier: CheckpointCarrier
    reachable: WhileReachable

    async def train_step(self, batch: Batch) -> Metrics:
        with self.clock.wait("driver", f"train step {batch.step}", self.deadlines.train_step):
            metrics: Metrics = await self._call("train_step", batch)
        self.restarts.progress()
        return metrics

    async def publish(self, version: int) -> Fingerprint:
        published: Fingerprint = await self._call("publish", version)
        return published

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        with self.clock.wait("driver", f"checkpoint {folder.name}", self.deadlines.train_step):
            await self._call("save", self.carrier.there(folder), driver)
            await self.carrier.fetch(folder)

    async def load(self, folder: Path) -> None:
        with self.clock.wait("driver", f"the trainer to load {folder.name}", self.deadlines.train_step):
            await self.carrier.send(folder)
            await self._call("load", self.carrier.there(folder))

    async def _call(self, method: str, *arguments: Any) -> Any:
        """A dead trainer is not replaced here: the session goes back to its checkpoint."""
        try:
            return await self.reachable(self.worker, self.worker.call(method, *arguments))
        except WorkerDied as death:
            self.restarts.died(death)
            raise


class RayTransport:
    """Packets from the driver to one host. What cannot be sent at all is a mishap: links speak in callbacks."""

    def __init__(self, worker: WorkerHandle) -> None:
        self._worker = worker
        self.mishaps = Mishaps()

    def __call__(self, packet: Packet[Any]) -> None:
        with self.mishaps.noticed():
            self._worker.tell("receive", packet)
