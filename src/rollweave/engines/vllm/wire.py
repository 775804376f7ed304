"""What the adapter and vLLM's worker tell each other about one drawn token.

vLLM draws from a generator per request, so a token depends on how many were drawn before it in the same process: an
answer that is interrupted and goes on elsewhere would be another one. And it reports one log-prob per token, raw or
processed, never both. So the worker draws with this project's own sampler (`rollweave.engines.torch.sampling`), in a
logits processor, and leaves vLLM no choice: it overwrites the row of logits, and vLLM's greedy choice and the log-probs
of that row carry out what was drawn.

    row of logits   0 at the token that was drawn; its behaviour log-prob - 1 and its raw log-prob - 1 at two other
                    tokens, the carriers; minus infinity elsewhere

vLLM normalises the row before it reports it, so what counts is how far the carriers are below the token.
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

LOGPROBS = 3
"""What vLLM is asked to report: the token that was drawn, and the carriers."""


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


LOWEST = -1e30


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
    logits[index] = -torch.inf
    logits[index, (tokens == 0).long()] = behaviour.clamp(LOWEST, 0.0) - 1.0  # at `carriers`
    logits[index, (tokens <= 1).long() + 1] = raw.clamp(LOWEST, 0.0) - 1.0
    logits[index, tokens] = 0.0


def carriers(token: int) -> tuple[int, int]:
    """The token ids that report the behaviour and the raw log-prob of a drawn token: the first two others."""
    return int(token == 0), 1 + int(token <= 1)


def read_draw(token: int, reported: Mapping[int, ReportedLogprob]) -> tuple[float, float]:
    """The behaviour and the raw log-prob of a token that vLLM reports."""
    top = reported[token].logprob - 1.0
    behaviour, raw = (min(0.0, reported[carrier].logprob - top) for carrier in carriers(token))
    return behaviour, raw
