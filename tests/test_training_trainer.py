"""The torch trainer on hand-made batches of a tiny policy."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rollweave.config.losses import PPOLoss
from rollweave.config.training import GRPOAdvantage, TrainingConfig
from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, load_model, pad_rows, token_logprobs
from rollweave.training.trainer import TorchTrainer
from rollweave.trajectory import Batch, Transform, logprob_array, token_ids
from training_data import batch, score, tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trainer(folder: Path, **changes: Any) -> TorchTrainer:
    return TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **changes}), seed=1)


def difference(a: TorchTrainer, b: TorchTrainer) -> float:
    one, other = a.weights(), b.weights()
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def gradient(made: TorchTrainer, data: Batch) -> torch.Tensor:
    """The accumulated gradient of a step, caught before the optimiser uses it."""
    caught: list[torch.Tensor] = []
    made._update = lambda record: (  # type: ignore[method-assign]
        setattr(record, "updates", 1),
        caught.append(torch.cat([p.grad.flatten().clone() for p in made.parameters if p.grad is not None])),
    )
    made.train_step(data)
    return caught[0]


# ------------------------------------------------------------------------------------------------ log-probs


def test_log_probs_are_those_of_the_plain_model_whatever_the_padding(folder: Path) -> None:
    model = load_model(folder)
    rows = [t.tokens().tolist() for t in batch(groups=2, size=3).trajectories()]
    places = [(r, c) for r, tokens in enumerate(rows) for c in range(1, len(tokens))]
    row, column = torch.tensor(places).T
    heat = torch.linspace(0.5, 2.0, len(places))
    with torch.no_grad():
        found, entropy = token_logprobs(model, torch.from_numpy(pad_rows(rows)), row, column, heat)
        for i, (r, c) in enumerate(places):
            logits = model(input_ids=torch.tensor([rows[r]])).logits[0, c - 1] / heat[i]
            expected = torch.log_softmax(logits, -1)
            assert float(found[i]) == pytest.approx(float(expected[rows[r][c]]), abs=1e-5)
            assert float(entropy[i]) == pytest.approx(float(-(expected.exp() * expected).sum()), abs=1e-5)


def test_chunked_logits_give_the_same_log_probs_and_gradients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch()
    whole = gradient(trainer(folder), data)
    monkeypatch.setattr("rollweave.policies.forward.LOGITS_AT_ONCE", 261 * 3)
    assert torch.allclose(gradient(trainer(folder), data), whole, atol=1e-6)


def test_rows_fill_the_budget_and_every_row_appears_once() -> None:
    lengths = [5, 9, 2, 9, 30, 1]
    plan = fill_rows(lengths, 20)
    assert sorted(i for indices in plan for i in indices) == list(range(6))
    assert plan == [[4], [1, 3], [0, 2, 5]]


# ----------------------------------------------------------------------------------------------- the update


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("denominator", ["behaviour", "proximal"])
def test_the_update_does_not_depend_on_how_micro_batches_are_cut(
    folder: Path, aggregation: str, denominator: str
) -> None:
    loss = PPOLoss(
        aggregation=aggregation, denominator=denominator, kl_coefficient=0.1, entropy_coefficient=0.01, dual_clip=3.0
    )
    data = batch(groups=4)
    gradients = [gradient(trainer(folder, loss=loss, microbatch_tokens=n), data) for n in (1, 40, 10_000)]
    assert float(gradients[0].abs().max()) > 1e-3
    for other in gradients[1:]:
        assert torch.allclose(gradients[0], other, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_gradient_is_that_of_the_textbook_loss(folder: Path, aggregation: str) -> None:
    data = batch(groups=2)
    loss = PPOLoss(aggregation=aggregation, clip_low=0.05, clip_high=0.1)
    found = gradient(trainer(folder, loss=loss, advantage=GRPOAdvantage(normalise="none")), data)
    model = load_model(folder)
    per_trajectory = []
    for group in data.groups:
        mean = sum(t.reward for t in group.members) / len(group.members)
        for t in group.members:
            tokens = t.tokens().tolist()
            logprobs = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0], -1)
            terms, position = [], 0
            for span in t.spans():
                for i, token in enumerate(span.tokens):
                    if span.logprobs is not None:
                        ratio = (logprobs[position + i - 1, token] - span.logprobs[i]).exp()
                        a = t.reward - mean
                        terms.append(-torch.min(ratio * a, ratio.clamp(0.95, 1.1) * a))
                position += len(span.tokens)
            per_trajectory.append(torch.stack(terms))
    means = torch.stack([terms.mean() for terms in per_trajectory])
    expected = torch.cat(per_trajectory).mean() if aggregation == "token" else means.mean()
    expected.backward()
    assert torch.allclose(found, torch.cat([p.grad.flatten() for p in model.parameters()]), atol=1e-6)


def test_rows_without_advantage_count_but_are_not_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch(groups=3)
    for member in data.groups[1].members:
        member.rewards = {"r": 1.0}
    thrifty, thorough = trainer(folder), trainer(folder)
    monkeypatch.setattr(thorough, "_compute_idle", lambda rows: True)
    passes: list[int] = []
    plain = thrifty._forward
    monkeypatch.setattr(thrifty, "_forward", lambda micro: (passes.append(len(micro.tokens)), plain(micro))[1])
    assert torch.allclose(gradient(thrifty, data), gradient(thorough, data), atol=1e-7)
    assert sum(passes) == 8


def test_minibatches_are_several_updates_of_one_version(folder: Path) -> None:
    made = trainer(folder, minibatches=3)
    made.train_step(batch())
    assert made.version == 1
    assert made.optimizer.state_dict()["state"][0]["step"] == 3
    again = trainer(folder, minibatches=3)
    again.train_step(batch())
    assert difference(made, again) == 0.0


def test_a_minibatch_holds_whole_groups(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(folder, minibatches=3)
    shares: list[set[int]] = []
    plain = made._passes
    monkeypatch.setattr(
        made, "_passes", lambda rows, idle: (shares.append({r.group for r in rows}), plain(rows, idle))[1]
    )
    data = batch()
    made.train_step(data)
    assert sum(len(share) for share in shares) == len(data.groups), "no group is in two mini-batches"


def test_off_policy_numbers_are_of_the_policy_before_the_step(folder: Path) -> None:
    """However many updates the step makes: a huge learning rate must not show in them."""
    calm = trainer(folder, minibatches=3, learning_rate=1e-9).train_step(batch())
    wild = trainer(folder, minibatches=3, learning_rate=1.0).train_step(batch())
    assert wild["offpolicy/ratio_p50"] == pytest.approx(calm["offpolicy/ratio_p50"], rel=1e-5)


def test_the_reference_stays_the_first_policy(folder: Path, tmp_path: Path) -> None:
    made = trainer(folder, loss=PPOLoss(kl_coefficient=0.1), learning_rate=1e-2)
    first = made.train_step(batch())["loss/kl"]
    second = made.train_step(batch())["loss/kl"]
    assert first == pytest.approx(0.0, abs=1e-6) and second > 1e-4
    made.save(tmp_path / "step-2")
    resumed = trainer(folder, loss=PPOLoss(kl_coefficient=0.1), learning_rate=1e-2)
    resumed.load(tmp_path / "step-2")
    assert resumed.train_step(batch())["loss/kl"] > second


def test_entropy_is_pushed_up_by_its_coefficient(folder: Path) -> None:
    made = trainer(folder, loss=PPOLoss(entropy_coefficient=100.0), learning_rate=1e-3)
    entropies = [made.train_step(batch())["loss/entropy"] for _ in range(4)]
    assert entropies[-1] > entropies[0]


def test_a_gradient_that_is_not_finite_changes_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, untouched = trainer(folder), trainer(folder)
    whole = made._forward
    made._forward = lambda micro: (*(x * math.nan for x in whole(micro)[:2]), None)  # type: ignore
    with caplog.at_level(logging.WARNING):
        metrics = made.train_step(batch())
    assert metrics["grad/skipped"] == 1.0 and "not finite" in caplog.text
    assert all(math.isfinite(value) for value in metrics.values())
    assert difference(made, untouched) == 0.0 and made.version == 1


# ------------------------------------------------------------------------------------------ honest ratios


@pytest.mark.parametrize("transform", [Transform(), Transform(0.7), Transform(1.3, top_p=0.9), Transform(0.7, top_k=5)])
def test_engine_and_trainer_compare_like_with_like(folder: Path, transform: Transform) -> None:
    made = trainer(folder)
    data = batch()
    for member in data.trajectories():
        score(made.model, member, transform)
        if transform.top_p < 1 or transform.top_k:  # the cut distribution's log-probs must then not be looked at
            for span in member.spans():
                span.logprobs = logprob_array([-0.01] * len(span.tokens)) if span.sampled else None
    metrics = made.train_step(data)
    assert metrics["mismatch/logprob_gap"] < 1e-5
    assert metrics["offpolicy/ess"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["offpolicy/ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_the_log_prob_gap_looks_at_tokens_of_the_current_version(folder: Path) -> None:
    made = trainer(folder)
    made.version = 1
    data = batch(version=1, step=1)
    for member in data.trajectories():
        score(made.model, member)
    stale = next(data.trajectories())
    for span in stale.spans():
        if span.logprobs is not None:
            span.version, span.logprobs = 0, span.logprobs - 1.0
    metrics = made.train_step(data)
    assert metrics["mismatch/logprob_gap"] < 1e-5 < metrics["offpolicy/ratio_max"] - 2


def test_a_sampled_token_that_nothing_stands_before_is_refused(folder: Path) -> None:
    made, untouched = trainer(folder), trainer(folder)
    headless = batch()
    headless.groups[0].members[0].turns[0].observation.tokens = token_ids([])
    with pytest.raises(UntrainableBatch, match="nothing predicts it"):
        made.train_step(headless)
    assert difference(made, untouched) == 0.0 and made.version == 0


def test_metrics_are_finite_even_if_nobody_differs(folder: Path) -> None:
    metrics = trainer(folder).train_step(batch(reward=lambda rng: 1.0))
    expected = {"loss/policy", "loss/kl", "loss/entropy", "grad/norm", "grad/skipped", "lr", "tokens/trained"}
    expected |= {f"offpolicy/{name}" for name in ("ess", "ratio_p50", "ratio_p99", "ratio_max", "clip_fraction")}
    expected |= {"offpolicy/uncorrected", "mismatch/logprob_gap", "mismatch/logprob_gap_max", "advantage/zero_share"}
    assert set(metrics) == expected
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["advantage/zero_share"] == 1.0 and metrics["grad/norm"] == 0.0


def test_weights_carry_hugging_face_names_and_tied_ones_once(folder: Path) -> None:
    made = trainer(folder)
    weights = made.weights()
    assert "model.embed_tokens.weight" in weights and "lm_head.weight" not in weights
    assert sum(w.numel() for w in weights.values()) == sum(p.numel() for p in made.model.parameters())


@pytest.mark.llm
def test_smollm2_trains_and_agrees_with_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollweave.policies.smollm2 import ensure

    monkeypatch.setattr("rollweave.policies.forward.LOGITS_AT_ONCE", 49152 * 8)
    made = trainer(ensure(), learning_rate=1e-5)
    data = batch(groups=1, size=3)
    for member in data.trajectories():
        score(made.model, member)
    first, second = made.train_step(data), made.train_step(data)
    assert first["mismatch/logprob_gap"] < 1e-4
    assert second["loss/policy"] < first["loss/policy"] and second["grad/skipped"] == 0.0
