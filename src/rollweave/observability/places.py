"""Which nodes a run has, and which worker is bound to which, and why: for `rollweave cluster` and `rollweave status`.

A node's state: `there`, or `silent` (it does not answer, and was given up). A node that is gone is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollweave.observability.events import Event


@dataclass(slots=True)
class Places:
    """Hears all events of a run."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By id: address, cores, labels, state."""
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: pool, node, cores, whether the node is of its own pool, and why it is there."""
    cut_off: bool = False
    """This machine has lost contact with all others."""

    def __call__(self, event: Event) -> None:
        data: dict[str, Any] = event.data
        match event.name:
            case "node.join":
                self.nodes[data["node"]] = {key: data[key] for key in ("address", "cores", "labels")} | {
                    "state": "there"
                }
            case "node.silent":
                self.nodes.setdefault(data["node"], {"address": data["address"]})["state"] = "silent"
            case "node.back":
                self.nodes.setdefault(data["node"], {"address": data["address"]})["state"] = "there"
            case "node.gone":
                if self.nodes.get(data["node"], {}).get("state") != "silent":
                    self.nodes.pop(data["node"], None)
            case "worker.bound":
                self.workers[data["worker"]] = {key: data[key] for key in WORKER}
            case "worker.unbound":
                self.workers.pop(data["worker"], None)
            case "driver.cut_off":
                self.cut_off = True
            case "driver.back":
                self.cut_off = False

    def snapshot(self) -> dict[str, Any]:
        return {"nodes": list(self.nodes.values()), "workers": self.workers, "cut_off": self.cut_off}


WORKER = ("pool", "node", "cores", "preferred", "reason")
