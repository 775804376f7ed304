"""When an answer is over."""

from __future__ import annotations

from typing import Protocol

from rollweave.engines.protocol import Finish, Sampling


class Decoder(Protocol):
    """The one thing the engine needs of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...


def finish_of(answer: list[int], sampling: Sampling, room: int, decoder: Decoder) -> Finish | None:
    """Whether the answer ends with its newest token. `room`: tokens the context could still take."""
    if answer[-1] in sampling.stop_tokens:
        return "stop"
    if sampling.stop_strings and _holds_stop_string(answer, sampling.stop_strings, decoder):
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
