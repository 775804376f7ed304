"""The training section of a job: advantages, loss, optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.advantages import AdvantageConfig, GRPOAdvantage
from rollweave.config.base import Section
from rollweave.config.losses import LossConfig, MismatchConfig, NoMismatch, PPOLoss


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
