"""Worker and Cluster: the papers' interface for people who write workers of their own.

A `Worker` is one process of a role. A `Cluster` starts the workers of one class on the pools of a cluster file, and has
their decorated methods: calling one calls the workers that its decorators say.

    pools = load_file(Path("cluster.yaml"), ClusterConfig)
    async with Cluster(pools, Generator, resources=ray_resources(pools)) as generators:
        await generators.update(3)                                  # every worker: a list
        await generators.generate(tokens, tag_name="frozen_lake")   # one worker: its result

It is a thin layer over Ray actors, which the same `ResourceManager` binds to nodes as the workers of a run; without
`resources` they are objects in this process. It starts nothing again: a worker that is gone is named, and so is what
the others have done.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from rollweave.cluster.decorators import Declared, ServerlessFunction, declared_by
from rollweave.cluster.resolve import CallChoice, WorkerRole, WorkerSeat, function_at, seats, suiting
from rollweave.config.cluster import ClusterConfig
from rollweave.errors import ConfigError, WorkerDied, WorkersFailed
from rollweave.observability.events import Emitter, Recorder
from rollweave.runtimes.ray import actor_on, live_nodes
from rollweave.runtimes.ray_clients import WorkerHandle
from rollweave.runtimes.resources import Need, ResourceManager
from rollweave.targets import nearest

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """One process of a cluster. A subclass says its role and decorates the methods that are called on it."""

    role: ClassVar[WorkerRole] = "generate"

    def __init__(self, seat: WorkerSeat) -> None:
        self.seat = seat


W = TypeVar("W", bound=Worker)


class _Handle(Protocol):
    async def call(self, method: str, *arguments: Any) -> Any:
        """Raises what the worker raised, or WorkerDied."""
        ...

    def end(self) -> None: ...


class _Shell:
    """A worker where it lives, with the functions that its methods declare."""

    def __init__(self, kind: type[Worker], seat: WorkerSeat, arguments: Sequence[Any], base: Path) -> None:
        self._make = partial(kind, seat, *arguments)
        self._functions = _functions(kind)
        self._base = base

    async def ready(self) -> None:
        """Make the worker. Not done when the actor is made: what fails there cannot be told from a crash."""
        self._worker = self._make()
        for attribute, function in self._functions.items():
            setattr(self._worker, attribute, function_at(function, self._base))

    async def invoke(self, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        result = getattr(self._worker, method)(*arguments, **options)
        return await result if inspect.isawaitable(result) else result


class _Inline:
    """A worker in this process."""

    def __init__(self, shell: _Shell) -> None:
        self._shell = shell

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._shell, method)(*arguments)

    def end(self) -> None:
        pass


class Cluster(Generic[W]):
    """The workers of one class."""

    def __init__(
        self,
        pools: ClusterConfig,
        kind: type[W],
        *arguments: Any,
        resources: ResourceManager | None = None,
        base: Path = Path(),
    ) -> None:
        """`arguments` are passed on to each worker after its seat. `resources`: the nodes of a Ray cluster, shared by
        all clusters there; none: in this process. `base`: where `local://file.py:name` starts."""
        self.seats = seats(pools, kind.role)
        self.gone: dict[int, str] = {}
        """Rank -> how it was lost."""
        self._pools = pools
        self._resources = resources
        self._kind = kind
        self._arguments = arguments
        self._base = base
        self._methods = _methods(kind)
        self._handles: list[_Handle] = []
        self._open: Counter[int] = Counter()
        """Rank -> calls that it has not answered."""
        for function in _functions(kind).values():
            function_at(function, base)  # refused before anything starts

    async def __aenter__(self) -> Cluster[W]:
        try:
            for seat in self.seats:
                self._handles.append(self._start(seat))
            await self._ask_all("the start", {seat.rank: ("ready",) for seat in self.seats})
        except BaseException:  # whatever ended the start: what was started ends with it
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        for handle in self._handles:
            handle.end()
        self._handles = []
        if self._resources is not None:
            for seat in self.seats:
                self._resources.release(self._name(seat))

    def _name(self, seat: WorkerSeat) -> str:
        return f"{self._kind.__name__.lower()}-{seat.rank}"

    def _start(self, seat: WorkerSeat) -> _Handle:
        if self._resources is None:
            return _Inline(_Shell(self._kind, seat, self._arguments, self._base))
        name, pool = self._name(seat), next(pool for pool in self._pools.pools if pool.name == seat.pool)
        cores = pool.tensor_parallel if self._pools.device(pool).kind == "cpu" else 0
        binding = self._resources.bind(Need(name, seat.pool, cores))
        if binding is None:
            raise ConfigError(
                f"{name}: no node of pool {seat.pool}, or of one like it, has {cores} cores free: start such a node, "
                "or lower the count of the pool"
            )
        shell = actor_on(_Shell, binding.node, cores, {})
        with _travelling(self._kind):
            actor = shell.remote(self._kind, seat, self._arguments, self._base.absolute())
        return WorkerHandle(actor, name, Path(f"{name}.log"), binding.node)

    # ---------------------------------------------------------------------------------------------------- calls

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """A decorated method of the workers: a list of results, or the result if one worker is called."""
        methods = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(f"{self._kind.__name__} has no decorated method {name!r}{nearest(name, methods)}")

        async def call(*arguments: Any, **options: Any) -> Any:
            many = methods[name].mode in ("execute_all", "scatter")
            results = await self._invoke(name, arguments, options)
            return results if many else results[0]

        return call

    async def gather(self, method: Callable[Concatenate[W, P], R], *arguments: P.args, **options: P.kwargs) -> list[R]:
        """The same with types: what each of the called workers returned, by rank."""
        return await self._invoke(method.__name__, arguments, options)

    def choose(self, name: str, tag_name: str = "default") -> CallChoice:
        """Which workers a call of a method may go to, and why."""
        declared = self._methods[name]
        living = [seat for seat in self.seats if seat.rank not in self.gone]
        if not living:
            raise WorkersFailed(f"{name}: all workers are gone: {self._losses()}", {}, {})
        if declared.mode is None:
            return suiting(tag_name, declared, self._pools.pools, living)
        if declared.mode == "rank_zero":
            living = [seat for seat in living if seat.rank == 0]
        if len(living) < (1 if declared.mode == "rank_zero" else len(self.seats)):
            raise WorkersFailed(f"{name}: nothing was called, because {self._losses()}", {}, {})
        return CallChoice(tuple(seat.rank for seat in living), f"mode {declared.mode}")

    async def _invoke(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        options = dict(options)
        declared = self._methods[name]
        tag = options.get("tag_name", "default")
        if "tag_name" not in inspect.signature(getattr(self._kind, name)).parameters:
            options.pop("tag_name", None)  # only to choose by
        ranks = self.choose(name, tag).ranks
        if declared.mode is None:
            ranks = (min(ranks, key=lambda rank: (self._open[rank], rank)),)
        parts = _parts(name, arguments, len(ranks)) if declared.mode == "scatter" else [list(arguments)] * len(ranks)
        calls = {rank: ("invoke", name, part, options) for rank, part in zip(ranks, parts, strict=True)}
        results = await self._ask_all(name, calls)
        return [item for part in results for item in part] if declared.mode == "scatter" else results

    async def _ask_all(self, name: str, calls: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        self._open.update(list(calls))  # at once: the next call looks at it
        asked = (self._ask(rank, *call) for rank, call in calls.items())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return self._all_of(name, dict(zip(calls, answers, strict=True)))

    async def _ask(self, rank: int, method: str, *arguments: Any) -> Any:
        try:
            return await self._handles[rank].call(method, *arguments)
        except WorkerDied as death:
            self.gone[rank] = _said(death)
            raise
        finally:
            self._open[rank] -= 1

    def _all_of(self, name: str, answers: Mapping[int, Any]) -> list[Any]:
        failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, BaseException)}
        results = {rank: answer for rank, answer in answers.items() if rank not in failures}
        if not failures:
            return list(results.values())
        if len(answers) == 1 and not isinstance(first := next(iter(failures.values())), WorkerDied):
            raise first  # a plain call of one worker raises what its method raised
        said = "; ".join(f"{self.seats[rank]}: {_said(error)}" for rank, error in failures.items())
        done = f"done by {', '.join(map(str, results))}" if results else "done by no worker"
        raise WorkersFailed(
            f"{name} failed on {len(failures)} of {len(answers)} workers ({done}): {said}", results, failures
        )

    def _losses(self) -> str:
        return "; ".join(f"{self.seats[rank]} is gone: {why}" for rank, why in self.gone.items())


def _said(error: BaseException) -> str:
    """A worker of one's own keeps no log: what its handle says of one is left out."""
    return str(error).partition("; ")[0] if isinstance(error, WorkerDied) else repr(error)


def _methods(kind: type[Worker]) -> dict[str, Declared]:
    found = {name: declared_by(getattr(kind, name)) for name in dir(kind)}
    methods = {name: declared for name, declared in found.items() if declared is not None}
    if not methods:
        raise ConfigError(
            f"{kind.__name__} declares no method: put register, hw_mapping or register_serverless on some"
        )
    for name in methods.keys() & set(dir(Cluster)):
        raise ConfigError(f"{kind.__name__}.{name}: a cluster has a method of that name itself: rename yours")
    return methods


def _functions(kind: type[Worker]) -> dict[str, ServerlessFunction]:
    """By attribute."""
    found = (declared.serverless for declared in _methods(kind).values())
    return {function.attribute: function for function in found if function is not None}


def _parts(name: str, arguments: Sequence[Any], workers: int) -> list[list[Any]]:
    """Of every argument, a list, one part for each worker; the first ones get one item more if it does not divide."""
    lengths = {len(argument) for argument in arguments}
    if len(lengths) != 1:
        raise ConfigError(f"{name}: mode scatter wants lists of one length, and got {sorted(lengths) or 'none'}")
    (length,) = lengths
    ends = [length * rank // workers for rank in range(workers + 1)]
    return [[argument[ends[rank] : ends[rank + 1]] for argument in arguments] for rank in range(workers)]


@contextmanager
def _travelling(kind: type[Worker]) -> Iterator[None]:
    """Inside, a class is sent as it is, because nodes need not have the file that defines it."""
    from ray import cloudpickle

    module = sys.modules[kind.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def ray_resources(pools: ClusterConfig, recorder: Emitter | None = None) -> ResourceManager:
    """The nodes of the Ray cluster that this process is connected to. Without labels on them every node is in every
    pool."""
    import ray

    if not ray.is_initialized():
        raise ConfigError("ray_resources: this process is not connected to a Ray cluster: call ray.init() first")
    nodes = live_nodes()
    resources = ResourceManager(pools, recorder or Recorder(lambda: 0.0), any(node.labels for node in nodes))
    resources.see(nodes)
    return resources
