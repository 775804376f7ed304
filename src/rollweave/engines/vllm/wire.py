"""What the adapter and vLLM's worker tell each other about one drawn token.

vLLM draws from a generator per request, so a token depends on how many were drawn before it in the same process: an
answer that is interrupted and goes on elsewhere would be another one. And it reports one log-prob per token, raw or
processed, never both. So the worker draws with this project's own sampler (`rollweave.engines.torch.sampling`), in a
logits processor, and leaves vLLM no choice: it overwrites the row of logits with the two log-probs, and vLLM's greedy
choice and its `processed_logits` carry them out.

    row of logits   [-inf, ..., raw log-prob, ..., -inf, ..., minus the behaviour log-prob, ..., -inf]
                                at the carrier                at the token that was drawn: the only number above 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rollweave.engines.protocol import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from rollweave.engines.torch.sampling import Draws

ORDER = "rollweave"
"""The key of `extra_args`, in vLLM's sampling parameters, that holds a `DrawOrder`."""

LOGPROBS = 2
"""What vLLM is asked to report: the token that was drawn, and the carrier."""

LEAST = 1e-30
"""Stands for a behaviour log-prob of 0, so that the token is still above the carrier."""


@dataclass(frozen=True, slots=True)
class DrawOrder:
    """How the tokens of one vLLM request are drawn."""

    seed: int
    place: int
    """Of its first token in the answer: those before it were drawn in an earlier request."""
    sampling: Sampling

    def packed(self) -> list[int | float]:
        """As it travels, in types that survive it."""
        sampling = self.sampling
        seed = self.seed & 0xFFFF_FFFF_FFFF_FFFF
        return [seed, self.place, sampling.temperature, sampling.top_p, sampling.top_k]

    @classmethod
    def unpacked(cls, values: Sequence[Any]) -> DrawOrder:
        seed, place, temperature, top_p, top_k = values
        return cls(seed, place, Sampling(temperature=temperature, top_p=top_p, top_k=top_k))


class ReportedLogprob(Protocol):
    """The part of vLLM's answer that is read here."""

    logprob: float


def write_draws(logits: Tensor, rows: Sequence[int], draws: Draws) -> None:
    """Overwrite these rows of logits with what was drawn for them."""
    import torch

    index = torch.tensor(rows, device=logits.device)
    tokens = torch.tensor(draws.tokens, device=logits.device)
    behaviour = torch.tensor(draws.behaviour, device=logits.device, dtype=logits.dtype)
    raw = torch.tensor(draws.raw, device=logits.device, dtype=logits.dtype)
    carriers = (tokens == 0).long()  # `carrier`, for a whole batch
    logits[index] = -torch.inf
    logits[index, carriers] = raw.clamp(-1e30, 0.0)
    logits[index, tokens] = behaviour.neg().clamp(min=LEAST)


def carrier(token: int) -> int:
    """The token id beside the drawn one that reports its raw log-prob."""
    return 1 if token == 0 else 0


def read_draw(token: int, reported: Mapping[int, ReportedLogprob]) -> tuple[float, float]:
    """The behaviour and the raw log-prob of a token that vLLM reports."""
    behaviour = reported[token].logprob
    return (-behaviour if behaviour > 2 * LEAST else 0.0), reported[carrier(token)].logprob
