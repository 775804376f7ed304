"""TokenBooks: what became of every token the engines sampled.

    generated = trained + wasted + evaluation + in flight

Generated is what engines count, trained and wasted are booked on attempts by the ledger, evaluation belongs to no
attempt. In flight is the rest: in running episodes and in complete groups that nobody has consumed yet.

Some tokens reach no attempt at all: a turn that was begun again, an answer that came after its deadline, whatever was
lost with a dead worker. They are the cause `lost`. What an engine gives to nobody it counts itself; what it cannot
know (its own death, a dead host) shows when nothing is in flight and something is missing, and is booked then.
"""

from __future__ import annotations

from collections import Counter

TRAINED = "trained"
FILTERED = "filtered"
LOST = "lost"
CAUSES = ("filtered", "surplus", "stale", "aborted", "infra-failed", "reward-failed", LOST)
"""Where tokens end that are not trained: the ledger's ends of attempts, and what reached no attempt."""


class TokenBooks:
    def __init__(self) -> None:
        self.generated = 0
        self.evaluation = 0
        self.booked: Counter[str] = Counter()
        """By where attempts ended, and `lost`."""
        self._unbooked: dict[str, int] = {}
        """Of finished episodes that the ledger has not ended yet."""
        self._last: dict[str, int] = {}

    def sampled(self, tokens: int, thrown_away: int) -> None:
        """Engines sampled these; some of them they threw away themselves."""
        self.generated += tokens
        self.booked[LOST] += thrown_away

    def finish(self, attempt: str, tokens: int) -> None:
        self._unbooked[attempt] = tokens

    def book(self, attempt: str, end: str, tokens: int) -> None:
        self._unbooked.pop(attempt, None)
        self.booked[end] += tokens

    @property
    def in_flight(self) -> int:
        return self.generated - self.evaluation - self.booked.total()

    def settle(self) -> None:
        """Nothing is being generated: what is neither booked nor in a finished episode is lost."""
        missing = self.in_flight - sum(self._unbooked.values())
        if missing >= 0:
            self.booked[LOST] += missing
        else:
            # An engine that died had sampled this since it was last asked: it was delivered, but never counted.
            self.generated -= missing

    def sample(self) -> dict[str, float]:
        """Of the time since the last sample; `in_flight` as it is now, the share over the whole run."""
        totals = {"generated": self.generated, "evaluation": self.evaluation}
        totals |= {f"wasted/{cause}": self.booked[cause] for cause in CAUSES}
        row: dict[str, float] = {f"tokens/{name}": total - self._last.get(name, 0) for name, total in totals.items()}
        self._last = totals
        trained = self.booked[TRAINED]
        wasted = self.booked.total() - trained
        row["tokens/in_flight"] = self.in_flight
        row["tokens/wasted_share"] = wasted / (trained + wasted) if trained + wasted else 0.0
        return row
