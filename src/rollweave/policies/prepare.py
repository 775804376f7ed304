"""Turns a job's `model` section into a Hugging Face folder that engine and trainer can load."""

from __future__ import annotations

import json
from pathlib import Path

from rollweave.config.job import HubModel, LocalModel, ModelConfig, SmolLM2, TinyModel
from rollweave.errors import ModelError
from rollweave.policies import hub, smollm2, tiny

SUPPORTED = ("llama", "qwen2", "qwen3")


def prepare(model: ModelConfig, seed: int, folder: Path) -> Path:
    """Return the policy's folder: a tiny policy is built in `folder`, any other is found or fetched, and checked."""
    return tiny.build(model, seed, folder) if isinstance(model, TinyModel) else find_model(model)


def find_model(model: LocalModel | HubModel | SmolLM2) -> Path:
    """Return the folder of an existing model, which is fetched if it is not on this machine yet."""
    match model:
        case LocalModel(path=path):
            return check_folder(Path(path).expanduser())
        case HubModel(name=name):
            about = f"model {name}"
            return check_folder(hub.ensure(model, lambda folder: _check_architecture(folder, about)), about)
    return smollm2.ensure()


def check_folder(path: Path, name: str = "model.path") -> Path:
    """Return the folder if engine and trainer can use the model in it, else raise. Messages call the model `name`."""
    if not path.is_dir():
        raise ModelError(f"{name}: the folder {path} does not exist; give the path of a Hugging Face model folder")
    _check_architecture(path, name)
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"{name}: {path} has no *.safetensors weights; save the model with "
            "`model.save_pretrained(folder)` of transformers"
        )
    _check_tokenizer(path, name)
    return path


def _check_architecture(path: Path, name: str) -> None:
    file = path / "config.json"
    try:
        kind = json.loads(file.read_text()).get("model_type")
    except FileNotFoundError:
        raise ModelError(
            f"{name}: {path} has no config.json, so it is not a Hugging Face model folder; "
            "give the folder that holds config.json and the weights"
        ) from None
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{name}: {file} is not a model's configuration ({error}); fetch the model again") from error
    if kind not in SUPPORTED:
        raise ModelError(
            f"{name}: {path} is a {kind!r} model; supported are {', '.join(SUPPORTED)} (SmolLM2 is a llama model)"
        )


def _check_tokenizer(path: Path, name: str) -> None:
    from transformers import AutoTokenizer

    if not any((path / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"{name}: {path} has no tokenizer files (tokenizer.json); save the model's tokenizer there with "
            "`tokenizer.save_pretrained(folder)`"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{name}: the tokenizer in {path} cannot be loaded ({error}); save it there again") from error
    if not tokenizer.chat_template:
        raise ModelError(
            f"{name}: the tokenizer in {path} has no chat template, so conversations cannot be rendered; use an "
            "instruction-tuned model or add a chat_template.jinja file to the folder"
        )
