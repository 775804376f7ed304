"""A streamed train step makes the update of a whole one, and holds no more than one micro-batch."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.autograd.graph import saved_tensors_hooks

from rollweave.config.losses import (
    CISPOLoss,
    DecoupledPPOLoss,
    GSPOLoss,
    KimiLoss,
    MismatchMask,
    MismatchWeight,
    PPOLoss,
    TISLoss,
    TOPRLoss,
)
from rollweave.config.training import (
    GAEAdvantage,
    GiGPOAdvantage,
    GRPOAdvantage,
    ReinforcePlusAdvantage,
    RLOOAdvantage,
    TrainingConfig,
)
from rollweave.errors import ConfigError, UntrainableBatch
from rollweave.training.protocol import Metrics
from rollweave.training.trainer import TorchTrainer
from rollweave.trajectory import Batch, Group
from training_data import batch, tiny_policy

GROUPS = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"loss": PPOLoss(dual_clip=3.0)},
    "kl and entropy": {"loss": PPOLoss(aggregation="sequence", kl_coefficient=0.1, entropy_coefficient=0.01)},
    "proximal": {"loss": PPOLoss(denominator="proximal"), "mismatch": MismatchWeight(level="sequence")},
    "decoupled": {"loss": DecoupledPPOLoss(aggregation="sequence"), "mismatch": MismatchMask(level="geometric")},
    "gspo": {"loss": GSPOLoss(), "advantage": RLOOAdvantage()},
    "tis": {"loss": TISLoss(), "advantage": GRPOAdvantage(normalise="none")},
    "cispo": {"loss": CISPOLoss(unified_mask=True), "advantage": GiGPOAdvantage()},
    "topr": {"loss": TOPRLoss(aggregation="sequence"), "mismatch": MismatchMask(level="segment")},
    "kimi": {"loss": KimiLoss()},
    "gae": {"advantage": GAEAdvantage(normalise="none")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trainer(folder: Path, **changes: Any) -> TorchTrainer:
    """In float64, where rounding hides nothing."""
    made = TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **changes}), seed=1)
    made._install(made.model.double())
    if made.reference is not None:
        made.reference.double()
    return made


def stream(made: TorchTrainer, parts: list[list[Group]]) -> Metrics:
    made.begin(made.version, stream=True)
    for part in parts:
        made.accumulate(part)
    return made.finish()


def split(groups: list[Group], rng: random.Random) -> list[list[Group]]:
    """In any order of arrival, some groups together."""
    left = rng.sample(groups, len(groups))
    parts = []
    while left:
        size = rng.randint(1, 3)
        parts.append(left[:size])
        left = left[size:]
    return parts


def mixed(seed: int) -> Batch:
    """A batch of three steps' versions, in which one group teaches nothing."""
    data = batch(seed, groups=GROUPS, version=seed)
    for member in data.groups[1].members:
        member.rewards = {"r": 0.5}
    return data


@pytest.mark.parametrize("name", SETTINGS)
def test_a_streamed_step_equals_the_whole_one(folder: Path, name: str) -> None:
    rng = random.Random(name)
    whole = trainer(folder, **SETTINGS[name])
    streamed = [trainer(folder, **SETTINGS[name], microbatch_tokens=n) for n in (1, 50, 10_000)]
    for step in range(2):
        expected = whole.train_step(mixed(step))
        for made in streamed:
            found = stream(made, split(mixed(step).groups, rng))
            assert found.keys() == expected.keys()
            assert found == {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in expected.items()}
            one, other = whole.weights(), made.weights()
            assert max(float((one[key] - other[key]).abs().max()) for key in one) < 1e-6
            if whole.head is not None and made.head is not None:
                assert torch.allclose(whole.head.weight, made.head.weight, rtol=0, atol=1e-6)
    assert float((whole.weights()["model.norm.weight"] - 1).abs().max()) > 1e-4, "the comparison is of steps that moved"


def test_a_step_from_which_nothing_is_learnt_has_metrics_too(folder: Path) -> None:
    data = batch(reward=lambda rng: 1.0)
    made = trainer(folder)
    before = {name: weight.clone() for name, weight in made.weights().items()}
    assert stream(made, [[group] for group in data.groups]) == trainer(folder).train_step(data)
    assert all(torch.equal(before[name], weight) for name, weight in made.weights().items())


def test_what_is_left_of_a_step_that_was_never_finished_is_dropped(folder: Path) -> None:
    made, plain = trainer(folder), trainer(folder)
    made.begin(0, stream=True)
    made.accumulate(batch(7).groups)
    found = stream(made, [batch().groups])
    assert found == stream(plain, [batch().groups])
    assert all(torch.equal(weight, plain.weights()[name]) for name, weight in made.weights().items())


def test_a_group_does_not_count_twice(folder: Path) -> None:
    made = trainer(folder)
    made.begin(0, stream=True)
    made.accumulate(batch().groups[:2])
    with pytest.raises(UntrainableBatch, match="group 1 was given to the trainer twice"):
        made.accumulate(batch().groups[1:])


def test_a_step_without_groups_is_refused(folder: Path) -> None:
    made = trainer(folder)
    made.begin(0, stream=True)
    with pytest.raises(UntrainableBatch, match="the batch has no groups"):
        made.finish()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"minibatches": 2}, "minibatches is 2, and the whole batch is shuffled into them"),
    ({"advantage": ReinforcePlusAdvantage()}, "divided by their deviation over the whole batch"),
    ({"advantage": ReinforcePlusAdvantage(baseline="group")}, "divided by their deviation over the whole batch"),
    ({"advantage": GAEAdvantage()}, "normalised over the whole batch; set advantage.normalise to none"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_a_loss_that_needs_the_whole_batch_is_refused(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TrainingConfig(stream=True, **changes)
    with pytest.raises(ConfigError, match=sentence):
        trainer(folder, **changes).begin(0, stream=True)


class Held:
    """Counts the tensors that autograd keeps for a backward pass that has not been made."""

    def __init__(self) -> None:
        self.count = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        kept = [tensor.detach()]  # with its history, an output would keep itself alive
        self.count += 1
        box = _Box(kept)
        weakref.finalize(box, self._free)
        return box

    def _free(self) -> None:
        self.count -= 1


class _Box:
    def __init__(self, kept: list[torch.Tensor]) -> None:
        self.kept = kept


def test_no_more_than_one_micro_batch_of_activations_is_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, held = trainer(folder, microbatch_tokens=50), Held()
    before: list[int] = []
    during: list[int] = []
    forward = made._forward

    def watched(micro: Any) -> Any:
        before.append(held.count)
        result = forward(micro)
        during.append(held.count)
        return result

    monkeypatch.setattr(made, "_forward", watched)
    with saved_tensors_hooks(held.pack, lambda box: box.kept[0]):
        stream(made, [[group] for group in batch(groups=GROUPS).groups])
    assert len(during) > GROUPS and min(during) > 0
    assert set(before) == {0}, "the pass before it is over, and its activations are freed"
