"""`rollweave profile` on a real, tiny job: what it measures is there, and its own prediction is near what it saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollweave.cli.main import app
from rollweave.profiling.profile import load_profile
from rollweave.simulation.calibration import found
from rollweave.simulation.simulate import simulate

JOB = """
name: small
model: {type: tiny, warm_start: {steps: 0}}
environment: {type: frozen_lake, latency: {mean: 5.0, std: 0.0}}
rollout: {groups_per_step: 2, group_size: 2, environments: 4, max_turns: 3, max_context: 128, sampling: {max_tokens: 3}}
engine: {slots: 4}
pipeline: {type: sync+}
runtime: {type: inline, threads: 1}
"""


@pytest.mark.slow
def test_a_job_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    file = tmp_path / "small.yaml"
    done = CliRunner().invoke(app, ["profile", str(tmp_path / "job.yaml"), "-o", str(file), "--steps", "2"])
    assert done.exit_code == 0, done.output
    assert "engine step, 4 requests" in done.output
    profile = load_profile(file)
    times = found(profile)
    assert 0 < times.engine.seconds[0] <= times.engine.seconds[-1] < 1.0
    assert times.trainer.step + times.trainer.token > 0
    assert times.weights.publish > 0
    task = profile.workload.tasks[0]
    assert task.name == "frozen_lake" and task.turns != task.prompt_tokens
    assert simulate(profile).step_seconds < 2.0, "the five seconds of latency are the job's, not the machine's"
