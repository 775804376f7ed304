"""ResourceManager: which node each worker is bound to, and why. It is told of nodes and decides; it calls nothing.

    pool h20 ──labels──▶ nodes that carry pool=h20
    bind       a node of the worker's own pool that has room, else one of a compatible pool, else none: it waits
    returning  workers that are bound elsewhere although their own pool has room again

Every binding is an event with its reason. On one machine without labels all pools are cores of that machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.errors import ConfigError
from rollweave.observability.events import Emitter

NodeId = str


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of a Ray cluster."""

    id: NodeId
    address: str
    cores: int
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class Need:
    """What a worker asks for."""

    worker: str
    pool: str = ""
    """The pool it belongs to; empty: it may run on any node."""
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """A worker's place."""

    need: Need
    node: ClusterNode
    reason: str
    preferred: bool = True
    """Whether the node is one of its own pool."""


class ResourceManager:
    def __init__(self, cluster: ClusterConfig | None, recorder: Emitter, labelled: bool, home: NodeId = "") -> None:
        """`labelled`: nodes say by their labels which pool they belong to; otherwise every node is in every pool.
        `home`: the driver's node, where a worker without a pool runs."""
        self._cluster = cluster
        self._pools = {pool.name: pool for pool in cluster.pools} if cluster is not None else {}
        self._recorder = recorder
        self._labelled = labelled
        self._home = home
        self._nodes: dict[NodeId, ClusterNode] = {}
        self.bindings: dict[str, Binding] = {}
        """By worker."""

    # -------------------------------------------------------------------------------------------------- nodes

    @property
    def nodes(self) -> list[ClusterNode]:
        return list(self._nodes.values())

    def see(self, nodes: Iterable[ClusterNode]) -> bool:
        """These nodes are there now, and no others; returns whether that is news."""
        seen = {node.id: node for node in nodes}
        news = seen.keys() != self._nodes.keys()
        for id in seen.keys() - self._nodes.keys():
            node = seen[id]
            self._recorder.emit("node.join", node=id, address=node.address, cores=node.cores, labels=dict(node.labels))
        for id in self._nodes.keys() - seen.keys():
            self._recorder.emit("node.gone", node=id, address=self._nodes[id].address)
        self._nodes = seen
        return news

    def check(self) -> None:
        """Refuse, before anything starts, a cluster file that asks for what is not there."""
        if not self._labelled:
            return
        for pool in self._pools.values():
            there = sum(node.cores for node in self._of(pool))
            if pool.role != "reward" and there < pool.count:
                raise ConfigError(
                    f"cluster: pool {pool.name} wants {pool.count} x {pool.device} on nodes with "
                    f"{_said(pool.node_labels)}, and the Ray cluster has {there} of them; its nodes: {self._listed()}; "
                    f"start a node with `ray start --labels {_said(pool.node_labels)} --num-cpus {pool.count} ...`, or "
                    "change count or labels of the pool"
                )

    def addresses(self, pool: Pool) -> list[str]:
        """Of the pool's nodes."""
        return [node.address for node in self._of(pool)]

    def _listed(self) -> str:
        said = [f"{node} ({node.cores} cores, {_said(node.labels) or 'no labels'})" for node in self._nodes.values()]
        return "; ".join(said) or "none"

    def _of(self, pool: Pool | None) -> list[ClusterNode]:
        if pool is None:
            return [self._nodes[self._home]] if self._home in self._nodes else self.nodes
        wanted = pool.node_labels.items()
        return [node for node in self.nodes if not self._labelled or wanted <= node.labels.items()]

    # ------------------------------------------------------------------------------------------------ bindings

    def bind(self, need: Need) -> Binding | None:
        """Find a worker its place. None: no node has room for it now."""
        self.bindings.pop(need.worker, None)
        own = self._pools.get(need.pool)
        binding = self._place(need, own) or self._fall_back(need, own)
        if binding is not None:
            self.bindings[need.worker] = binding
            self._tell(binding)
        return binding

    def release(self, worker: str) -> None:
        """The worker has left for good."""
        if self.bindings.pop(worker, None) is not None:
            self._recorder.emit("worker.unbound", worker=worker)

    def returning(self) -> list[str]:
        """Workers that are bound to another pool's node although their own has room again."""
        away = [one.need for one in self.bindings.values() if not one.preferred]
        return [need.worker for need in away if self._with_room(need, self._of(self._pools[need.pool]))]

    def _place(self, need: Need, pool: Pool | None) -> Binding | None:
        nodes = self._with_room(need, self._of(pool))
        if not nodes:
            return None
        node = max(nodes, key=lambda node: (self._free(node), -self._held(node)))
        if pool is None:
            return Binding(need, node, "it belongs to no pool: it runs beside the driver")
        return Binding(need, node, f"pool {pool.name}: {node} has {self._free(node)} of {node.cores} cores free")

    def _fall_back(self, need: Need, own: Pool | None) -> Binding | None:
        """Another pool whose devices are of the same kind and do work of the same kind."""
        if own is None or self._cluster is None:
            return None
        kind = self._cluster.device(own).kind
        why = "has no room" if self._of(own) else "has no node"
        for pool in self._pools.values():
            compatible = pool is not own and pool.role == own.role and self._cluster.device(pool).kind == kind
            if compatible and (found := self._place(need, pool)) is not None:
                reason = f"pool {own.name} {why}: fallback to pool {pool.name}, {found.node} has room"
                return Binding(need, found.node, reason, preferred=False)
        return None

    def _with_room(self, need: Need, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        return [node for node in nodes if self._free(node) >= need.cores]

    def _free(self, node: ClusterNode) -> int:
        return node.cores - sum(one.need.cores for one in self.bindings.values() if one.node.id == node.id)

    def _held(self, node: ClusterNode) -> int:
        return sum(one.node.id == node.id for one in self.bindings.values())

    def _tell(self, binding: Binding) -> None:
        self._recorder.emit(
            "worker.bound",
            worker=binding.need.worker,
            pool=binding.need.pool,
            node=binding.node.address,
            cores=binding.need.cores,
            preferred=binding.preferred,
            reason=binding.reason,
        )


def _said(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
