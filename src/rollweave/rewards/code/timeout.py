"""RollPacker's adaptive timeout: a test that correct programs pass in a second does not wait thirty for a wrong one.

    min(max(least, factor * anchor), most),    anchor: the longest that a correct program has taken for this test

Until a program has passed a test, its anchor is unknown and the timeout is the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class AdaptiveTimeout:
    least: float
    factor: float
    most: float
    _anchors: dict[bytes, float] = field(default_factory=dict)

    def seconds(self, test: bytes) -> float:
        anchor = self._anchors.get(test)
        return self.most if anchor is None else min(max(self.least, self.factor * anchor), self.most)

    def passed(self, test: bytes, seconds: float) -> None:
        """A program has passed the test in this time."""
        self._anchors[test] = max(seconds, self._anchors.get(test, 0.0))
