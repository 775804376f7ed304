"""LoRA: only the adapter is trained, travels, and is kept; engines and checkpoints have the whole policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import sharded_jobs as jobs
from rank_processes import rank_processes
from rollweave.engines.torch.engine import TorchEngine
from rollweave.errors import ConfigError, RunFolderError
from rollweave.training.ranks import ALONE
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.adapter import AdapterStore
from rollweave.weights.buckets import Fingerprint, RawTensor, WeightMismatch
from rollweave.weights.store import MemoryStore
from training_data import tiny_policy

pytest.importorskip("peft")

LORA = {"lora": {"rank": 4, "alpha": 8.0}, "learning_rate": 1e-2}
ADAPTER = {"lora": {"rank": 4, "alpha": 8.0, "sync": "adapter"}, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trained(folder: Path, config: jobs.Config, steps: int = 2) -> TorchTrainer:
    trainer = jobs.made(ALONE, folder, config)
    for number in range(steps):
        jobs.step(trainer, number)
    return trainer


class CountingStore(MemoryStore):
    """Counts what is pushed."""

    pushed = 0

    def push(self, version: int, tensors: Any) -> Fingerprint:
        found = {name: RawTensor.of(tensor) for name, tensor in tensors.items()}
        self.pushed = sum(tensor.data.size for tensor in found.values())
        return super().push(version, tensors)


def test_only_the_adapter_is_trained(folder: Path) -> None:
    trainer = trained(folder, LORA)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = trainer.weights()
    changed = {name for name, before in base.named_parameters() if not torch.equal(found[name], before)}
    assert changed == {name for name in found if "_proj" in name}, "every linear layer, under its own name"
    assert sum(parameter.numel() for parameter in trainer.parameters) < sum(w.numel() for w in found.values()) / 3


def test_a_new_adapter_changes_nothing_and_is_the_seeds(folder: Path) -> None:
    one, other = (jobs.made(ALONE, folder, LORA) for _ in range(2))
    plain = jobs.made(ALONE, folder, {})
    assert one.probe() == pytest.approx(plain.probe(), abs=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
    assert any(bool(parameter.any()) for parameter in one.parameters)


def test_an_adapter_alone_gives_engines_the_weights_of_the_merged_policy(folder: Path) -> None:
    merged, alone = trained(folder, LORA), trained(folder, ADAPTER)
    probes, sizes = [], []
    for trainer, wrap in ((merged, lambda store: store), (alone, lambda store: AdapterStore(store, folder))):
        store = CountingStore()
        published = trainer.publish(2, store)
        engine = TorchEngine.from_folder(folder, slots=2, prefill_tokens=64, max_context=128)
        engine.commit(engine.prepare(lambda into, store=store, wrap=wrap: wrap(store).pull(2, into)).version)
        probes.append(engine.stats().probe)
        sizes.append(store.pushed)
        assert np.allclose(probes[-1], published.probe, atol=1e-4)
    assert np.allclose(*probes, atol=1e-4)
    assert sizes[1] < sizes[0] / 3


def test_an_adapter_for_another_policy_is_refused(folder: Path) -> None:
    store = MemoryStore()
    store.push(1, {"elsewhere.lora_A.weight": np.zeros((1, 2), np.float32)})
    with pytest.raises(WeightMismatch, match="must start from the same folder"):
        AdapterStore(store, folder).pull(1, lambda name, tensor: None)


def test_a_checkpoint_is_the_merged_policy_and_resumes_with_its_adapter(folder: Path, tmp_path: Path) -> None:
    trainer = trained(folder, LORA)
    trainer.save(tmp_path / "step-2")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "step-2")
    found = trainer.weights()
    assert {name for name, _ in exported.named_parameters()} == set(found)
    assert all(torch.equal(found[name], tensor) for name, tensor in exported.named_parameters())
    resumed = jobs.made(ALONE, folder, LORA)
    resumed.load(tmp_path / "step-2")
    assert jobs.step(resumed, 2) == jobs.step(trainer, 2)
    again = resumed.weights()
    assert all(torch.equal(again[name], tensor) for name, tensor in trainer.weights().items())


def test_a_checkpoint_with_and_one_without_an_adapter_are_not_mixed_up(folder: Path, tmp_path: Path) -> None:
    trained(folder, LORA, 1).save(tmp_path / "with")
    trained(folder, {}, 1).save(tmp_path / "without")
    with pytest.raises(RunFolderError, match=r"has a saved adapter, but the job wants none.*training\.lora"):
        jobs.made(ALONE, folder, {}).load(tmp_path / "with")
    with pytest.raises(RunFolderError, match=r"has no adapter, but the job wants one"):
        jobs.made(ALONE, folder, LORA).load(tmp_path / "without")


def test_targets_that_the_model_does_not_have_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no layers called c_attn.*q_proj"):
        jobs.made(ALONE, folder, {"lora": {"targets": ("c_attn",)}})


def test_without_peft_the_error_names_the_cure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'rollweave\[lora\]'"):
        jobs.made(ALONE, folder, LORA)


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with rank_processes(2) as ranks:
        yield ranks


@pytest.mark.slow
def test_two_ranks_train_and_save_an_adapter_as_one_process_does(two: Any, folder: Path, tmp_path: Path) -> None:
    (_, found), _ = two.run(jobs.train, folder, LORA, 2, True)
    _, expected = jobs.single(folder, LORA, 2, True)
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-9
    of_two, _ = two.run(jobs.save, folder, LORA, 1, tmp_path / "two")
    of_one = jobs.load(ALONE, folder, LORA, 1, tmp_path / "two")
    assert max(float((of_two[name] - of_one[name]).abs().max()) for name in of_one) < 1e-6
    published, _ = two.run(jobs.publish, folder, ADAPTER, tmp_path / "two")
    assert published.checksum == jobs.publish(ALONE, folder, ADAPTER, tmp_path / "two").checksum


@pytest.mark.llm
def test_an_adapter_of_smollm2_moves_less_than_three_percent_of_the_bytes() -> None:
    from rollweave.policies.smollm2 import ensure

    policy = ensure()
    config = {"lora": {"rank": 8, "sync": "adapter"}, "learning_rate": 1e-3}
    trainer = trained(policy, config, 1)
    store = CountingStore()
    published = trainer.publish(1, store)
    whole = sum(tensor.numel() * tensor.element_size() for tensor in trainer.weights().values())
    assert store.pushed / whole < 0.03
    engine = TorchEngine.from_folder(policy, slots=2, prefill_tokens=64, max_context=128)
    engine.commit(engine.prepare(lambda into: AdapterStore(store, policy).pull(1, into)).version)
    assert np.allclose(engine.stats().probe, published.probe, atol=1e-4)
