"""The torch trainer with every loss, mismatch correction and kind of advantage, on hand-made batches."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from rollweave.config.losses import (
    CISPOLoss,
    DecoupledPPOLoss,
    GSPOLoss,
    KimiLoss,
    MismatchMask,
    MismatchWeight,
    NoMismatch,
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
from rollweave.errors import RunFolderError
from rollweave.policies.forward import load_model
from rollweave.tasks import Task
from rollweave.training.diagnostics import identically_one
from rollweave.training.packing import micro_batches, rows_of
from rollweave.training.trainer import TorchTrainer
from rollweave.trajectory import Batch, Group, Outcome, Span, Trajectory, Transform, logprob_array, token_ids
from spans import span_of
from training_data import TASK, batch, score, tiny_policy

RATIO_LOSSES = (PPOLoss, TISLoss, CISPOLoss, TOPRLoss, GSPOLoss, KimiLoss)
LEVELS = ("token", "segment", "geometric", "sequence")
ADVANTAGES = [GRPOAdvantage(), RLOOAdvantage(), ReinforcePlusAdvantage(), GiGPOAdvantage(), GAEAdvantage()]
by_type = {"ids": lambda section: section.type}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trainer(folder: Path, **changes: Any) -> TorchTrainer:
    return TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **changes}), seed=1)


def mixed(groups: int = 4) -> Batch:
    """Answers in which the version changed, step rewards, an observation that comes again, a group of equals."""
    made = batch(groups=groups)
    for trajectory in made.trajectories():
        for number, turn in enumerate(trajectory.turns):
            turn.reward = 0.25 * (number + trajectory.member)
            turn.answer = [part for span in turn.answer for part in halves(span)]
        trajectory.turns[0].observation.tokens = token_ids([5, 6, 7])
        trajectory.rewards["environment"] = sum(turn.reward for turn in trajectory.turns)
    for trajectory in made.groups[1].members:
        trajectory.rewards = {"r": 1.0}
        for turn in trajectory.turns:
            turn.reward = 0.0
    return made


def halves(span: Span) -> list[Span]:
    cut = len(span.tokens) // 2
    assert span.logprobs is not None and span.raw_logprobs is not None
    parts = [(slice(0, cut), 0), (slice(cut, None), 1)]
    return [
        span_of(span.tokens[p], span.logprobs[p], span.raw_logprobs[p], version, span.transform)
        for p, version in parts
        if len(span.tokens[p])
    ]


def gradients(made: TorchTrainer, data: Batch) -> torch.Tensor:
    """The gradient of every update of a step; none of them is made, so that only the cut can make a difference."""
    caught: list[torch.Tensor] = []

    def catch(record: Any) -> None:
        record.updates += 1
        caught.append(torch.cat([p.grad.flatten().clone() for p in made.parameters if p.grad is not None]))
        made.optimizer.zero_grad(set_to_none=False)

    made._update = catch  # type: ignore[method-assign]
    made.train_step(data)
    return torch.cat(caught)


def same_however_cut(folder: Path, **config: Any) -> None:
    found = [gradients(trainer(folder, microbatch_tokens=n, **config), mixed()) for n in (1, 40, 10_000)]
    assert float(found[0].abs().max()) > 1e-4
    for other in found[1:]:
        assert torch.allclose(found[0], other, atol=2e-6)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize(
    "loss",
    [kind(denominator=d) for kind in RATIO_LOSSES for d in ("behaviour", "proximal")]
    + [DecoupledPPOLoss(), GSPOLoss(aggregation="token"), CISPOLoss(unified_mask=True, aggregation="sequence")],
    **by_type,
)
def test_no_update_depends_on_how_micro_batches_are_cut(folder: Path, loss: Any, minibatches: int) -> None:
    same_however_cut(folder, loss=loss, minibatches=minibatches)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [MismatchWeight, MismatchMask])
@pytest.mark.parametrize("loss", [PPOLoss(denominator="proximal"), GSPOLoss(denominator="proximal")], **by_type)
def test_nor_does_one_with_a_mismatch_correction(folder: Path, loss: Any, kind: Any, level: str) -> None:
    bounds = {"upper": 3.0} if kind is MismatchWeight else {"lower": 0.3, "upper": 3.0}
    same_however_cut(folder, loss=loss, mismatch=kind(level=level, **bounds), minibatches=2)


@pytest.mark.parametrize("advantage", ADVANTAGES, **by_type)
def test_nor_does_one_with_other_advantages(folder: Path, advantage: Any) -> None:
    same_however_cut(folder, advantage=advantage)


def test_segments_are_the_parts_of_an_answer_that_one_version_drew(folder: Path) -> None:
    made = Trajectory("t", 0, 0, TASK, outcome=Outcome.FINISHED)

    def span(length: int, version: int) -> Span:
        return span_of([1] * length, [0.0] * length, [0.0] * length, version, Transform())

    made.observe(token_ids([1, 2]))
    made.answer([span(2, 3), span(1, 3), span(2, 4)], "", "stop")
    made.observe(token_ids([3]))
    made.answer([span(0, 4), span(1, 4)], "", "stop")
    (row,) = rows_of(Batch(0, [Group(0, TASK, [made])]))
    assert row.segments.tolist() == [0, 0, 0, 1, 1, 2]
    row.advantage = [1.0] * 6
    (micro,) = micro_batches([row, row], 100)
    assert micro.segments.tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 5]


# ------------------------------------------------------------------------------------------ what they do


@pytest.mark.parametrize("loss", [DecoupledPPOLoss(), *(kind() for kind in RATIO_LOSSES)], **by_type)
@pytest.mark.parametrize("advantage", ADVANTAGES, **by_type)
def test_a_rewarded_token_becomes_more_likely(folder: Path, loss: Any, advantage: Any) -> None:
    """A bandit: after token 7 the arms 100 and 101; only 100 pays."""
    made = trainer(folder, learning_rate=3e-3, loss=loss, advantage=advantage)

    def probability(token: int) -> float:
        with torch.no_grad():
            return float(torch.softmax(made.model(input_ids=torch.tensor([[7]])).logits[0, -1], -1)[token])

    def episode(member: int) -> Trajectory:
        t = Trajectory(f"m{member}", 0, member, TASK, outcome=Outcome.FINISHED, rewards={"r": float(member % 2)})
        t.observe(token_ids([7]))
        t.answer([span_of([101 - member % 2], [0.0], [0.0], made.version, Transform())], "", "stop")
        score(made.model, t)
        return t

    good, bad = probability(100), probability(101)
    for step in range(5):
        made.train_step(Batch(step, [Group(0, Task("bandit", "test", 0), [episode(m) for m in range(4)])]))
    assert probability(100) > 1.5 * good
    assert probability(101) < bad


def uncorrected(loss: Any, folder: Path, **config: Any) -> float:
    made = trainer(folder, loss=loss, **config)
    made.version = 1
    return made.train_step(batch(version=0, step=1))["offpolicy/uncorrected"]


@pytest.mark.parametrize("kind", RATIO_LOSSES)
def test_stale_data_with_every_ratio_one_is_reported(folder: Path, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert uncorrected(kind(denominator="behaviour"), folder) == 0.0 and not caplog.text
        assert uncorrected(kind(denominator="proximal"), folder) == 1.0 and "as if on-policy" in caplog.text


def test_only_stale_tokens_are_asked_whether_they_were_corrected() -> None:
    stale = torch.tensor([False, False, True])
    assert identically_one(torch.tensor([0.9, 1.1, 1.0]), stale)
    assert not identically_one(torch.tensor([1.0, 1.0, 0.9]), stale)
    assert not identically_one(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False] * 3))


@pytest.mark.parametrize("denominator", ["behaviour", "proximal"])
def test_a_policy_that_has_not_moved_is_no_reason_to_warn(folder: Path, denominator: str) -> None:
    """Old tokens, but exactly the log-probs the trainer itself has: as good as fresh."""
    made, data = trainer(folder, loss=PPOLoss(denominator=denominator)), batch(version=0, step=1)
    made.version = 1
    rows = rows_of(data)
    made._record_before(rows)
    for trajectory, row in zip(data.trajectories(), rows, strict=True):
        known = iter(row.before or [])
        for span in trajectory.spans():
            if span.sampled:
                span.logprobs = logprob_array(next(known) for _ in span.tokens)
    assert made.train_step(data)["offpolicy/uncorrected"] == 0.0


def test_decoupled_ppo_and_mismatch_weights_are_corrections_too(folder: Path) -> None:
    assert uncorrected(DecoupledPPOLoss(), folder) == 0.0
    proximal = PPOLoss(denominator="proximal")
    assert uncorrected(proximal, folder, mismatch=MismatchWeight(level="geometric")) == 0.0
    assert uncorrected(proximal, folder, mismatch=MismatchMask(lower=0.0, upper=1e9)) == 1.0
    assert uncorrected(proximal, folder, minibatches=3) == 0.0


def test_decoupled_ppo_with_one_update_is_a_weighted_policy_gradient(folder: Path) -> None:
    """Nothing has moved when the only update is computed: what is left is the behaviour weight, as in uncapped tis."""
    data = batch()
    one = gradients(trainer(folder, loss=DecoupledPPOLoss(weight_cap=None)), data)
    other = gradients(trainer(folder, loss=TISLoss(denominator="behaviour", weight_high=1e9)), data)
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("advantage", [GRPOAdvantage(), GAEAdvantage()], **by_type)
def test_every_minibatch_is_compared_with_the_policy_before_the_step(folder: Path, advantage: Any) -> None:
    """However far the updates before it have moved."""
    made = trainer(folder, loss=DecoupledPPOLoss(), advantage=advantage, minibatches=3, learning_rate=1.0)
    untouched = trainer(folder, advantage=advantage)
    seen: list[tuple[Any, torch.Tensor | None]] = []
    plain = made._loss
    made._loss = lambda micro, new, before, entropy: (  # type: ignore[method-assign]
        seen.append((micro, before)),
        plain(micro, new, before, entropy),
    )[1]
    made.train_step(batch())
    assert len(seen) == 3
    for micro, before in seen:
        with torch.no_grad():
            assert before is not None and torch.allclose(before, untouched._forward(micro)[0], atol=1e-5)


def test_a_mismatch_weight_on_the_proximal_ratio_is_decoupled_ppo(folder: Path) -> None:
    weight = MismatchWeight(level="token", upper=1.7)
    one = trainer(folder, loss=DecoupledPPOLoss(weight_cap=1.7), minibatches=2)
    other = trainer(folder, loss=PPOLoss(denominator="proximal"), mismatch=weight, minibatches=2)
    assert torch.allclose(gradients(one, mixed()), gradients(other, mixed()), atol=1e-6)


def test_masked_tokens_are_counted_and_teach_nothing(folder: Path) -> None:
    data = batch()
    for member in data.trajectories():
        score(load_model(folder), member)
    shifted = data.groups[0].members[0].turns[0].answer[0]
    assert shifted.logprobs is not None
    shifted.logprobs = shifted.logprobs - 1.0
    metrics = trainer(folder, mismatch=MismatchMask()).train_step(data)
    share = len(shifted.tokens) / data.sampled_tokens
    assert metrics["mismatch/cut_share"] == pytest.approx(share)
    assert metrics["mismatch/factor_mean"] == pytest.approx(1 - share)
    for group in data.groups:
        for member in group.members:
            for span in member.spans():
                span.logprobs = None if span.logprobs is None else span.logprobs - 1.0
    metrics = trainer(folder, mismatch=MismatchMask()).train_step(data)
    assert metrics["mismatch/cut_share"] == 1.0 and metrics["grad/norm"] == 0.0


def test_the_weight_is_one_on_fresh_data_whatever_the_level(folder: Path) -> None:
    data = batch()
    for member in data.trajectories():
        score(load_model(folder), member)
    for level in LEVELS:
        config = {"loss": PPOLoss(denominator="proximal"), "mismatch": MismatchWeight(level=level)}
        metrics = trainer(folder, **config).train_step(data)
        assert metrics["mismatch/factor_mean"] == pytest.approx(1.0, abs=1e-5) and metrics["mismatch/cut_share"] == 0.0


@pytest.mark.parametrize("loss", [DecoupledPPOLoss(), *(kind() for kind in RATIO_LOSSES)], **by_type)
def test_a_group_of_equals_is_computed_only_where_the_loss_moves_it(
    folder: Path, loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaving it out does not change the update."""
    thrifty, thorough = trainer(folder, loss=loss), trainer(folder, loss=loss)
    monkeypatch.setattr(thorough, "_compute_idle", lambda rows: True)
    passed: list[int] = []
    plain = thrifty._forward
    monkeypatch.setattr(thrifty, "_forward", lambda micro: (passed.append(len(micro.tokens)), plain(micro))[1])
    assert torch.allclose(gradients(thrifty, mixed()), gradients(thorough, mixed()), atol=1e-7)
    assert sum(passed) == (16 if loss.type == "kimi" else 12)


def test_a_minibatch_with_nothing_to_compute_is_no_obstacle(folder: Path) -> None:
    data = batch(groups=4)
    for group in data.groups[1:]:
        for member in group.members:
            member.rewards = {"r": 1.0}
    metrics = trainer(folder, minibatches=4).train_step(data)
    assert metrics["grad/norm"] > 0 and metrics["offpolicy/ess"] > 0


# ------------------------------------------------------------------------------------------ the value head


def test_the_value_head_learns_to_foresee_the_returns(folder: Path) -> None:
    made = trainer(folder, advantage=GAEAdvantage(value_clip=None, value_learning_rate_factor=30.0), loss=PPOLoss())
    first = made.train_step(mixed())
    for _ in range(40):
        last = made.train_step(mixed())
    assert first["value/explained_variance"] == pytest.approx(0.0, abs=1e-6), "an empty head foresees nothing"
    assert last["value/explained_variance"] > 0.3
    assert last["loss/value"] < 0.5 * first["loss/value"]


def test_advantages_without_a_value_head_lack_its_metrics(folder: Path) -> None:
    assert not {"loss/value", "value/explained_variance"} & trainer(folder).train_step(mixed()).keys()


def test_the_gradient_with_a_value_head_is_that_of_the_textbook(folder: Path) -> None:
    """A fresh head says 0 everywhere: advantages are discounted sums of rewards, and so are the returns."""
    data = mixed(groups=2)
    gae = GAEAdvantage(gamma=0.9, lam=0.8, normalise="none", value_clip=0.2, value_coefficient=0.7)
    found = gradients(trainer(folder, loss=PPOLoss(clip_low=0.5, clip_high=0.5), advantage=gae), data)
    model = load_model(folder)
    head = torch.nn.Linear(model.config.hidden_size, 1)
    torch.nn.init.zeros_(head.weight), torch.nn.init.zeros_(head.bias)
    terms = []
    for trajectory in data.trajectories():
        tokens = torch.tensor([trajectory.tokens().tolist()])
        hidden = model.model(input_ids=tokens).last_hidden_state[0]
        logprobs = torch.log_softmax(model.lm_head(hidden), -1)
        position, sampled, rewards = 0, [], []
        for turn in trajectory.turns:
            position += len(turn.observation.tokens)
            for span in turn.answer:
                assert span.logprobs is not None
                sampled += [(position + i, x) for i, x in enumerate(span.logprobs.tolist())]
                rewards += [0.0] * len(span.tokens)
                position += len(span.tokens)
            rewards[-1] += turn.reward
        rewards[-1] += trajectory.reward - sum(turn.reward for turn in trajectory.turns)
        for i, (place, behaviour) in enumerate(sampled):
            target = sum((0.9 * 0.8) ** k * reward for k, reward in enumerate(rewards[i:]))
            ratio = (logprobs[place - 1, tokens[0, place]] - behaviour).exp()
            policy = -torch.min(ratio * target, ratio.clamp(0.5, 1.5) * target)
            terms.append(policy + 0.7 * 0.5 * (head(hidden[place - 1])[0] - target) ** 2)
    torch.stack(terms).mean().backward()
    modules = [*model.parameters(), *head.parameters()]
    expected = torch.cat([p.grad.flatten() for p in modules])  # type: ignore[union-attr]
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_value_head_never_leaves_the_trainer(folder: Path, tmp_path: Path) -> None:
    made = trainer(folder, advantage=GAEAdvantage())
    made.train_step(mixed())
    assert made.weights().keys() == trainer(folder).weights().keys()
    made.save(tmp_path / "step-1")
    assert load_model(tmp_path / "step-1").state_dict().keys() == load_model(folder).state_dict().keys()


def test_continuing_with_a_value_head_is_bit_identical(folder: Path, tmp_path: Path) -> None:
    config = {"advantage": GAEAdvantage(), "minibatches": 2, "loss": DecoupledPPOLoss(), "schedule": "linear"}
    made = trainer(folder, **config)
    for _ in range(2):
        made.train_step(mixed())
    made.save(tmp_path / "step-2")
    resumed = trainer(folder, **config)
    resumed.load(tmp_path / "step-2")
    for _ in range(2):
        assert made.train_step(mixed()) == resumed.train_step(mixed())
    assert made.head is not None and resumed.head is not None
    assert bool(made.head.weight.any())
    for one, other in zip(made.parameters, resumed.parameters, strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_kind_of_advantage_is_refused(folder: Path, tmp_path: Path) -> None:
    with_head, without = trainer(folder, advantage=GAEAdvantage()), trainer(folder)
    with_head.save(tmp_path / "step-1")
    without.save(tmp_path / "step-2")
    with pytest.raises(RunFolderError, match="has a saved value head, but the job wants none"):
        without.load(tmp_path / "step-1")
    with pytest.raises(RunFolderError, match="has no value head, but the job wants one"):
        with_head.load(tmp_path / "step-2")


def test_a_learning_rate_of_0_trains_neither_policy_nor_head(folder: Path) -> None:
    made = trainer(folder, advantage=GAEAdvantage(), learning_rate=0.0)
    before = [p.clone() for p in made.parameters]
    made.train_step(mixed())
    assert all(torch.equal(one, other) for one, other in zip(before, made.parameters, strict=True))


def test_contradictions_are_refused() -> None:
    for loss in (PPOLoss(), TISLoss(denominator="behaviour"), DecoupledPPOLoss()):
        with pytest.raises(ValueError, match="correct twice"):
            TrainingConfig(loss=loss, mismatch=MismatchWeight())
    TrainingConfig(loss=KimiLoss(denominator="behaviour"), mismatch=MismatchWeight())
    TrainingConfig(loss=PPOLoss(), mismatch=MismatchMask())
    assert not TrainingConfig(loss=PPOLoss(), mismatch=NoMismatch()).needs_before
    with pytest.raises(ValueError, match="weight_low is 2, above weight_high 1"):
        TISLoss(weight_low=2.0)
