"""`training.advantage`: what a sampled token is credited with. `docs/losses.md` has the formulas."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from rollweave.config.base import Section, usual_type

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
