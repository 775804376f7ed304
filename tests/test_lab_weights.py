"""Weights over a slow link, in the lab: the trainer on one lab host, three engines on another.

One run goes through everything: starting it takes longer than all that is looked at.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from bench.weights.lab import CORES, START_SECONDS, LinkedRun
from tools.lab.lab import Lab, why_no_lab

from rollweave.policies.forward import load_model


def commits(run: LinkedRun) -> int:
    return len(run.events("weights.commit"))


def after_an_update(run: LinkedRun) -> int:
    """The bytes that the trainer's host has sent. Rollouts follow an update, so that its link is quiet then."""
    before = commits(run)
    run.until(lambda: commits(run) > before, "the next update")
    return run.trainer.bytes_sent()


@pytest.mark.slow
@pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
def test_one_copy_crosses_for_three_engines_and_an_update_survives_a_cut_link(tmp_path: Path) -> None:
    with Lab(["rollout", "train"], cores=CORES) as lab:
        run = LinkedRun(lab, tmp_path / "log", "pipeline={type: sync+}", "training.steps=500")
        run.until(lambda: commits(run) >= 2, "two updates", START_SECONDS)
        size = 1e6 * run.rows("metrics")[-1]["weights/moved_mb"]
        policy = next(path for path in run.driver.path("/tmp/run").rglob("model.safetensors")).parent
        assert size == pytest.approx(sum(p.nbytes for p in load_model(policy).parameters()), rel=0.001)

        sent = [after_an_update(run) for _ in range(4)]
        copies = [(after - before) / size for before, after in pairwise(sent)]
        assert all(1.0 <= share <= 1.05 for share in copies), copies

        before = commits(run)
        run.until(lambda: run.trainer.bytes_sent() - sent[-1] > 0.2 * size, "the middle of a transfer")
        assert commits(run) == before
        run.trainer.cut()
        time.sleep(5.0)  # the length of the cut
        assert commits(run) == before, "no engine has a version of which a part is missing"
        run.trainer.heal()
        run.until(lambda: commits(run) > before, "the update")
        assert (run.trainer.bytes_sent() - sent[-1]) / size <= 1.5, "it went on where it broke"
        run.until(lambda: commits(run) > before + 2, "two more updates")

        run.driver.run(["pkill", "-INT", "-f", "rollweave.cli.main train"], check=False)
        run.finish(120.0)
        versions = [event["version"] for event in run.events("weights.commit")]
        assert versions == list(range(1, len(versions) + 1))
        assert not run.events("engine.gone")
        gaps = [row["mismatch/logprob_gap"] for row in run.rows("metrics")]
        assert max(gaps) < 1e-4, "what was sampled was sampled with the weights that the trainer had"
