"""The training section of a job: advantages, loss and optimiser.

An advantage says how much better or worse a sampled token was than expected. `docs/losses.md` has the formulas.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section, Share, default_type
from rollweave.config.losses import LossConfig, MismatchConfig, NoMismatch, PPOLoss


class Advantage(Section):
    """How rewards become advantages."""

    @property
    def needs_group(self) -> bool:
        """Whether it compares the members of a group."""
        return True


class GRPOAdvantage(Advantage):
    """A member's reward minus the mean of its group."""

    type: Literal["grpo"] = "grpo"
    normalise: Literal["std", "none"] = "std"
    """`std`: divide by the group's standard deviation. `none`: the mean only (Dr. GRPO)."""


class RLOOAdvantage(Advantage):
    """A member's reward minus the mean of the other members of its group."""

    type: Literal["rloo"] = "rloo"


class ReinforcePlusAdvantage(Advantage):
    """A trajectory's reward, normalised over the whole batch (REINFORCE++)."""

    type: Literal["reinforce++"] = "reinforce++"
    baseline: Literal["batch", "group"] = "batch"
    """What is subtracted: the mean of the batch, or of the group. The result is divided by its standard deviation over
    the batch in both cases."""

    @property
    def needs_group(self) -> bool:
        return self.baseline == "group"


class GAEAdvantage(Advantage):
    """Generalised advantage estimation, token by token, with a value head that is trained together with the policy."""

    type: Literal["gae"] = "gae"
    gamma: Share = 1.0
    """Discount per sampled token."""
    lam: Share = 0.95
    """Lambda: 0 relies on the value head, 1 on the rewards that were observed."""
    normalise: Literal["std", "none"] = "std"
    """`std`: mean 0 and deviation 1 over the batch's sampled tokens."""
    value_coefficient: NonNegative = 0.5
    """Weight of the value loss, whose gradient also reaches the model under the head."""
    value_clip: PositiveFloat | None = 0.2
    """How far a value may move per train step before its loss has no gradient; none: plain squared error."""
    value_learning_rate_factor: PositiveFloat = 1.0
    """The value head's learning rate is this times the policy's. The head starts untrained: raise the factor if the
    policy's learning rate is small."""

    @property
    def needs_group(self) -> bool:
        return False


class GiGPOAdvantage(Advantage):
    """The episode's advantage in its group, plus each turn's advantage among turns with the same observation."""

    type: Literal["gigpo"] = "gigpo"
    normalise: Literal["std", "none"] = "std"
    """For both parts: `std` divides by the standard deviation, `none` only subtracts the mean."""
    gamma: Share = 0.95
    """Discount per turn of the rewards that follow a turn."""
    omega: NonNegative = 1.0
    """Weight of the part that compares turns."""


AdvantageConfig = Annotated[
    GRPOAdvantage | RLOOAdvantage | ReinforcePlusAdvantage | GAEAdvantage | GiGPOAdvantage,
    Field(discriminator="type"),
    default_type("grpo"),
]


class LoraConfig(Section):
    """Low-rank adaptation: beside each chosen linear layer two small matrices are trained, and nothing else. Needs the
    package peft (`pip install rollweave[lora]`)."""

    rank: PositiveInt = 8
    """Rows of the one matrix, columns of the other."""
    alpha: PositiveFloat = 16.0
    """What they add is multiplied by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    """The last parts of the names of the layers; the default is every linear layer but the vocabulary projection."""
    sync: Literal["merged", "adapter"] = "merged"
    """What engines get: `merged`, the whole policy with the adapter added in; `adapter`, only the small matrices, which
    each engine adds to the policy that it started from."""


class TrainingConfig(Section):
    """How the trainer turns batches into new versions."""

    steps: PositiveInt = 100
    """Train steps of the job."""
    advantage: AdvantageConfig = GRPOAdvantage()
    loss: LossConfig = PPOLoss()
    mismatch: MismatchConfig = NoMismatch()
    """How differences between the log-probs of engine and trainer are corrected."""
    learning_rate: NonNegative = 1e-4
    """0 trains nothing, which is a check that weights and log-probs do not change."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up, down to `final_learning_rate_share` of its peak at the last
    step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final_learning_rate_share: Share = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: NonNegative = 0.0
    gradient_clip: PositiveFloat = 1.0
    minibatches: PositiveInt = 1
    """Optimiser updates per train step; together they make one version."""
    microbatch_tokens: PositiveInt = 8192
    """Padded tokens per forward and backward pass; gradients accumulate over them."""
    packing: bool = False
    """Short trajectories share a line of a pass instead of being padded. The update is the same up to rounding."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the matrix products of the trainer are computed in. Weights, moments and gradients are float32 in any case.
    `bfloat16` is for GPUs."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass, and compute the rest again: less memory, a third more
    work."""
    ranks: PositiveInt = 1
    """Processes that train together on one machine, each with its share of weights, gradients and moments (FSDP2). More
    than one needs runtime.type=ray. On GPUs: as many as the trainer has; on CPU cores they share its cores."""
    rank_timeout: PositiveFloat = 600.0
    """Seconds after which a rank that does not answer the others counts as dead. Rank 0 pushes weights and writes
    checkpoints while the others wait, so it must be longer than that takes."""
    lora: LoraConfig | None = None
    """Train a small adapter instead of all weights; none: all weights."""
    stream: bool = False
    """Compute the gradients of each group as soon as it is sure to be in the step's batch, while others are still
    played. The update is the same up to rounding. Refused where the loss needs the whole batch first."""

    @property
    def needs_before(self) -> bool:
        """Whether mini-batches after the first need the log-probs that the trainer had before the step."""
        return self.loss.needs_before or self.mismatch.type != "none"

    @property
    def ignores_staleness(self) -> bool:
        """Whether stale tokens would be trained as if they were fresh: nothing looks at the engine's log-probs."""
        return not self.loss.sees_behaviour and self.mismatch.type != "weight"

    @property
    def needs_whole_batch(self) -> str | None:
        """Why no gradient can be computed before the whole batch is there, and the fix; None if it can."""
        if self.minibatches > 1:
            return f"minibatches is {self.minibatches}, and the whole batch is shuffled into them; set minibatches to 1"
        if isinstance(self.advantage, ReinforcePlusAdvantage):
            return "reinforce++ advantages are divided by their deviation over the whole batch; use grpo or rloo"
        if isinstance(self.advantage, GAEAdvantage) and self.advantage.normalise == "std":
            return "gae advantages are normalised over the whole batch; set advantage.normalise to none"
        return None

    @model_validator(mode="after")
    def _check_stream(self) -> TrainingConfig:
        if self.stream and (obstacle := self.needs_whole_batch):
            raise ValueError(f"stream trains on groups as they come, but {obstacle}, or remove stream")
        return self

    @model_validator(mode="after")
    def _check_mismatch(self) -> TrainingConfig:
        if self.mismatch.type == "weight" and self.loss.weighs_behaviour:
            fix = " or set loss.denominator to proximal" if self.loss.type != "decoupled_ppo" else ""
            raise ValueError(
                f"mismatch.type=weight would correct twice: the {self.loss.type} loss already divides by the engine's "
                f"log-probs; remove mismatch{fix}"
            )
        return self
