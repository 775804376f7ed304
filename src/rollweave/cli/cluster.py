"""`rollweave cluster RUN | CLUSTER.yaml`: pools, their nodes, and which worker is bound to which, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rollweave.cli.options import AsJson, RunFolderArgument

Where = Annotated[
    Path,
    typer.Argument(metavar="RUN|CLUSTER.yaml", help="A run folder; or a cluster file, to compare with a Ray cluster."),
]
Address = Annotated[
    str, typer.Option(help="The Ray cluster to look at, for a cluster file: HOST:PORT, or `auto` on one of its nodes.")
]


def cluster(where: Where, address: Address = "auto", as_json: AsJson = False) -> None:
    """Show the pools of a run: nodes, bound workers and the reasons. For a cluster file: what a Ray cluster has of it.

    A cluster file whose pools the Ray cluster cannot fill ends with code 2 and says what is missing.
    """
    from rollweave.observability.jsonl import encode

    found = _of_run(where) if where.is_dir() else _of_file(where, address)
    typer.echo(encode(found) if as_json else _drawn(found))


def _of_run(run: Path) -> Mapping[str, Any]:
    from rollweave.errors import RunFolderError
    from rollweave.observability.status import read_status

    status = read_status(run)
    places: Mapping[str, Any] = status.now.get("places") or {}
    if not places:
        raise RunFolderError(
            f"{run} says nothing of nodes yet ({status.state}): it has not started its workers, or runs inline, in one "
            "process"
        )
    return places


def _of_file(file: Path, address: str) -> Mapping[str, Any]:
    from rollweave.config.cluster import ClusterConfig
    from rollweave.config.load import load_file
    from rollweave.observability.events import Recorder
    from rollweave.observability.places import Places
    from rollweave.runtimes.ray import connected, live_nodes
    from rollweave.runtimes.resources import ResourceManager

    pools = load_file(file, ClusterConfig)
    places = Places()
    recorder = Recorder(lambda: 0.0)
    recorder.sinks.append(places)
    with connected(address):
        resources = ResourceManager(pools, recorder, labelled=True)
        resources.see(live_nodes())
    resources.check()
    return places.snapshot() | {"pools": {pool.name: resources.addresses(pool) for pool in pools.pools}}


def _drawn(found: Mapping[str, Any]) -> str:
    lines = ["this machine has lost contact with all other nodes, and waits"] if found.get("cut_off") else []
    for node in found["nodes"]:
        labels = ",".join(f"{key}={value}" for key, value in (node.get("labels") or {}).items())
        facts = f"{node.get('cores', '?')} cores  {labels}".rstrip()
        lines.append(f"node {node['address']}  {facts}" + ("  DOES NOT ANSWER" if node["state"] == "silent" else ""))
    for name, pool in (found.get("pools") or {}).items():
        lines.append(f"pool {name}  {', '.join(pool)}")
    width = max(map(len, found["workers"]), default=0)
    for worker, place in found["workers"].items():
        elsewhere = "" if place["preferred"] else "  (not its own pool)"
        lines.append(f"{worker:{width}}  on {place['node']}{elsewhere}: {place['reason']}")
    return "\n".join(lines)


def scale(
    run: RunFolderArgument,
    wanted: Annotated[
        list[str],
        typer.Argument(metavar="POOL=ENGINES", help="How many engines a pool is to have, e.g. rollout=3."),
    ],
) -> None:
    """Change the number of engines of a running job on Ray. Engines join and leave while it goes on."""
    from rollweave.runs.scale import order_engines

    for line in order_engines(run, wanted):
        typer.echo(line)
