"""What of the vLLM engine works without vLLM: settings, messages, the row of logits, the file of weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollweave.config.job import Job
from rollweave.config.load import parse_text
from rollweave.engines.protocol import Sampling
from rollweave.engines.torch.sampling import draw
from rollweave.engines.vllm.launch import import_vllm
from rollweave.engines.vllm.staging import WeightMapping, parameter_shapes
from rollweave.engines.vllm.wire import LOGPROBS, DrawOrder, read_draw, write_draws
from rollweave.errors import ConfigError, ModelError
from rollweave.weights.store import MemoryStore
from torch_engine_reference import random_model

# ------------------------------------------------------------------------------------------------------ settings

JOB = "model: tiny\nenvironment: frozen_lake\n"


def job(text: str, overrides: tuple[str, ...] = ()) -> Job:
    return parse_text(JOB + text, "job.yaml", Path(), Job, overrides)


def test_an_engine_without_a_type_is_the_torch_engine() -> None:
    assert [job(text).engine.type for text in ("", "engine: {slots: 8}", "engine: torch")] == ["torch"] * 3
    assert job("engine: {slots: 8}").engine.slots == 8


@pytest.mark.parametrize("text", ["engine: vllm", "engine: {type: vllm}"])
def test_an_engine_may_be_vllm(text: str) -> None:
    assert job(text).engine.type == "vllm"
    assert job("engine: {slots: 8}", ("engine.type=vllm", "engine.slots=8")).engine.slots == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: {type: vllm, prefil_tokens: 3}", "prefill_tokens"),
        ("engine: vlm", "vllm"),
        ("engine: {type: torch, kv_cache_mb: 3}", "kv_cache_mb"),
        (
            "engine: vllm\npipeline: {type: rollart, in_flight: keep}",
            "pipeline.in_flight=keep needs engine.type=torch.*recompute",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job(text)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_vllm_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"vLLM is not installed here: pip install .rollweave\[vllm"):
        import_vllm()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__version__ = '0.31.4'", "vLLM 0.31.4 is installed, but this adapter uses interfaces of 0.32"),
        ("raise RuntimeError('operator torchvision::nms does not exist')", "pip uninstall torchvision"),
        ("import a_module_that_vllm_needs", "vLLM lacks a_module_that_vllm_needs"),
    ],
)
def test_a_vllm_that_does_not_fit_is_explained(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(ConfigError, match=message):
        import_vllm()


# ------------------------------------------------------------------------------------------------ the row of logits


@dataclass
class Reported:
    logprob: float


def greedy_choice(row: torch.Tensor) -> tuple[int, dict[int, Any]]:
    """What vLLM makes of a row: its largest entry, and the largest few, normalised."""
    values, ids = row.log_softmax(-1).topk(LOGPROBS)
    return int(row.argmax()), {int(id): Reported(float(value)) for id, value in zip(ids, values, strict=True)}


@pytest.mark.parametrize("scale", [0.1, 3.0, 200.0])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.0), Sampling(), Sampling(temperature=3.0), Sampling(temperature=0.5, top_p=0.5, top_k=3)],
)
def test_a_row_says_what_was_drawn_and_how_likely_it_was(sampling: Sampling, scale: float) -> None:
    logits = scale * torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
    drawn = draw(logits, [sampling] * 40, list(range(40)), [2] * 40)
    written = logits.clone()
    rows = [row for row in range(40) if row != 5]
    write_draws(written, rows, draw(logits[rows], [sampling] * 39, rows, [2] * 39))
    assert torch.equal(written[5], logits[5]), "a row that is only scored stays"
    for row in rows:
        token, reported = greedy_choice(written[row])
        assert token == drawn.tokens[row]
        assert read_draw(token, reported) == pytest.approx(
            (drawn.behaviour[row], min(0.0, drawn.raw[row])), rel=1e-6, abs=1e-6
        )


def test_an_order_survives_its_travel() -> None:
    order = DrawOrder(2**70 + 3, 17, Sampling(temperature=0.3, top_p=0.9, top_k=4))
    assert DrawOrder.unpacked(order.packed()) == DrawOrder(3, 17, Sampling(temperature=0.3, top_p=0.9, top_k=4))


# ---------------------------------------------------------------------------------------------- the file of weights


def mapping(folder: Path) -> WeightMapping:
    return WeightMapping(folder / "weights", {"b": (2, 3), "a": (5,), "scalar": ()})


def pushed(**tensors: Any) -> Any:
    store = MemoryStore(0.001)
    store.push(4, tensors)
    return lambda into: store.pull(4, into)


A, B, SCALAR = np.arange(5, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.float32)


def test_a_version_lies_in_the_file_as_the_index_says(tmp_path: Path) -> None:
    made = mapping(tmp_path)
    fingerprint = made.fill(pushed(a=A, b=B, scalar=SCALAR, tied_head=B))
    assert fingerprint.version == 4
    content, index = made.path.read_bytes(), made.index()
    found = {
        name: np.frombuffer(content, np.float32, int(np.prod(shape)), start).reshape(shape)
        for name, shape, start in zip(index["names"], index["shapes"], index["starts"], strict=True)
    }
    for name, expected in {"a": A, "b": B, "scalar": SCALAR}.items():
        assert np.array_equal(found.pop(name), expected)
    assert not found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "the weights lack 'a'"),
        ({"b": B.T.copy()}, r"'b' came as float32 \(3, 2\), but the model's config says float32 \(2, 3\)"),
        ({"a": A.astype(np.float64)}, "'a' came as float64"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_vllm_sees_them(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors = {name: value for name, value in {"a": A, "b": B, "scalar": SCALAR, **change}.items() if value is not None}
    with pytest.raises(ModelError, match=message):
        mapping(tmp_path).fill(pushed(**tensors))


def test_parameters_are_named_as_the_trainer_names_them(tmp_path: Path) -> None:
    model = random_model("qwen3")
    model.save_pretrained(tmp_path)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameter_shapes(tmp_path) == shapes
    assert "lm_head.weight" not in shapes, "a tied one is named once"


def test_a_start_that_fails_is_told_with_what_the_log_says(tmp_path: Path) -> None:
    """In a child, whose errors go to a log."""
    script = """
import sys
from pathlib import Path
from rollweave.engines.vllm.launch import explained
from rollweave.errors import ConfigError
sys.stderr.write("ValueError: of an earlier start\\n")
sys.stderr.flush()
try:
    with explained(Path("policy")):
        sys.stderr.write("(EngineCore) ERROR RuntimeError: head_dim=16\\n more\\nRuntimeError: head_dim=16\\n")
        sys.stderr.flush()
        raise RuntimeError("it failed")
except ConfigError as error:
    print(error)
"""
    with (tmp_path / "engine.log").open("w") as log:
        child = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=log, text=True)
    first, said, advice = child.stdout.splitlines()
    assert first.startswith("engine.type=vllm: vLLM does not start with policy (RuntimeError: it failed); ")
    assert first.endswith("engine.log says:") and said == "  RuntimeError: head_dim=16"
    assert "engine.kv_cache_mb" in advice


def test_pools_that_only_the_torch_engine_can_fill_are_refused() -> None:
    pools = "cluster: {pools: [{name: p, role: %s, device: CPU, count: 1}, {name: d, role: %s, device: CPU, count: 1}, "
    pools += "{name: t, role: train, device: CPU, count: 1}]}"
    with pytest.raises(ConfigError, match="pool p has role: prefill, which needs engine"):
        job("engine: vllm\n" + pools % ("prefill", "decode"))
    assert job("engine: torch\n" + pools % ("prefill", "decode")).engine.type == "torch"
