"""The machines of a run on Ray: what travels to them and back, and whether they answer.

Nodes share no disk. On each one but the driver's own a small actor, the `NodeWorker`, keeps a folder for the run: the
policy and the user's files arrive there, logs and checkpoints leave from there. Once a second it is asked how far the
logs have grown. A node that does not answer for `SILENT_SECONDS` is given up: its engines are lost to the fleet, its
episodes are leased again, and what its workers say later is refused. When it answers again it gets workers again.

If none of several other nodes answers, it is this machine that is cut off: then nothing is given up. Ray itself ends a
node that is cut off for about a minute, so after `CUT_OFF_SECONDS` the run ends with a sentence, in order.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rollweave.clock import Clock
from rollweave.errors import RollweaveError, WorkerDied
from rollweave.observability.events import Emitter
from rollweave.policies.atomic import atomic_folder
from rollweave.runtimes.ray_clients import WorkerHandle
from rollweave.runtimes.resources import ClusterNode, NodeId, ResourceManager
from rollweave.runtimes.travel import POLICY, Luggage
from rollweave.weights.shared_memory import shared_folder

T = TypeVar("T")

BEAT_SECONDS = 1.0

SILENT_SECONDS = 11.0
"""More than a link that was cut for five seconds takes to recover (TCP backs off, Ray's calls too: up to 9 s), and
little enough that work has moved within fifteen."""

QUIET_SECONDS = 5.0
"""If no node has answered for so long, none is given up: one that answers late is no proof that the others will not."""

CUT_OFF_SECONDS = 60.0
"""Ray's nodes end themselves after 64 s without contact, and everything on them without a word."""

CHUNK_BYTES = 16 * 2**20
LOG_BYTES = 2**18
"""Of one log in one beat."""


class NodeWorker:
    """The actor on a node: files in, files and logs out."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(shared_folder(Path(tempfile.gettempdir())))
        self._memory = self._stack.enter_context(shared_folder())
        (self._folder / "logs").mkdir()

    async def ready(self) -> Path:
        return self._folder

    async def memory(self) -> Path:
        """A folder in shared memory, for the weights that all engines of this node read."""
        return self._memory

    async def write(self, name: str, offset: int, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    async def read(self, name: str, offset: int, size: int = CHUNK_BYTES) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    async def files(self, name: str) -> list[str]:
        folder = self._folder / name
        return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]

    async def remove(self, name: str) -> None:
        shutil.rmtree(self._folder / name)

    async def beat(self, known: dict[str, int]) -> dict[str, bytes]:
        """What the logs have grown by, for a caller that has so many bytes of each."""
        grown = {}
        for path in (self._folder / "logs").iterdir():
            with path.open("rb") as file:
                file.seek(known.get(path.name, 0))
                if data := file.read(LOG_BYTES):
                    grown[path.name] = data
        return grown

    async def leave(self) -> None:
        """Remove the folders. (Those of a killed one are swept up by the next.)"""
        self._stack.close()


@dataclass(slots=True, eq=False)
class Away:
    """A node other than the driver's."""

    node: ClusterNode
    agent: WorkerHandle
    folder: Path
    """Of the run, on that machine."""
    memory: Path
    """Of the run, in the shared memory of that machine."""
    heard: float
    """When it last answered."""
    logs: dict[str, int] = field(default_factory=dict)
    """How many bytes of each log have come."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


class RayNodes:
    def __init__(
        self,
        home: NodeId,
        resources: ResourceManager,
        luggage: list[Luggage],
        logs: Path,
        clock: Clock,
        recorder: Emitter,
        start_agent: Callable[[ClusterNode], WorkerHandle],
        look: Callable[[], Awaitable[list[ClusterNode]]],
    ) -> None:
        """`look` asks Ray which nodes there are; the answer may not come while this machine is cut off."""
        self.home = home
        self.resources = resources
        self.changed = asyncio.Event()
        """A node came, went, or answers again: what found no place may find one now."""
        self._luggage = luggage
        self._logs = logs
        self._clock = clock
        self._recorder = recorder
        self._start_agent = start_agent
        self._look = look
        self._away: dict[NodeId, Away] = {}
        self._preparing: dict[NodeId, asyncio.Lock] = {}
        self._listed = resources.nodes
        """The nodes that Ray knows of."""
        self._cut_off: float | None = None
        """Since when no other node answers."""

    # ------------------------------------------------------------------------------------------------ to a node

    async def prepare(self, node: ClusterNode) -> None:
        """Bring what workers need to a node, once."""
        async with self._preparing.setdefault(node.id, asyncio.Lock()):
            if node.id == self.home or node.id in self._away:
                return
            with self._clock.wait("driver", f"the files of the run to reach {node}"):
                agent = self._start_agent(node)
                folder = await agent.call("ready")
                away = Away(node, agent, folder, await agent.call("memory"), self._clock.now())
                for luggage in self._luggage:
                    for file in luggage.files:
                        await _send(agent, luggage.folder / file, f"{luggage.name}/{file}")
            self._away[node.id] = away

    def policy(self, node: ClusterNode, here: Path) -> Path:
        """Where the policy lies on a node."""
        away = self._away.get(node.id)
        return here if away is None else away.folder / POLICY

    def memory(self, node: ClusterNode, here: Path) -> Path:
        """Where weights lie in the shared memory of a node."""
        away = self._away.get(node.id)
        return here if away is None else away.memory

    def moved_folders(self, node: ClusterNode) -> dict[str, str]:
        """Where the folders of the driver's machine lie on a node."""
        away = self._away.get(node.id)
        return {} if away is None else {str(one.folder): str(away.folder / one.name) for one in self._luggage}

    def log(self, node: ClusterNode, name: str) -> Path:
        """The file that a worker on this node writes its log into."""
        away = self._away.get(node.id)
        return (self._logs.absolute() if away is None else away.folder / "logs") / f"{name}.log"

    def carrier(self, node: ClusterNode | None) -> NodeCarrier:
        """Brings checkpoints of a trainer on this node to the driver's machine and back."""
        return NodeCarrier(self._away.get(node.id) if node is not None else None)

    async def close(self) -> None:
        """Remove what the run has brought to other machines, where they still answer."""
        with suppress(TimeoutError, WorkerDied):
            async with asyncio.timeout(BEAT_SECONDS):
                await asyncio.gather(*(away.agent.call("leave") for away in self._away.values()))

    # ------------------------------------------------------------------------------------------- while it answers

    async def while_reachable(self, worker: WorkerHandle, call: Awaitable[T]) -> T:
        """The answer to a call, or WorkerDied as soon as the worker's node is given up."""
        away = self._away.get(worker.node.id) if worker.node is not None else None
        if away is None:
            return await call
        answer, given_up = asyncio.ensure_future(call), asyncio.ensure_future(away.given_up.wait())
        try:
            await asyncio.wait([answer, given_up], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            silent = self._clock.now() - away.heard
            raise WorkerDied(
                f"{worker.name} is given up: its node {away.node} has not answered for {silent:.0f} s",
                worker.name,
                out_of_reach=True,
            )
        finally:
            answer.cancel()
            given_up.cancel()

    async def until_returning(self, worker: str) -> None:
        """Waits until a worker that is bound to another pool's node could work in its own."""
        while worker not in self.resources.returning():
            await self._clock.sleep(BEAT_SECONDS)

    async def watch(self) -> None:
        """Keep contact with all nodes, until cancelled."""
        for away in self._away.values():  # they were not asked while the workers started
            away.heard = self._clock.now()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes())
            beating: dict[NodeId, asyncio.Task[None]] = {}
            while True:
                for id, away in self._away.items():
                    if id not in beating or beating[id].done():
                        beating[id] = tasks.create_task(self._beat(away))
                self._judge()
                await self._clock.sleep(BEAT_SECONDS)

    async def _follow_nodes(self) -> None:
        while True:
            self._listed = await self._look()
            for id in self._away.keys() - {node.id for node in self._listed}:
                self._give_up(self._away.pop(id))
            self._tell_resources()
            await self._clock.sleep(BEAT_SECONDS)

    def _tell_resources(self) -> None:
        """Workers may be bound to the nodes that Ray knows of and that answer."""
        silent = {id for id, away in self._away.items() if away.given_up.is_set()}
        if self.resources.see(node for node in self._listed if node.id not in silent):
            self.changed.set()

    async def _beat(self, away: Away) -> None:
        try:
            grown = await away.agent.call("beat", away.logs)
        except WorkerDied as death:
            if not death.out_of_reach:  # the actor is gone, and the node may live: what is bound to it makes a new one
                self._give_up(away)
                self._away.pop(away.node.id, None)
            return
        away.heard = self._clock.now()
        if away.given_up.is_set():
            self._recorder.emit("node.back", node=away.node.id, address=away.node.address)
            away.given_up = asyncio.Event()
            self._tell_resources()
        for name, data in grown.items():
            away.logs[name] = away.logs.get(name, 0) + len(data)
            with (self._logs / name).open("ab") as file:
                file.write(data)

    def _judge(self) -> None:
        """Give up nodes that are silent, unless it is this machine that is cut off."""
        now = self._clock.now()
        quiet = now - max((away.heard for away in self._away.values()), default=now)
        if len(self._away) > 1 and quiet > QUIET_SECONDS:
            self._be_cut_off(now, quiet)
            return
        if self._cut_off is not None:
            self._recorder.emit("driver.back", seconds=now - self._cut_off)
            self._cut_off = None
            for away in self._away.values():  # the others get as much time to answer as this one had
                away.heard = max(away.heard, now - QUIET_SECONDS)
        for away in [away for away in self._away.values() if now - away.heard > SILENT_SECONDS]:
            self._give_up(away)

    def _be_cut_off(self, now: float, seconds: float) -> None:
        if self._cut_off is None:
            self._cut_off = now - seconds
            self._recorder.emit("driver.cut_off", seconds=seconds, nodes=len(self._away))
        if seconds > CUT_OFF_SECONDS:
            raise RollweaveError(
                f"this machine has had no contact with any of the {len(self._away)} other nodes for {seconds:.0f} s, "
                "and Ray ends nodes that are cut off for longer: the run stops here. When the network is back, go on "
                "with `rollweave train --resume RUN`"
            )

    def _give_up(self, away: Away) -> None:
        if not away.given_up.is_set():
            silent = self._clock.now() - away.heard
            self._recorder.emit("node.silent", node=away.node.id, address=away.node.address, seconds=silent)
            away.given_up.set()
            self._tell_resources()


@dataclass(frozen=True, slots=True)
class NodeCarrier:
    """Carries checkpoints between a node and the driver's machine (a `CheckpointCarrier`)."""

    away: Away | None
    """None: the trainer is on the driver's machine, and writes where they belong."""

    def there(self, folder: Path) -> Path:
        return folder if self.away is None else self.away.folder / folder.name

    async def fetch(self, folder: Path) -> None:
        if self.away is None:
            return
        agent = self.away.agent
        with atomic_folder(folder) as partial:
            for name in await agent.call("files", folder.name):
                await _fetch(agent, f"{folder.name}/{name}", partial / name)
        await agent.call("remove", folder.name)

    async def send(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")) if self.away is not None else ():
            if path.is_file() and self.away is not None:
                await _send(self.away.agent, path, f"{folder.name}/{path.relative_to(folder)}")


async def _send(agent: WorkerHandle, path: Path, name: str) -> None:
    with path.open("rb") as file:
        offset = 0
        while (data := file.read(CHUNK_BYTES)) or not offset:
            await agent.call("write", name, offset, data)
            offset += len(data)
            if not data:
                return


async def _fetch(agent: WorkerHandle, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while data := await agent.call("read", name, file.tell()):
            file.write(data)
