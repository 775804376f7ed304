"""Writes docs/experiments.md: every row, its claim, and what the last full run measured.

rollweave experiments run all --json > docs/experiments.json
python -m rollweave_experiments.document docs/experiments.json > docs/experiments.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollweave_experiments import text
from rollweave_experiments.catalogue import experiments
from rollweave_experiments.frame import Claim, Study
from rollweave_experiments.save import read_results

MeasuredCell = Mapping[str, Any]
MeasuredCells = Mapping[tuple[str, str], MeasuredCell]

INTRODUCTION = """# Experiments

The papers' experiments as presets of the [simulation](simulation.md): our control plane on modelled hardware, beside
what the papers report.

```
rollweave experiments list [--json]
rollweave experiments run NAME|all [--seed N] [--seeds K] [--json] [--html FILE] [--out DIR]
```

`--html` writes one page with every table and plot; `--out` a folder with the rows as JSON and the plots as SVG.
The same seed prints the same bytes; `--seeds K` reports the spread over K seeds.

Every row carries a claim. Claims were committed before the first measurement, and each change of one since is a
commit with its reason (`git log -p -- src/rollweave_experiments/claims src/rollweave/simulation/experiments/claims`):

| claim | meaning |
|---|---|
| number | the inputs are known well enough to land near the paper's figure: agrees within 15 %, near within 30 % |
| shape | they are not: only the statement in the last column is claimed; the figures are shown for comparison |
| calibration | a constant of our models was taken from this row, so agreement proves nothing |

One set of constants (`config/hardware.py`) and one of workload presets (`simulation/workloads/presets.yaml`) serve all
rows, but for a bandwidth that `rollart-weights` and `rollart-production` set themselves; both sets were changed after
results had been seen. What the papers leave unknown and we had to choose is named with each experiment. Evidence: P
read in the paper, A in its public code, S in a third party's note, S- in one that nothing confirms, D computed by us
from published figures. A range is the paper's over several cases; anywhere inside it counts as exact.

This page is made by `python -m rollweave_experiments.document docs/experiments.json`; the measured figures
are those of the JSON beside it, which `rollweave experiments run all --json` printed. A row without one has not been
run since it was written down.

Agreement is weak evidence: a program that prints 1.0 for every row agrees on 13 of the 36 numbers, and a review found
that one without a GPU model agrees on 13 of 15 (no command of ours repeats this figure). In RollArt's experiments
`rollart` runs with a staleness bound one above the paper's alpha, 2 against AReaL's 1 in the ladder; the review found
it slower than AReaL on 8B and 14B at equal bounds.
"""


def documentation(results: Mapping[str, Any]) -> str:
    measured = {
        (experiment["name"], row["row"]): row for experiment in results["experiments"] for row in experiment["rows"]
    }
    parts = [INTRODUCTION, _summary(results)]
    parts += [_study(experiment.study, measured) for experiment in experiments().values()]
    return "\n".join(parts)


def _summary(results: Mapping[str, Any]) -> str:
    lines = ["## In short", "", "| claim | rows | agree or hold | near | missed |", "|---|---|---|---|---|"]
    for kind, score in results["scores"].items():
        lines.append(f"| {kind} | {score['rows']} | {score['ok']} | {score['near']} | {score['miss']} |")
    return "\n".join([*lines, ""])


def _study(study: Study, measured: MeasuredCells) -> str:
    lines = [
        f"## {study.name}",
        "",
        f"{study.title} ({study.paper}, {study.where}).",
        "",
        f"Known: {study.known}. Chosen by us: {study.chosen}.",
        "",
        "| row | claim | paper | evidence | measured | off | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(claim, measured.get((study.name, claim.label), {})) for claim in study.claims]
    return "\n".join([*lines, ""])


def _row(claim: Claim, cell: MeasuredCell) -> str:
    words = text.SHAPE_WORDS if claim.kind == "shape" else text.WORDS
    off = cell.get("off")
    cells = (
        claim.label,
        claim.kind,
        text.figure(claim.paper, claim.unit),
        claim.evidence,
        text.figure(cell.get("measured"), claim.unit),
        "-" if off is None else f"{off * 100:.0f} %",
        ": ".join(part for part in (words.get(cell.get("verdict", ""), ""), claim.holds) if part),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(documentation(read_results(Path(sys.argv[1]))), end="")
