"""SlotMeter: how much of the room for episodes stood empty, and whether the staleness bound kept it so.

The scheduler admits whatever the bound allows at once. A slot that is free while no episode is in line is therefore
free because the bound refused to start another: the producer's back-pressure.
"""

from __future__ import annotations


class SlotMeter:
    """Fed with what the dispatcher says whenever an episode begins or ends."""

    def __init__(self) -> None:
        self._at: float | None = None
        self.free = self.slots = self.in_line = 0
        self._refused_since: float | None = None
        self._clear()

    def change(self, time: float, free: int, slots: int, in_line: int) -> None:
        self._advance(time)
        self.free, self.slots, self.in_line = free, slots, in_line
        if not self._refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = time

    def refused_for(self, now: float) -> float:
        """How long slots have been free without a break, though nobody may begin."""
        return 0.0 if self._refused_since is None else now - self._refused_since

    @property
    def _refused(self) -> bool:
        return self.free > 0 and self.in_line == 0

    def sample(self, now: float) -> dict[str, float]:
        """Of the time since the last sample."""
        self._advance(now)
        seconds, free, room, pressed = self._seconds, self._free_seconds, self._room_seconds, self._pressed_seconds
        self._clear()
        return {
            "idle/environments": free / room if room else 0.0,
            "queue/free_slots": free / seconds if seconds else float(self.free),
            "queue/backpressure_seconds": pressed,
        }

    def _clear(self) -> None:
        self._seconds = self._free_seconds = self._room_seconds = self._pressed_seconds = 0.0

    def _advance(self, time: float) -> None:
        passed = 0.0 if self._at is None else time - self._at
        self._at = time
        self._seconds += passed
        self._free_seconds += passed * self.free
        self._room_seconds += passed * self.slots
        if self._refused:
            self._pressed_seconds += passed
