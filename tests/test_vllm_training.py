"""A real LLM is trained with vLLM as its engine, through the whole pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollweave.config.load import load_job
from rollweave.config.rewards import RewardConfig
from rollweave.observability.events import read_events
from rollweave.observability.metrics import read_metrics
from rollweave.runs.train import train_job
from rollweave.trajectory import Trajectory

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "smollm2.yaml"
CHANGES = (
    *("engine.type=vllm", "engine.slots=8", "engine.kv_cache_mb=512"),
    *("training.steps=2", "training.learning_rate=0.0001", "evaluation.every=0"),
    *("pipeline.alpha=0", "rollout.groups_per_step=1", "rollout.max_turns=2"),
)


def letters(trajectory: Trajectory) -> float:
    """Differs between the members of a group, so that the weights move."""
    return sum(len(set(turn.text)) for turn in trajectory.turns) / 10


@pytest.mark.slow
@pytest.mark.llm
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_smollm2_trains_with_vllm(tmp_path: Path) -> None:
    """At alpha 0 each step trains what its own version sampled: the second one, what vLLM sampled after an update."""
    pytest.importorskip("vllm", reason="vLLM is not installed: .ci/run makes an environment for it")
    job = load_job(RECIPE, CHANGES).model_copy(update={"rewards": (RewardConfig(function=f"{__file__}:letters"),)})
    train_job(job, tmp_path / "run")
    gaps = [row["mismatch/logprob_gap"] for row in read_metrics(tmp_path / "run").rows]
    assert len(gaps) == 2 and max(gaps) < 1e-3
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert len({event.data["checksum"] for event in events if event.name == "weights.publish"}) == 2
    names = [event.name for event in events]
    assert names.count("weights.commit") >= 1 and "engine.gone" not in names and "worker.died" not in names
