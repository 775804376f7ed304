"""The part of the demo that runs on the head: an actor on each host, chosen by label, and a clock.

Says what it measured, one line each. Waits for a line on its standard input where the world outside has something to do
to the link.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray

PULL_MB = 20
CALLS = 50


class Probe:
    """An actor that says where it is, and has something to be pulled."""

    def where(self) -> str:
        return str(ray.util.get_node_ip_address())

    def data(self, megabytes: int) -> Any:
        return np.ones(megabytes * 2**20, np.uint8)


def main(address: str, pools: list[str]) -> None:
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    probe = ray.remote(Probe)
    probes = {pool: probe.options(num_cpus=0, label_selector={"pool": pool}).remote() for pool in pools}
    for pool, actor in probes.items():
        say(f"the actor for pool={pool} is on {ray.get(actor.where.remote())}")
    far = probes[pools[-1]]
    started = time.perf_counter()
    for _ in range(CALLS):
        ray.get(far.where.remote())
    say(f"a call to {pools[-1]} takes {(time.perf_counter() - started) / CALLS * 1e3:.1f} ms")
    say(f"a pull of {PULL_MB} MB from {pools[-1]} runs at {PULL_MB / pull_seconds(far):.1f} MB/s")
    say("now")
    sys.stdin.readline()
    started = time.perf_counter()
    ray.get(far.where.remote())
    say(f"a call that met the cut took {time.perf_counter() - started:.1f} s")
    say(f"and a pull runs at {PULL_MB / pull_seconds(far):.1f} MB/s")
    ray.shutdown()


def pull_seconds(actor: Any) -> float:
    made = actor.data.remote(PULL_MB)
    ray.wait([made], fetch_local=False)
    started = time.perf_counter()
    ray.get(made)
    return time.perf_counter() - started


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
