"""The sections `training.loss` and `training.mismatch`: what a train step minimises.

`docs/losses.md` has the formulas.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from rollweave.config.base import Section, Share, default_type

Aggregation = Literal["token", "sequence"]
Denominator = Literal["behaviour", "proximal"]


class Loss(Section):
    """The keys that every loss has."""

    type: str
    aggregation: Aggregation = "token"
    """`token`: every token of the batch weighs the same. `sequence`: every trajectory weighs the same."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL to the policy the job started from (k3 estimator)."""
    entropy_coefficient: NonNegativeFloat = 0.0

    @property
    def denominators(self) -> tuple[Denominator, ...]:
        """What its ratios divide by."""
        return ("behaviour", "proximal")

    @property
    def sees_behaviour(self) -> bool:
        """Whether it compares the policy with the engine's draw, and so can tell stale tokens from fresh ones."""
        return "behaviour" in self.denominators

    @property
    def needs_before(self) -> bool:
        """Whether the loss uses the trainer's own log-probs from before the step."""
        return "proximal" in self.denominators

    @property
    def weighs_behaviour(self) -> bool:
        """Whether the loss already corrects for the difference between the engine's and the trainer's log-probs."""
        return self.sees_behaviour

    @property
    def moves_idle_rows(self) -> bool:
        """Whether tokens with advantage 0 have a gradient too."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0


class RatioLoss(Loss):
    """A loss with one ratio, whose denominator is a choice."""

    denominator: Denominator = "behaviour"
    """What the ratio divides by: `behaviour`, the engine's log-probs of the drawn tokens; `proximal`, the trainer's
    own before the step. `proximal` does not see staleness: with a staleness bound (alpha) above 0 it is refused, unless
    training.mismatch.type=weight corrects for it."""

    @property
    def denominators(self) -> tuple[Denominator, ...]:
        return (self.denominator,)


class PPOLoss(RatioLoss):
    """Clipped policy gradient."""

    type: Literal["ppo"] = "ppo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Bounds the loss of tokens with a negative advantage and a huge ratio."""


class DecoupledPPOLoss(Loss):
    """Clips the ratio to the policy before the step, and weighs each token by that policy over the engine's."""

    type: Literal["decoupled_ppo"] = "decoupled_ppo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    weight_cap: PositiveFloat | None = 5.0
    """Largest weight of a token; none: no bound, as in the paper."""


class TISLoss(RatioLoss):
    """Policy gradient with a truncated importance weight."""

    type: Literal["tis"] = "tis"
    weight_low: NonNegativeFloat = 0.0
    weight_high: PositiveFloat = 1.0
    """The weight is the ratio, limited to the range from `weight_low` to `weight_high`."""

    @model_validator(mode="after")
    def _ordered(self) -> TISLoss:
        if self.weight_low > self.weight_high:
            raise ValueError(
                f"weight_low is {self.weight_low:g}, above weight_high {self.weight_high:g}: no weight lies between; "
                "lower weight_low"
            )
        return self


class CISPOLoss(RatioLoss):
    """Policy gradient with an importance weight clipped around 1, so that every token keeps some gradient."""

    type: Literal["cispo"] = "cispo"
    clip_low: PositiveFloat = 0.1
    clip_high: PositiveFloat = 0.1
    unified_mask: bool = False
    """Drop the tokens that PPO would clip, instead of only bounding their weight."""


class TOPRLoss(RatioLoss):
    """Tokens with a positive advantage count fully, the others with an importance weight of at most 1."""

    type: Literal["topr"] = "topr"
    positive_weight: NonNegativeFloat = 1.0
    negative_weight: NonNegativeFloat = 1.0
    """Other than 1 and 1: weighted TOPR."""


class GSPOLoss(RatioLoss):
    """PPO's clip on the ratio of whole trajectories (the geometric mean over their tokens)."""

    type: Literal["gspo"] = "gspo"
    aggregation: Aggregation = "sequence"
    """`sequence`: every trajectory weighs the same, as in the paper. `token`: a trajectory weighs by its length."""
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4
    """Small, because a mean over many tokens changes little."""


class KimiLoss(RatioLoss):
    """Policy gradient without weights, held near the old policy by a squared log-ratio (Kimi k1.5)."""

    type: Literal["kimi"] = "kimi"
    tau: PositiveFloat = 0.1
    """Strength of the squared log-ratio."""

    @property
    def weighs_behaviour(self) -> bool:
        return False

    @property
    def moves_idle_rows(self) -> bool:
        return True


LossConfig = Annotated[
    PPOLoss | DecoupledPPOLoss | TISLoss | CISPOLoss | TOPRLoss | GSPOLoss | KimiLoss,
    Field(discriminator="type"),
    default_type("ppo"),
]

Level = Literal["token", "segment", "geometric", "sequence"]


class NoMismatch(Section):
    """No correction: the log-probs of engine and trainer are assumed to agree."""

    type: Literal["none"] = "none"


class MismatchWeight(Section):
    """Weighs the policy loss by exp(trainer's log-prob before the step - engine's), truncated, without gradient."""

    type: Literal["weight"] = "weight"
    level: Level = "token"
    """How the log-prob differences are combined: `token`, not at all; `segment`, the mean over tokens of one answer
    and one version; `geometric`, the mean over the trajectory; `sequence`, the sum over it."""
    upper: PositiveFloat = 1.2
    """Larger weights are reduced to this."""


class MismatchMask(Section):
    """Leaves tokens on which engine and trainer differ too much out of the policy loss."""

    type: Literal["mask"] = "mask"
    level: Level = "token"
    """As for `weight`."""
    lower: Share = 0.8
    upper: Annotated[float, Field(ge=1.0)] = 1.2
    """Tokens whose weight would be below `lower` or above `upper` are left out."""


MismatchConfig = Annotated[NoMismatch | MismatchWeight | MismatchMask, Field(discriminator="type")]
