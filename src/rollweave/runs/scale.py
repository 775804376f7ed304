"""Checks an order of `rollweave scale` against the run, and hands it to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollweave.config.cluster import GENERATES
from rollweave.config.job import Job, RayRuntime
from rollweave.errors import ConfigError
from rollweave.observability.status import read_status
from rollweave.runs.folder import RunFolder
from rollweave.runtimes.orders import write_order
from rollweave.targets import nearest


def order_engines(run: Path, wanted: Sequence[str]) -> Iterator[str]:
    """Ask a running job for `POOL=ENGINES`; says what was asked for."""
    job = RunFolder.open(run).job()
    if not isinstance(job.runtime, RayRuntime):
        raise ConfigError(f"{run} runs inline, in one process with a fixed number of engines: use runtime.type=ray")
    if (state := read_status(run).state) != "running":
        raise ConfigError(f"{run} is not running ({state}): start it, or change the counts of its cluster file")
    orders = dict(_order(text, job) for text in wanted)
    write_order(run, orders)
    for pool, engines in orders.items():
        yield f"asked for {engines} engines in {f'pool {pool}' if pool else 'the run'}: see `rollweave cluster {run}`"


def _order(text: str, job: Job) -> tuple[str, int]:
    pool, equals, count = text.partition("=")
    if not equals or not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"{text!r}: expected POOL=ENGINES with at least one engine, as in rollout=3")
    pools = [one.name for one in job.cluster.pools if one.role in GENERATES] if job.cluster is not None else [""]
    if pool == "rollout" and pool not in pools and len(pools) == 1:
        pool = pools[0]  # the only one there is
    if pool not in pools:
        raise ConfigError(f"{text!r}: no pool generates under this name{nearest(pool, pools)}")
    return pool, int(count)
