"""`doctor --selftest`: it passes on what is right, and sees weights, log-probs and transforms that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollweave.cli.main import main
from rollweave.config.job import InlineRuntime, Job, RayRuntime
from rollweave.config.load import load_job
from rollweave.engines.protocol import Sampling
from rollweave.engines.torch.weights import FusedWeights
from rollweave.runs import selftest
from rollweave.runs.selftest import SelfTest, SelfTestStep, VersionChecksums
from rollweave.trajectory import Transform
from rollweave.weights.store import MemoryStore

FILE = """
model: {type: tiny, hidden: 32, layers: 1, head_dim: 8, warm_start: {steps: 2, episodes: 10}}
environment: {type: frozen_lake}
rollout: {groups_per_step: 2, group_size: 2, environments: 4, max_turns: 3, sampling: {temperature: 0.8}}
training: {steps: 3, learning_rate: 0.01}
pipeline: {type: rollart, alpha: 1}
runtime: {type: inline, threads: 1}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    return path


def examined(file: Path) -> tuple[SelfTest, dict[str, str]]:
    found = selftest.selftest(load_job(file))
    return found, {check.name: check.status for check in found.checks}


def test_it_passes_on_the_tiny_model_and_leaves_nothing_behind(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--selftest", str(file), "--json", "rollout.max_turns=2"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"]
    assert [check["name"] for check in found["checks"]] == ["run", "weights", "log-probs", "ratio", "staleness"]
    assert [version["version"] for version in found["versions"]] == [1, 2, 3]
    assert len({checksum for v in found["versions"] for checksum in (v["trainer"], *v["engines"])}) == 1
    assert [step["step"] for step in found["steps"]] == [0, 1, 2]
    assert list(file.parent.iterdir()) == [file]


def test_weights_corrupted_on_the_way_are_seen_and_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = MemoryStore.pull

    def corrupt(self: MemoryStore, version: int, into: Any) -> Any:
        if version == 2:
            manifest, flat = self._versions[version]
            damaged = np.array(flat)
            damaged[1000] ^= 1
            self._versions[version] = manifest, damaged
        return pull(self, version, into)

    monkeypatch.setattr(MemoryStore, "pull", corrupt)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--selftest", str(file)])
    assert ended.value.code == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "bucket 0 of 1 of weights version 2 is corrupt" in words


def test_an_engine_that_computes_with_other_weights_than_it_verified_is_seen(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests agree, as they are of what arrived; only the probe can tell, before anything is drawn."""
    load = FusedWeights.load

    def load_wrongly(self: FusedWeights, fill: Any) -> Any:
        answer = load(self, fill)
        self.final_norm.mul_(1.05)
        return answer

    monkeypatch.setattr(FusedWeights, "load", load_wrongly)
    found, status = examined(file)
    assert status["run"] == "broken" and "scores the probe" in found.checks[0].detail


def test_a_wrong_temperature_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampling, "transform", property(lambda sampling: Transform(temperature=1.0)))
    _, status = examined(file)
    assert (status["log-probs"], status["ratio"]) == ("broken", "broken")


def test_weights_that_move_at_learning_rate_0_are_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push = MemoryStore.push

    def drift(self: MemoryStore, version: int, tensors: Any) -> Any:
        return push(self, version, {name: tensor * (1 + 1e-7 * version) for name, tensor in tensors.items()})

    monkeypatch.setattr(MemoryStore, "push", drift)
    found, status = examined(file)
    assert status["weights"] == "broken"
    assert "version 2 differs" in next(check.detail for check in found.checks if check.name == "weights")


# ----------------------------------------------------------------------------------------------------- its parts


def test_the_job_is_made_small_and_keeps_what_is_tested(file: Path) -> None:
    job = load_job(file, ["rollout.groups_per_step=64", "rollout.group_size=3", "rollout.filter=zero_variance"])
    small = selftest.shrink(job)
    assert (small.rollout.groups_per_step, small.rollout.group_size, small.rollout.filter) == (4, 3, "none")
    assert (small.training.learning_rate, small.training.steps) == (0.0, 3)
    assert (small.pipeline, small.training.loss, small.rollout.sampling) == (
        job.pipeline,
        job.training.loss,
        job.rollout.sampling,
    )
    assert Job.model_validate_json(small.model_dump_json()) == small


def test_it_runs_inline_unless_the_job_says_ray(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE.replace("runtime: {type: inline, threads: 1}", ""))
    assert isinstance(selftest.shrink(load_job(path)).runtime, InlineRuntime)
    assert isinstance(selftest.shrink(load_job(path, ["runtime.type=ray"])).runtime, RayRuntime)


def test_versions_must_agree_with_each_other_and_with_every_engine() -> None:
    good = [VersionChecksums(1, "a", ("a", "a")), VersionChecksums(2, "a", ("a", "a"))]
    assert selftest.check_weights(good).status == "ok"
    for bad in (VersionChecksums(2, "b", ("b", "b")), VersionChecksums(2, "a", ("a", "b"))):
        check = selftest.check_weights([good[0], bad])
        assert check.status == "broken" and "version 2" in check.detail


@pytest.mark.parametrize(
    ("step", "broken"),
    [
        (SelfTestStep(0, 1e-6, 1e-5, 1.0, 1.00001, 1), set()),
        (SelfTestStep(0, 1e-3, 1e-3, 1.0, 1.0, 0), {"log-probs"}),
        (SelfTestStep(0, 1e-6, 0.1, 1.0, 1.0, 0), {"log-probs"}),
        (SelfTestStep(0, None, None, 1.0, 1.0, 0), {"log-probs"}),
        (SelfTestStep(0, 1e-6, 1e-5, 0.99, 1.0, 0), {"ratio"}),
        (SelfTestStep(0, 1e-6, 1e-5, 1.0, 1.01, 0), {"ratio"}),
        (SelfTestStep(0, 1e-6, 1e-5, 1.0, 1.0, 2), {"staleness"}),
    ],
)
def test_every_number_has_its_tolerance(step: SelfTestStep, broken: set[str]) -> None:
    checks = [selftest.check_gap([step]), selftest.check_ratio([step]), selftest.check_staleness([step], 1.0)]
    assert {check.name for check in checks if check.status == "broken"} == broken
    assert all(check.fix for check in checks if check.status == "broken")


def test_keys_to_change_without_a_job_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "training.steps=3"])
    assert ended.value.code == 2
    assert "--selftest" in capsys.readouterr().err
