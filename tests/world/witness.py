"""Witness: what the modelled machinery really did, written down where it happened.

Tests compare it with what the control plane believes. It knows nothing of schedulers or ledgers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rollweave.engines.protocol import Completion, Request
from rollweave.fleet.fleet import EngineEntry


@dataclass(frozen=True, slots=True)
class Answered:
    """A request as an engine answered it."""

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    versions: tuple[int, ...]
    """Of each token."""
    aborted: bool = False

    def goes_on_as(self, other: Answered) -> bool:
        """Whether that is the rest of it: the request was moved to another engine."""
        return self.aborted and other.tokens[: len(self.tokens)] == self.tokens


@dataclass(slots=True)
class Witness:
    answered: dict[str, Answered] = field(default_factory=dict)
    """By request id, which is `<lease>#<turn>`."""
    sampled: Counter[str] = field(default_factory=Counter)
    """Tokens drawn, by request."""
    redrawn: Counter[str] = field(default_factory=Counter)
    """Tokens by request that were sampled and lost in the engine: its death, or `restart_turn`."""
    abandoned: Counter[str] = field(default_factory=Counter)
    """Tokens by request whose asker was gone before the answer: a deadline, a cancelled episode, a dead host."""
    answered_twice: list[str] = field(default_factory=list)
    weights: list[tuple[str, int, int]] = field(default_factory=list)
    """(`prepared`, `committed`, `serving` or `gone`, engine, version), in order."""

    def see(self, entry: EngineEntry) -> None:
        """An engine of the fleet has changed its state."""
        if entry.state in ("serving", "gone"):
            self.weights.append((entry.state, entry.control.number, entry.version))  # type: ignore[attr-defined]

    def answer(self, request: Request, completion: Completion) -> None:
        before = self.answered.get(request.id)
        answered = Answered(
            tuple(request.tokens.tolist()),
            tuple(token for span in completion.spans for token in span.tokens.tolist()),
            tuple(span.version for span in completion.spans if span.version is not None for _ in span.tokens),
            completion.finish == "aborted",
        )
        if before is not None and not before.goes_on_as(answered):
            self.answered_twice.append(request.id)
        self.answered[request.id] = answered
