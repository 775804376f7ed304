"""The probe: trainer and torch engine score it alike with the same weights, and otherwise with others."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from rollweave.config.training import TrainingConfig
from rollweave.engines.torch.engine import TorchEngine
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.probe import PROBE_TOKENS, probe_gap, probe_tokens
from rollweave.weights.store import MemoryStore
from training_data import tiny_policy


def test_trainer_and_engine_score_it_alike_after_every_update(tmp_path: Path) -> None:
    folder, store = tiny_policy(tmp_path / "tiny"), MemoryStore()
    trainer = TorchTrainer(folder, TrainingConfig(), seed=0)
    engine = TorchEngine.from_folder(folder, slots=2, prefill_tokens=64, max_context=16)
    before = trainer.probe()
    for version in (1, 2):
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        published = trainer.publish(version, store)
        engine.prepare(partial(store.pull, version))
        assert probe_gap(published.probe, engine.stats().probe) > 1e-2
        engine.commit(version)
        assert probe_gap(published.probe, engine.stats().probe) < 1e-5
        assert probe_gap(published.probe, before) > 1e-2


def test_the_probe_is_always_the_same() -> None:
    assert probe_tokens(300).tolist() == probe_tokens(300).tolist()
    assert len(probe_tokens(300)) == PROBE_TOKENS and 0 <= probe_tokens(300).min() <= probe_tokens(300).max() < 300


@pytest.mark.parametrize(
    ("ours", "theirs", "gap"),
    [((-1.0, -2.0), (-1.5, -2.0), 0.5), ((), (), 0.0), ((-1.0,), (), math.inf), ((-1.0,), (math.nan,), math.inf)],
)
def test_scores_that_cannot_be_compared_are_infinitely_far_apart(
    ours: tuple[float, ...], theirs: tuple[float, ...], gap: float
) -> None:
    assert probe_gap(ours, theirs) == gap
