"""A job on the lab's hosts, which share no disk: its trainer on one, its two pools of engines on two others.

One run goes through everything: starting it takes longer than each of the mishaps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.lab.lab import Lab, why_no_lab

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
ROLLWEAVE = (sys.executable, "-m", "rollweave.cli.main")
CLUSTER = """
pools:
  - {name: train, device: CPU, count: 1, role: train}
  - {name: a, device: CPU, count: 1, role: rollout}
  - {name: b, device: CPU, count: 1, role: rollout}
"""
SMALL = ("model.hidden=32", "model.warm_start.steps=5", "model.warm_start.episodes=40", "evaluation.every=0")
START_SECONDS = 240.0
"""Six processes that import torch, on two cores."""

Events = list[dict[str, Any]]


class LabRun:
    """A run that was started on the lab's driver host, and its events so far."""

    def __init__(self, lab: Lab, log: Path) -> None:
        self.lab = lab
        self.log = log
        self.driver = lab["driver"]
        self.driver.path("/tmp/cluster.yaml").write_text(CLUSTER)
        address = self.driver.start_ray(num_cpus=1)
        for pool in ("train", "a", "b"):
            lab[pool].start_ray(self.driver, num_cpus=1, labels={"pool": pool})
        job = (str(ROOT / "recipes" / "quickstart.yaml"), "cluster=/tmp/cluster.yaml", f"runtime.address={address}")
        words = ("train", *job, *SMALL, "training.steps=5000", "checkpoint.every=3", "--out", "/tmp/run")
        self.process = self.driver.start([*ROLLWEAVE, *words], ENVIRONMENT, log)

    def events(self, *names: str) -> Events:
        file = self.driver.path("/tmp/run/events.jsonl")
        lines = file.read_text().splitlines() if file.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["name"] in names]

    def until(self, holds: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < ends, f"not within {seconds} s: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.3)  # what is waited for happens in other processes, and says so in a file

    def steps(self) -> int:
        return len(self.events("batch.ready"))

    def goes_on(self) -> None:
        reached = self.steps() + 2
        self.until(lambda: self.steps() >= reached, "two more steps")

    def serves(self, engine: str) -> bool:
        return any(event["data"]["engine"] == engine for event in self.events("engine.serve"))

    def has_work(self, engine: str) -> bool:
        return any(event["data"]["engine"] == engine for event in self.events("route"))


@pytest.mark.slow
@pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
def test_a_host_that_is_cut_off_costs_no_task_and_gets_its_work_back(tmp_path: Path) -> None:
    with Lab(["driver", "train", "a", "b"]) as lab:
        run = LabRun(lab, tmp_path / "log")
        run.until(lambda: run.steps() >= 3, "three steps", START_SECONDS)

        lab["b"].cut()
        time.sleep(5.0)  # the length of the cut
        lab["b"].heal()
        run.goes_on()
        assert not run.events("engine.gone", "node.silent"), "a cut of five seconds costs nothing"

        lab["b"].cut()
        began = time.monotonic()
        run.until(lambda: run.events("engine.gone"), "the engine to be given up")
        run.goes_on()
        assert run.events("engine.gone")[0]["data"]["engine"] == "b-0/1"
        assert time.monotonic() - began < 60.0
        lab["b"].heal()
        run.until(lambda: run.serves("b-0/2") and run.has_work("b-0/2"), "work on b again", START_SECONDS)

        lab["b"].run(["pkill", "-9", "-f", "ray::EngineWorker"])  # the one that works, and its spare
        run.until(lambda: len(run.events("engine.gone")) == 2, "the killed engine to be given up")
        run.goes_on()
        run.until(lambda: run.serves("b-0/3") and run.has_work("b-0/3"), "work on b once more", START_SECONDS)

        run.driver.run(["pkill", "-INT", "-f", "rollweave.cli.main train"], check=False)
        assert run.process.wait(timeout=120) == 0, run.log.read_text()[-3000:]
        summary = json.loads(run.driver.path("/tmp/run/summary.json").read_text())
        assert summary["exit_reason"] == "interrupted"
        assert summary["attempts"]["infra-failed"] == 0, "what was on the engine went on elsewhere"
        newest = max(run.driver.path("/tmp/run/checkpoints").glob("step-*"))
        assert (newest / "model.safetensors").exists(), "written on the trainer's host, brought to the driver's"
        assert run.driver.path("/tmp/run/logs/a-0.log").exists()


@pytest.mark.slow
@pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
def test_a_wrong_token_and_a_pool_that_is_not_there_are_said_in_a_sentence() -> None:
    with Lab(["driver"]) as lab:
        driver = lab["driver"]
        address = driver.start_ray(num_cpus=1, labels={"pool": "train"})
        driver.path("/tmp/cluster.yaml").write_text(CLUSTER)
        command = [*ROLLWEAVE, "cluster", "/tmp/cluster.yaml", "--address", address]
        missing = driver.run(command, ENVIRONMENT, check=False)
        assert missing.returncode == 2
        assert "pool a wants 1 x CPU on nodes with pool=a, and the Ray cluster has 0 of them" in missing.stderr
        refused = driver.run(command, {**ENVIRONMENT, "RAY_AUTH_TOKEN": "x" * 40}, check=False)
        assert refused.returncode == 2 and "Traceback" not in refused.stderr
        assert "does not let this process in" in refused.stderr and "RAY_AUTH_TOKEN" in refused.stderr
