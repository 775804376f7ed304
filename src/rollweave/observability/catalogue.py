"""Knows every key of metrics.jsonl with its unit and meaning (`metrics.yaml`), and refuses any other.

`docs/metrics.md` is made from it: `python -m rollweave.observability.catalogue > docs/metrics.md`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rollweave.config.document import parse


@dataclass(frozen=True, slots=True)
class Metric:
    """One key, or one pattern of keys."""

    key: str
    description: str
    unit: str = ""


@cache
def sections() -> dict[str, tuple[Metric, ...]]:
    """The metrics by the section of the page."""
    file = Path(__file__).with_name("metrics.yaml")
    data = parse(file.read_text(encoding="utf-8"), file.name).data
    return {title: tuple(Metric(key, **entry) for key, entry in metrics.items()) for title, metrics in data.items()}


@cache
def all_metrics() -> tuple[Metric, ...]:
    return tuple(metric for section in sections().values() for metric in section)


@cache
def find(key: str) -> Metric | None:
    """The entry of the catalogue for a key; an exact key comes before a pattern."""
    exact = next((metric for metric in all_metrics() if metric.key == key), None)
    return exact or next((metric for metric in all_metrics() if _pattern(metric.key).fullmatch(key)), None)


def check(key: str) -> None:
    """Refuse a key that is not in the catalogue, because no reader could look it up."""
    if find(key) is None:
        near = difflib.get_close_matches(key, [metric.key for metric in all_metrics()], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown metric {key!r}{hint} New metrics are declared in observability/metrics.yaml")


@cache
def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w+>", lambda _: r"[\w.+-]+", key.replace(".", r"\.")))


def part(name: str) -> str:
    """A name that a user chose, as it may stand between two slashes of a key."""
    return re.sub(r"[^\w.+-]", "_", name) or "_"


def markdown() -> str:
    """Write the page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "One JSON object per train step in `metrics.jsonl`, the same numbers in `tensorboard/`. Tokens are counted per",
        "step, attempts (`ledger/`) since the run began. A number that is not finite is written as null.",
        "",
        "This page is made by `python -m rollweave.observability.catalogue > docs/metrics.md`.",
    ]
    for title, metrics in sections().items():
        lines += ["", f"## {title}", "", "| key | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{metric.key}` | {metric.unit} | {metric.description} |" for metric in metrics]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
