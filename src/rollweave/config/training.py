"""The training section of a job: advantages, loss, optimiser.

`training.advantage`: what a sampled token is credited with. `docs/losses.md` has the formulas.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import Section, usual_type
from rollweave.config.losses import LossConfig, MismatchConfig, NoMismatch, PPOLoss

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class GRPOAdvantage(Section):
    """A member's reward against its group's mean."""

    type: Literal["grpo"] = "grpo"
    normalise: Literal["std", "none"] = "std"
    """`std`: divide by the group's standard deviation. `none`: the mean only (Dr. GRPO)."""

    @property
    def needs_group(self) -> bool:
        return True


class RLOOAdvantage(Section):
    """A member's reward against the mean of the others in its group."""

    type: Literal["rloo"] = "rloo"

    @property
    def needs_group(self) -> bool:
        return True


class ReinforcePlusAdvantage(Section):
    """A trajectory's reward, normalised over the whole batch (REINFORCE++)."""

    type: Literal["reinforce++"] = "reinforce++"
    baseline: Literal["batch", "group"] = "batch"
    """What is subtracted: the mean of the batch, or of the group. The standard deviation of what is left, over the
    batch, divides it either way."""

    @property
    def needs_group(self) -> bool:
        return self.baseline == "group"


class GAEAdvantage(Section):
    """Generalised advantage estimation, token by token, with a value head trained beside the policy."""

    type: Literal["gae"] = "gae"
    gamma: Share = 1.0
    """Discount per sampled token."""
    lam: Share = 0.95
    """Lambda: 0 trusts the value head, 1 the rewards that really came."""
    normalise: Literal["std", "none"] = "std"
    """`std`: mean 0 and deviation 1 over the batch's sampled tokens."""
    value_coefficient: Annotated[float, Field(ge=0.0)] = 0.5
    """Weight of the value loss, whose gradient also reaches the model under the head."""
    value_clip: PositiveFloat | None = 0.2
    """How far a value may move per train step before its loss stops pulling; none: plain squared error."""
    value_learning_rate_factor: PositiveFloat = 1.0
    """The head's learning rate is this times the policy's. It starts from nothing: raise it where that is small."""

    @property
    def needs_group(self) -> bool:
        return False


class GiGPOAdvantage(Section):
    """The group's advantage of the episode, plus that of each turn among turns that faced the same observation."""

    type: Literal["gigpo"] = "gigpo"
    normalise: Literal["std", "none"] = "std"
    """Of both parts: `std` divides by the standard deviation, `none` subtracts the mean only."""
    gamma: Share = 0.95
    """Discount per turn of what a turn led to."""
    omega: Annotated[float, Field(ge=0.0)] = 1.0
    """Weight of the part that compares turns."""

    @property
    def needs_group(self) -> bool:
        return True


AdvantageConfig = Annotated[
    GRPOAdvantage | RLOOAdvantage | ReinforcePlusAdvantage | GAEAdvantage | GiGPOAdvantage,
    Field(discriminator="type"),
    usual_type("grpo"),
]


class TrainingConfig(Section):
    steps: PositiveInt = 100
    """Train steps of the job."""
    advantage: AdvantageConfig = GRPOAdvantage()
    loss: LossConfig = PPOLoss()
    mismatch: MismatchConfig = NoMismatch()
    """What is done about log-probs on which engine and trainer differ."""
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

    @property
    def needs_before(self) -> bool:
        """Whether mini-batches after the first look at the log-probs the trainer had before the step."""
        return self.loss.needs_before or self.mismatch.type != "none"

    @property
    def ignores_staleness(self) -> bool:
        """Whether stale tokens would be trained as if they were fresh: nothing looks at the engine's log-probs."""
        return not self.loss.sees_behaviour and self.mismatch.type != "weight"

    @model_validator(mode="after")
    def _corrected_once(self) -> TrainingConfig:
        if self.mismatch.type == "weight" and self.loss.weighs_behaviour:
            fix = " or set loss.denominator to proximal" if self.loss.type != "decoupled_ppo" else ""
            raise ValueError(
                f"mismatch.type=weight would correct twice: the {self.loss.type} loss already divides by the engine's "
                f"log-probs; remove mismatch{fix}"
            )
        return self
