"""SlotMeter: how much of the room for episodes stood empty, and whether the staleness bound kept it so.

The scheduler admits whatever the bound allows at once. A slot that is free while no episode is in line is therefore
free because the bound refused to start another: the producer's back-pressure.
"""

from __future__ import annotations


class SlotMeter:
    """Fed with what the dispatcher says whenever an episode begins or ends."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._free = self._slots = self._queued = 0
        self._clear()

    def change(self, time: float, free: int, slots: int, queued: int) -> None:
        self._advance(time)
        self._free, self._slots, self._queued = free, slots, queued

    def sample(self, now: float) -> dict[str, float]:
        """Of the time since the last sample."""
        self._advance(now)
        seconds, free, room, pressed = self._seconds, self._free_seconds, self._room_seconds, self._pressed_seconds
        self._clear()
        return {
            "idle/environments": free / room if room else 0.0,
            "queue/free_slots": free / seconds if seconds else float(self._free),
            "queue/backpressure_seconds": pressed,
        }

    def _clear(self) -> None:
        self._seconds = self._free_seconds = self._room_seconds = self._pressed_seconds = 0.0

    def _advance(self, time: float) -> None:
        passed = 0.0 if self._at is None else time - self._at
        self._at = time
        self._seconds += passed
        self._free_seconds += passed * self._free
        self._room_seconds += passed * self._slots
        if self._free > 0 and self._queued == 0:
            self._pressed_seconds += passed
