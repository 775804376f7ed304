"""Trainer and engine on the `meta` device, where every hidden crossing shows, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from device_guard import DeviceGuard, Refused
from rollweave import crossing
from rollweave.config.losses import DecoupledPPOLoss, GSPOLoss, MismatchMask, MismatchWeight, PPOLoss
from rollweave.config.training import GAEAdvantage, TrainingConfig
from rollweave.engines.torch import engine as engine_module
from rollweave.engines.torch import model as model_module
from rollweave.engines.torch import sampling as sampling_module
from rollweave.engines.torch.engine import TorchEngine
from rollweave.engines.torch.weights import FusedTarget, FusedWeights
from rollweave.errors import ConfigError
from rollweave.policies.forward import load_model
from rollweave.training import losses as losses_module
from rollweave.training import trainer as trainer_module
from rollweave.training.protocol import Metrics
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.buckets import RawTensor
from rollweave.weights.store import MemoryStore
from torch_engine_reference import TOKENIZER, random_prompt, request
from training_data import batch, tiny_policy

META = torch.device("meta")
FLOATS = [torch.float32, torch.bfloat16, torch.float64]
"""With weights in float64 all is float64, so a float32 constant shows in the losses too, which never are bfloat16."""
ENGINE_FLOATS = FLOATS[:2]

names = pytest.mark.parametrize("dtype", FLOATS, ids=str)
engine_names = pytest.mark.parametrize("dtype", ENGINE_FLOATS, ids=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@dataclass
class Crossed:
    up: int = 0
    down: int = 0


@contextmanager
def crossed() -> Iterator[Crossed]:
    counts, before = Crossed(), (crossing.CROSSINGS.up, crossing.CROSSINGS.down)
    yield counts
    counts.up, counts.down = crossing.CROSSINGS.up - before[0], crossing.CROSSINGS.down - before[1]


def trainer(folder: Path, dtype: torch.dtype, device: torch.device = META, **changes: Any) -> TorchTrainer:
    made = TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **changes}), seed=1, device=device)
    if dtype is not torch.float32:
        made._install(made.model.to(dtype))
        if made.reference is not None:
            made.reference.to(dtype)
    return made


def engine(folder: Path, dtype: torch.dtype, device: torch.device = META, **options: Any) -> TorchEngine:
    options = {"slots": 4, "prefill_tokens": 24, "max_context": 128, **options}
    return TorchEngine(load_model(folder).to(dtype), TOKENIZER, device=device, **options)


def guarded_step(folder: Path, dtype: torch.dtype, **changes: Any) -> Metrics:
    made = trainer(folder, dtype, **changes)
    with DeviceGuard() as guard:
        metrics = made.train_step(batch(groups=4))
    assert guard.operations > 500
    return metrics


# ------------------------------------------------------------------------------------------------------- trainer

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "kl and entropy": {"loss": PPOLoss(kl_coefficient=0.1, entropy_coefficient=0.01, dual_clip=3.0)},
    "mini-batches": {"loss": DecoupledPPOLoss(), "minibatches": 2, "mismatch": MismatchMask(level="segment")},
    "gspo": {"loss": GSPOLoss(), "microbatch_tokens": 60},
    "weight": {"loss": PPOLoss(denominator="proximal"), "mismatch": MismatchWeight(level="sequence")},
    "gae": {"advantage": GAEAdvantage(), "minibatches": 2},
    "packed": {"packing": True, "microbatch_tokens": 60},
    "checkpointed": {"activation_checkpointing": True},
}


@names
@pytest.mark.parametrize("name", SETTINGS)
def test_a_train_step_runs_on_a_device_without_values(folder: Path, dtype: torch.dtype, name: str) -> None:
    metrics = guarded_step(folder, dtype, **SETTINGS[name])
    assert metrics["grad/norm"] == 1.0, "made up"
    assert metrics["grad/skipped"] == 0.0


@names
def test_so_does_a_streamed_one_and_chunked_logits(
    folder: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollweave.policies.forward.LOGITS_AT_ONCE", 261 * 3)
    made = trainer(folder, dtype)
    with DeviceGuard():
        made.begin(0, stream=True)
        for group in batch().groups:
            made.accumulate([group])
        made.finish()


@names
def test_publishing_and_the_probe_too(folder: Path, dtype: torch.dtype) -> None:
    made = trainer(folder, dtype)
    with DeviceGuard():
        assert set(made.publish(0, MemoryStore()).probe) == {1.0}


# ------------------------------------------------------------------------------------------------------- engine

KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.0},
    {"temperature": 1.3, "top_k": 7},
]


@engine_names
def test_an_engine_step_runs_on_a_device_without_values(folder: Path, dtype: torch.dtype) -> None:
    made = engine(folder, dtype)
    for n in range(6):
        asked = request(f"r{n}", random_prompt(n, 5 + 6 * n), seed=n, max_tokens=4, **KINDS[n % len(KINDS)])
        made.add(asked)
    ended = []
    with DeviceGuard() as guard:
        while made.has_work:
            ended += made.step()
    assert guard.operations > 500
    assert len(ended) == 6
    assert all(set(span.tokens.tolist()) == {0} for one in ended for span in one.spans), "made up"


@engine_names
def test_weights_are_loaded_and_scored_there(folder: Path, dtype: torch.dtype) -> None:
    made, store = engine(folder, dtype), MemoryStore()
    store.push(1, dict(load_model(folder).to(dtype).named_parameters()))
    with DeviceGuard():
        made.prepare(lambda into: store.pull(1, into))
        made.commit(1)
    assert set(made.stats().probe) == {1.0}


@engine_names
def test_a_kv_cache_is_handed_over_there(folder: Path, dtype: torch.dtype) -> None:
    prefill, decode = engine(folder, dtype), engine(folder, dtype)
    asked = request("a", random_prompt(1, 20), max_tokens=3)
    prefill.add(asked)
    with DeviceGuard():
        prefill.step()
        decode.add(_from_prefill(asked))
        [expecting] = decode._expecting.values()
        ask = decode.lacks(expecting.request)
        assert ask is not None
        decode.deliver(expecting.request, prefill.kv_rows(ask))
        decode.step()
    assert decode.stats().handed_tokens == 19


def _from_prefill(asked: Any) -> Any:
    from dataclasses import replace

    return replace(asked, kv_from="prefill")


# ------------------------------------------------------------------------------------------------- how often


def test_crossings_of_a_train_step_are_few(folder: Path) -> None:
    """One up for each pass; one down for each update, one for all metrics. docs/devices.md says so."""
    for device in (torch.device("cpu"), META):
        made = trainer(folder, torch.float32, device)
        with crossed() as counts:
            made.train_step(batch())
        assert (counts.up, counts.down) == (1, 2)
        made = trainer(folder, torch.float32, device, microbatch_tokens=60)
        with crossed() as counts:
            made.train_step(batch())
        assert counts.up > 3 and counts.down == 2


def test_crossings_of_an_engine_step_are_few(folder: Path) -> None:
    for device in (torch.device("cpu"), META):
        assert _engine_crossings(folder, device, {"temperature": 1.0}) == (2, 1)
        assert _engine_crossings(folder, device, {"temperature": 0.0}) == (1, 1)
        assert _engine_crossings(folder, device, {"temperature": 1.0, "top_k": 9}) == (2, 1)


def _engine_crossings(folder: Path, device: torch.device, kind: dict[str, Any]) -> tuple[int, int]:
    made = engine(folder, torch.float32, device)
    for n in range(3):
        made.add(request(f"r{n}", random_prompt(n, 8), seed=n, max_tokens=4, **kind))
    made.step()
    with crossed() as counts:
        made.step()
    return counts.up, counts.down


# --------------------------------------------------------------------------------------------- what is caught

Smuggle = Callable[[pytest.MonkeyPatch], None]


def wrap(place: Any, name: str, around: Callable[..., Any]) -> Smuggle:
    """Let a function of the path do something more."""

    def smuggle(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *args, **kwargs: around(right, *args, **kwargs))

    return smuggle


def _after(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda right, *args, **kwargs: change(right(*args, **kwargs))


def _by_index(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[torch.arange(len(tensor))]


def _by_constant(tensor: torch.Tensor) -> torch.Tensor:
    """As a float32 constant made on the right device, where it is not the kind that is computed with."""
    return tensor * torch.ones(tensor.shape, device=tensor.device)


def _fill_with(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def around(right: Any, target: FusedTarget, tensor: RawTensor) -> None:
        right(target, tensor)
        target.into.copy_(change(target.into))

    return around


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a copy to main memory": lambda tensor: tensor.cpu(),
    "a CPU index": _by_index,
    "a float32 constant": _by_constant,
}


def _scored_with(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def around(right: Any, *args: Any) -> Any:
        logprobs, entropies, values = right(*args)
        return change(logprobs), entropies, values

    return around


PLACES: dict[str, Callable[[Callable[[torch.Tensor], Any]], Smuggle]] = {
    "engine": lambda change: wrap(model_module, "attend", _after(change)),
    "sampling": lambda change: wrap(sampling_module, "_invert", _after(lambda t: change(t.double()).long())),
    "trainer": lambda change: wrap(trainer_module, "_scored", _scored_with(change)),
    "losses": lambda change: wrap(losses_module, "exp", _after(change)),
    "weight loading": lambda change: wrap(FusedTarget, "fill", _fill_with(change)),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("where", PLACES)
def test_what_is_smuggled_in_is_caught(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: str) -> None:
    """On the CPU each of them goes unseen, and the numbers stay right."""
    _use(where, folder, torch.device("cpu"), torch.float32)
    PLACES[where](CHANGES[what])(monkeypatch)
    with pytest.raises(Refused), DeviceGuard():
        _use(where, folder, META, torch.float64 if where in ("trainer", "losses") else torch.bfloat16)
    _use(where, folder, torch.device("cpu"), torch.float32)


def _use(where: str, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    if where in ("trainer", "losses"):
        trainer(folder, dtype, device).train_step(batch())
    elif where == "weight loading":
        model = load_model(folder).to(dtype)
        made = FusedWeights(engine_module.Architecture.of(model.config), device, dtype)
        made.load(lambda into: [into(name, RawTensor.of(tensor)) for name, tensor in model.named_parameters()])
    else:
        made_engine = engine(folder, dtype, device)
        made_engine.add(request("a", random_prompt(1, 9), max_tokens=2, temperature=1.0))
        made_engine.step()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: torch.tensor([1, 2], device=META),
        lambda: torch.zeros(2, device=META)[[0, 1]],
        lambda: torch.zeros(2, device=META)[torch.tensor([0, 1])],
        lambda: torch.zeros(2, device=META).sum().item(),
        lambda: bool(torch.zeros(2, device=META).any()),
        lambda: torch.from_numpy(np.ones(2)).to(META),
        lambda: torch.zeros(3, 2, device=META).gather(1, torch.zeros(3, 1, dtype=torch.long)),
        lambda: torch.zeros(3, 3, device=META) @ torch.zeros(3, 3),
        lambda: torch.zeros(2, device=META, dtype=torch.bfloat16) + torch.zeros(2, device=META),
    ],
)
def test_the_guard_refuses(mistake: Callable[[], object]) -> None:
    with pytest.raises(Refused), DeviceGuard():
        mistake()


# ------------------------------------------------------------------------------------------------- the setting


def test_a_device_that_is_not_there_is_refused_with_the_fix() -> None:
    assert crossing.find_device("cpu").type == "cpu"
    assert crossing.find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match=r"device: gpu cannot be used here .*: set device to auto or cpu"):
        crossing.find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device: cuda cannot be used here"):
            crossing.find_device("cuda")
