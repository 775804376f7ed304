"""Lists the experiments for `rollweave experiments list`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rollweave_experiments.catalogue import experiments
from rollweave_experiments.frame import KINDS, Study
from rollweave_experiments.text import aligned


def listing() -> list[dict[str, Any]]:
    return [_entry(experiment.study) for experiment in experiments().values()]


def _entry(study: Study) -> dict[str, Any]:
    counts = Counter(claim.kind for claim in study.claims)
    return {
        "name": study.name,
        "paper": study.paper,
        "claim": study.claim,
        "title": study.title,
        "rows": {kind: counts[kind] for kind in KINDS},
    }


def listing_table() -> str:
    head = ("experiment", "paper", *KINDS, "")
    body = [
        (entry["name"], entry["paper"], *(str(entry["rows"][kind]) for kind in KINDS), entry["title"])
        for entry in listing()
    ]
    return aligned((head, *body))
