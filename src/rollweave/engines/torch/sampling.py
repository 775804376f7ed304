"""Draws tokens, reproducibly and for a whole batch at once, and decides when an answer is over.

The token at place i of a request is a function of (its seed, i, its logits) and of nothing else: a hash of
(seed, i) gives one uniform number, and the token is where the cumulative distribution passes it. What else is in
the batch, and what was drawn before, cannot matter.

Two log-probs are kept. `raw` is the policy's own. `behaviour` belongs to the distribution that was really drawn from,
after temperature, top-k and top-p, in that order; a greedy draw comes from a point mass, so its log-prob is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave.crossing import down, flag, up
from rollweave.engines.protocol import Finish, Sampling

NUCLEUS_GUESS = 512
"""Top-p first looks at this many candidates; only a row whose nucleus is larger is sorted as a whole."""


@dataclass(frozen=True, slots=True)
class Draws:
    """One entry per row of logits."""

    tokens: list[int]
    behaviour: list[float]
    raw: list[float]


def draw(logits: Tensor, samplings: Sequence[Sampling], seeds: Sequence[int], places: Sequence[int]) -> Draws:
    """Draw one token per row of `logits` [rows, vocabulary]."""
    raw = logits - logits.logsumexp(1, keepdim=True)
    greedy = [row for row, s in enumerate(samplings) if s.temperature == 0.0]
    if len(greedy) == len(samplings):
        tokens = raw.argmax(1, keepdim=True)
        behaviour = torch.zeros_like(raw[:, :1])
    else:
        there = _there(logits, samplings, seeds, places, greedy)
        weights = _weights(raw, there)
        cumulative = weights.cumsum(1)
        tokens = _invert(cumulative, there.uniforms)
        behaviour = (weights.gather(1, tokens) / cumulative[:, -1:]).log_()
        if greedy:
            tokens[there.greedy] = raw[there.greedy].argmax(1, keepdim=True)
            behaviour[there.greedy] = 0.0
    drawn, *logprobs = down(tokens[:, 0], behaviour[:, 0], raw.gather(1, tokens)[:, 0])
    return Draws(drawn.tolist(), *(some.tolist() for some in logprobs))


@dataclass(frozen=True, slots=True)
class DrawParameters:
    """What the rows are drawn with, on the device."""

    uniforms: Tensor
    temperatures: Tensor | None
    """None: all are 1."""
    greedy: Tensor
    """The rows that are not drawn at all."""
    limited: Tensor
    """The rows that top-k or top-p limits, and for each of them these limits."""
    top_k: Tensor
    top_p: Tensor
    most: int
    """The largest top-k; 0: none has one."""


def _there(
    logits: Tensor, samplings: Sequence[Sampling], seeds: Sequence[int], places: Sequence[int], greedy: list[int]
) -> DrawParameters:
    """All in one crossing."""
    vocabulary = logits.shape[1]
    temperatures = [s.temperature or 1.0 for s in samplings]
    limited = [row for row, s in enumerate(samplings) if s.temperature and (s.top_k or s.top_p < 1.0)]
    top_k = [min(samplings[row].top_k or vocabulary, vocabulary) for row in limited]
    top_p = [samplings[row].top_p if samplings[row].top_p < 1.0 else np.inf for row in limited]
    uniform, heat, greedy_rows, limited_rows, k, p = up(
        logits.device,
        uniforms(seeds, places),
        np.array(temperatures, np.float32),
        np.array(greedy, np.int64),
        np.array(limited, np.int64),
        np.array(top_k, np.int64)[:, None],
        np.array(top_p, np.float32)[:, None],
    )
    plain = all(t == 1.0 for t in temperatures)
    most = max((samplings[row].top_k for row in limited), default=0)
    return DrawParameters(uniform, None if plain else heat, greedy_rows, limited_rows, k, p, most)


def _weights(raw: Tensor, there: DrawParameters) -> Tensor:
    """Unnormalised probabilities after temperature, top-k and top-p."""
    if there.temperatures is not None:
        scaled = raw / there.temperatures[:, None]
        weights = (scaled - scaled.amax(1, keepdim=True)).exp_()
    else:
        weights = raw.exp()
    if len(there.limited):
        weights[there.limited] = _cut(weights[there.limited], there)
    return weights


def _cut(weights: Tensor, there: DrawParameters) -> Tensor:
    """Zero what top-k and then top-p leave out."""
    vocabulary = weights.shape[1]
    guess = min(vocabulary, max(NUCLEUS_GUESS, there.most))
    floor = _floor(weights, there.top_k, there.top_p, guess)
    if floor is None:
        floor = _floor(weights, there.top_k, there.top_p, vocabulary)
    assert floor is not None
    return weights.masked_fill_(weights < floor, 0.0)


def _floor(weights: Tensor, top_k: Tensor, top_p: Tensor, candidates: int) -> Tensor | None:
    """Each row's smallest weight that is kept; None if a row's nucleus reaches beyond its `candidates` largest.

    The nucleus is the smallest set of most likely tokens that holds at least top-p of the mass.
    """
    largest = weights.topk(candidates).values
    largest.masked_fill_(torch.arange(candidates, device=weights.device) >= top_k, 0.0)
    mass = largest.sum(1, keepdim=True)
    unlimited = top_k > candidates
    wanted = top_p * torch.where(unlimited, weights.sum(1, keepdim=True), mass)
    if candidates < weights.shape[1] and flag((unlimited & (mass < wanted)).any()):
        return None
    before = largest.cumsum(1) - largest
    kept = torch.minimum((before < wanted).sum(1, keepdim=True), top_k)
    return largest.gather(1, kept - 1)


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds uniform * total; tokens of weight 0 never are."""
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)


def uniforms(seeds: Sequence[int], places: Sequence[int]) -> NDArray[np.float32]:
    """A number in [0, 1) per (seed, place), by splitmix64.

    23 bits, so that the float32 product with a total stays below that total.
    """
    with np.errstate(over="ignore"):
        state = _mix(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF for seed in seeds], dtype=np.uint64))
        state = _mix(state + np.array(places, dtype=np.uint64))
    return (state >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-23)


def _mix(state: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    state = state + np.uint64(0x9E37_79B9_7F4A_7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return state ^ (state >> np.uint64(31))


class Decoder(Protocol):
    """The one thing the engine needs of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...


def finish_of(answer: list[int], sampling: Sampling, room: int, decoder: Decoder) -> Finish | None:
    """Whether the answer ends with its newest token. `room`: tokens the context could still take."""
    stops = sampling.stop_strings
    if answer[-1] in sampling.stop_tokens or (stops and _holds_stop_string(answer, stops, decoder)):
        return "stop"
    if len(answer) >= sampling.max_tokens or room <= 0:
        return "length"
    return None


def text_of(answer: list[int], sampling: Sampling, decoder: Decoder) -> str:
    """The answer as the environment sees it: no stop token, no special tokens."""
    if answer and answer[-1] in sampling.stop_tokens:
        answer = answer[:-1]
    return decoder.decode(answer, skip_special_tokens=True) if answer else ""


def _holds_stop_string(answer: list[int], stops: tuple[str, ...], decoder: Decoder) -> bool:
    """Look at the tail first. A token holds at least a byte, so no stop string is longer in tokens than in bytes."""
    tail = answer[-max(len(stop.encode()) for stop in stops) - 4 :]
    text = decoder.decode(tail, skip_special_tokens=True)
    if not any(stop in text for stop in stops):
        return False
    # A tail may decode differently at its cut; the whole answer decides.
    return any(stop in decoder.decode(answer, skip_special_tokens=True) for stop in stops)
