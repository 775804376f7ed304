"""The job file's keys for advantages, losses and the mismatch: kinds, defaults, contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollweave.config.job import Job
from rollweave.config.load import dump_job, parse_text
from rollweave.config.losses import CISPOLoss, DecoupledPPOLoss, PPOLoss
from rollweave.config.training import GAEAdvantage, GRPOAdvantage
from rollweave.errors import ConfigError

STALE = "model: {type: tiny}\nenvironment: {type: frozen_lake}\npipeline: {type: rollart, alpha: 2}\n"
FRESH = STALE.replace("rollart, alpha: 2", "sync+")


def job(training: str, *overrides: str, text: str = STALE):  # type: ignore[no-untyped-def]
    return parse_text(f"{text}training: {training}\n", "job.yaml", Path(), Job, overrides)


def refused(training: str, text: str = STALE) -> str:
    with pytest.raises(ConfigError) as caught:
        job(training, text=text)
    return str(caught.value).removeprefix("job.yaml:4: ")


def test_a_loss_without_a_type_is_ppo_and_an_advantage_grpo() -> None:
    made = job("{loss: {denominator: behaviour, clip_high: 0.3}, advantage: {normalise: none}}").training
    assert made.loss == PPOLoss(denominator="behaviour", clip_high=0.3)
    assert made.advantage == GRPOAdvantage(normalise="none")


def test_every_loss_survives_the_resolved_file() -> None:
    for loss in ("ppo", "tis", "cispo", "topr", "gspo", "kimi"):
        made = job(f"{{loss: {{type: {loss}, denominator: proximal}}, mismatch: {{type: weight, level: segment}}}}")
        assert parse_text(dump_job(made), "again", Path(), Job) == made
    made = job("{loss: {type: decoupled_ppo}, mismatch: {type: mask}, advantage: {type: gae, value_clip: null}}")
    assert parse_text(dump_job(made), "again", Path(), Job) == made
    assert made.training.advantage == GAEAdvantage(value_clip=None)


def test_switching_the_type_drops_the_keys_of_the_other_and_naming_the_same_does_not() -> None:
    text = "{loss: {denominator: behaviour, clip_high: 0.3}}"
    same = job(text, "training.loss.type=ppo").training.loss
    assert same == PPOLoss(denominator="behaviour", clip_high=0.3)
    other = job(text, "training.loss.type=cispo", "training.loss.clip_low=0.2").training.loss
    assert other == CISPOLoss(clip_low=0.2)
    assert job(text, "training.loss.type=decoupled_ppo").training.loss == DecoupledPPOLoss()


@pytest.mark.parametrize("loss", ["ppo", "tis", "cispo", "topr", "gspo", "kimi"])
def test_a_ratio_divides_by_the_engines_log_probs_unless_that_is_changed(loss: str) -> None:
    made = job(f"{{loss: {{type: {loss}}}}}")
    assert made.training.loss.denominator == "behaviour"  # type: ignore[union-attr]
    assert "denominator: behaviour" in dump_job(made), "the resolved file says what was chosen"


@pytest.mark.parametrize("loss", ["ppo", "tis", "cispo", "topr", "gspo", "kimi"])
def test_a_denominator_that_ignores_staleness_is_refused_on_stale_data(loss: str) -> None:
    wrong = f"loss: {{type: {loss}, denominator: proximal}}"
    message = refused(f"{{{wrong}}}")
    assert message.startswith("training.loss.denominator=proximal ignores staleness, but rollart trains stale data")
    assert "(staleness bound (alpha) 2)" in message and "training.mismatch.type=weight" in message
    refused(f"{{{wrong}, mismatch: {{type: mask}}}}")  # what a mask keeps it takes for fresh
    job(f"{{{wrong}, mismatch: {{type: weight}}}}")
    job(f"{{{wrong}}}", text=FRESH)


def test_decoupled_ppo_uses_both_and_has_nothing_to_choose() -> None:
    job("{loss: {type: decoupled_ppo}}")
    message = refused("{loss: {type: decoupled_ppo, denominator: behaviour}}")
    assert message.startswith("training.loss.denominator: a key of type ppo or tis or cispo or topr or gspo or kimi")


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (
            "{loss: {type: gspo, denominator: behaviour, dual_clip: 3}}",
            "training.loss.dual_clip: a key of type ppo only; type gspo has aggregation, kl_coefficient, "
            "entropy_coefficient, denominator, clip_low, clip_high",
        ),
        (
            "{loss: {denominator: behaviour}, advantage: {type: rloo, normalise: std}}",
            "training.advantage.normalise: a key of type grpo or gae or gigpo only; type rloo has no keys",
        ),
        (
            "{loss: {denominator: behaviour}, mismatch: {type: weight}}",
            "training: mismatch.type=weight would correct twice: the ppo loss already divides by the engine's "
            "log-probs; remove mismatch or set loss.denominator to proximal",
        ),
        (
            "{loss: {type: decoupled_ppo}, mismatch: {type: weight}}",
            "training: mismatch.type=weight would correct twice: the decoupled_ppo loss already divides by the "
            "engine's log-probs; remove mismatch",
        ),
        (
            "{loss: {denominator: behaviour}, mismatch: {type: weight, lower: 0.8}}",
            "training.mismatch.lower: a key of type mask only; type weight has level, upper",
        ),
        ("{mismatch: {level: token}}", "training.mismatch.type: missing; choose one of none, weight, mask"),
        (
            "{loss: {type: tis, denominator: behaviour, weight_low: 2}}",
            "training.loss: weight_low is 2, above weight_high 1: no weight lies between; lower weight_low",
        ),
        (
            "{loss: {type: gpso}}",
            'training.loss.type: no such type "gpso"; did you mean gspo? (valid: ppo, decoupled_ppo, tis, cispo, '
            "topr, gspo, kimi)",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_fix(training: str, said: str) -> None:
    assert refused(training) == said


@pytest.mark.parametrize(("advantage", "fits"), [("gae", True), ("reinforce++", True), ("rloo", False)])
def test_groups_of_one_fit_advantages_that_compare_nobody(advantage: str, fits: bool) -> None:
    text = FRESH + "rollout: {group_size: 1}\n"
    if fits:
        job(f"{{advantage: {{type: {advantage}}}}}", text=text)
    else:
        assert f"{advantage} advantages compare the members of a group" in refused(
            f"{{advantage: {{type: {advantage}}}}}", text=text
        )


@pytest.mark.parametrize(
    ("advantage", "fits"), [("gae", False), ("reinforce++", False), ("grpo", True), ("gigpo", True)]
)
def test_only_advantages_that_compare_members_may_filter_equal_rewards(advantage: str, fits: bool) -> None:
    text = FRESH + "rollout: {filter: zero_variance}\n"
    if fits:
        job(f"{{advantage: {{type: {advantage}}}}}", text=text)
    else:
        assert f"but {advantage} advantages do not compare" in refused(
            f"{{advantage: {{type: {advantage}}}}}", text=text
        )
