"""Checkpoints: whole or not at all, loadable by transformers, continued bit for bit."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

from rollweave.config.training import TrainingConfig
from rollweave.errors import RunFolderError
from rollweave.training import checkpoint
from rollweave.training.trainer import TorchTrainer
from training_data import batch, tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trainer(folder: Path) -> TorchTrainer:
    config = TrainingConfig(learning_rate=1e-3, minibatches=2, schedule="cosine", steps=5, warmup_steps=2)
    return TorchTrainer(folder, config, seed=3)


def test_continuing_from_a_checkpoint_is_bit_identical(folder: Path, tmp_path: Path) -> None:
    made = trainer(folder)
    for step in range(2):
        made.train_step(batch(step))
    made.save(tmp_path / "step-2")
    resumed = trainer(folder)
    resumed.load(tmp_path / "step-2")
    assert resumed.version == 2
    for step in range(2, 4):
        assert made.train_step(batch(step)) == resumed.train_step(batch(step))
    for name, weight in made.weights().items():
        assert torch.equal(weight, resumed.weights()[name]), name


def test_transformers_loads_a_checkpoint_as_it_is(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = trainer(folder)
    made.train_step(batch())
    made.save(tmp_path / "step-1")
    model, tokenizer = (kind.from_pretrained(tmp_path / "step-1") for kind in (AutoModelForCausalLM, AutoTokenizer))
    tokens = torch.tensor([tokenizer.apply_chat_template([{"role": "user", "content": "hé"}], return_dict=False)])
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens).logits, made.model(input_ids=tokens).logits)
    assert tokenizer.decode(tokens[0]) == "<|user|>hé"


def test_a_published_folder_with_odd_settings_can_be_trained_and_saved(folder: Path, tmp_path: Path) -> None:
    """Half precision, and generation settings that transformers loads but refuses to save."""
    odd = shutil.copytree(folder, tmp_path / "odd")
    for name, changes in (
        ("config.json", {"dtype": "bfloat16"}),
        ("generation_config.json", {"do_sample": False, "temperature": 0.6}),
    ):
        (odd / name).write_text(json.dumps(json.loads((odd / name).read_text()) | changes))
    trainer(odd).save(tmp_path / "step-0")
    assert json.loads((tmp_path / "step-0" / "config.json").read_text())["dtype"] == "float32"
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    assert json.loads((tmp_path / "step-0" / "generation_config.json").read_text())["eos_token_id"] == end


def test_a_full_disk_leaves_earlier_checkpoints_and_no_rubbish(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(folder)
    made.save(tmp_path / "step-1")
    before = (tmp_path / "step-1" / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made.train_step(batch())
    monkeypatch.setattr("torch.save", full)
    with pytest.raises(RunFolderError, match=r"step-2: No space left on device.*[Ff]ree space"):
        made.save(tmp_path / "step-2")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert (tmp_path / "step-1" / "model.safetensors").read_bytes() == before


def test_weights_that_do_not_fit_are_the_same_clear_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    made = trainer(folder)

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(made.model, "save_pretrained", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        made.save(tmp_path / "step-1")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_never_overwritten(folder: Path, tmp_path: Path) -> None:
    made = trainer(folder)
    made.save(tmp_path / "step-0")
    with pytest.raises(RunFolderError, match="never overwritten"):
        made.save(tmp_path / "step-0")


def test_only_whole_checkpoints_are_found_and_old_ones_pruned(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none") is None
    for name in ("step-2", "step-10", "step-9", ".partial-step-11-x", "step-old"):
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-10"
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9", "step-old"]


def test_a_folder_without_state_cannot_be_resumed(folder: Path) -> None:
    with pytest.raises(RunFolderError, match="not a checkpoint to resume from"):
        trainer(folder).load(folder)
