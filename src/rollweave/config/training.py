"""The training section of a job: advantages, loss, optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import Section


class GRPOAdvantage(Section):
    """A member's reward against its group's mean."""

    type: Literal["grpo"] = "grpo"
    normalise: Literal["std", "none"] = "std"
    """`std`: divide by the group's standard deviation. `none`: the mean only (Dr. GRPO)."""

    @property
    def needs_group(self) -> bool:
        return True


class PPOLoss(Section):
    """Clipped policy gradient."""

    type: Literal["ppo"] = "ppo"
    denominator: Literal["behaviour", "proximal"] | None = None
    """What the ratio divides by: `behaviour`, the engine's log-probs of the drawn tokens; `proximal`, the trainer's
    own before the step. Must be chosen when pipeline.alpha > 0; else `behaviour`."""
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Bounds the loss of tokens with a negative advantage and a huge ratio."""
    aggregation: Literal["token", "sequence"] = "token"
    """`token`: every token of the batch weighs the same. `sequence`: every trajectory does."""
    kl_coefficient: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the KL to the policy the job started from (k3 estimator)."""
    entropy_coefficient: Annotated[float, Field(ge=0.0)] = 0.0


class TrainingConfig(Section):
    steps: PositiveInt = 100
    """Train steps of the job."""
    advantage: GRPOAdvantage = GRPOAdvantage()
    loss: PPOLoss = PPOLoss()
    learning_rate: Annotated[float, Field(ge=0.0)] = 1e-4
    """0 trains nothing: a check that weights and log-probs stay put."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up, down to `final_learning_rate_share` of the peak at the last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final_learning_rate_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    gradient_clip: PositiveFloat = 1.0
    minibatches: PositiveInt = 1
    """Optimiser updates per train step; all of them make one version."""
    microbatch_tokens: PositiveInt = 8192
    """Padded tokens per forward and backward pass; gradients accumulate over them."""
