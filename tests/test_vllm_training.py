"""A real LLM is trained with vLLM as its engine, through the whole pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollweave.config.load import load_job
from rollweave.observability.events import read_events
from rollweave.observability.metrics import read_metrics
from rollweave.runs.train import train_job

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "smollm2.yaml"
SHORT = ("engine.type=vllm", "engine.slots=8", "engine.kv_cache_mb=512", "training.steps=2", "evaluation.every=0")


@pytest.mark.slow
@pytest.mark.llm
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_smollm2_trains_with_vllm(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed: .ci/run makes an environment for it")
    train_job(load_job(RECIPE, SHORT), tmp_path / "run")
    rows = read_metrics(tmp_path / "run").rows
    gaps = [row["mismatch/logprob_gap"] for row in rows if row.get("mismatch/logprob_gap") is not None]
    assert len(rows) == 2 and gaps and max(gaps) < 1e-3
    events = [event.name for event in read_events(tmp_path / "run" / "events.jsonl")]
    assert "weights.commit" in events and "engine.gone" not in events and "worker.died" not in events
