"""The papers' experiments: what is claimed, that every preset runs, and that the verdicts are fair."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollweave.cli.main import app
from rollweave.errors import ConfigError
from rollweave_experiments import flash, rollart
from rollweave_experiments.catalogue import chosen, experiments, run
from rollweave_experiments.claims import flash as flash_claims
from rollweave_experiments.claims import rollart as rollart_claims
from rollweave_experiments.document import documentation
from rollweave_experiments.frame import Claim, Experiment, Measurement, Plot, Study
from rollweave_experiments.page import page
from rollweave_experiments.plot import standalone
from rollweave_experiments.save import as_json, read_results
from rollweave_experiments.verdict import assess, deviation, scores

DOCS = Path(__file__).parent.parent / "docs"
OURS: list[Experiment] = [*rollart.EXPERIMENTS, *flash.EXPERIMENTS]
CHEAP = ["rollart-serverless", "flash-queue", "flash-replication"]


def study(*claims: Claim) -> Study:
    return Study("made-up", "Nobody", "nowhere", "Made up", "nothing", "all", claims)


# -------------------------------------------------------------------------------------------------------- the claims


def test_every_row_of_the_claims_belongs_to_an_experiment() -> None:
    claimed = [study.name for study in (*rollart_claims.STUDIES, *flash_claims.STUDIES)]
    assert [experiment.name for experiment in OURS] == claimed


def test_claims_can_be_told_apart_and_tested() -> None:
    for experiment in experiments().values():
        labels = [claim.label for claim in experiment.study.claims]
        assert len(set(labels)) == len(labels), experiment.name
        for claim in experiment.study.claims:
            assert (claim.kind == "shape") == bool(claim.holds), f"{experiment.name}: {claim.label}"
            assert claim.kind == "shape" or claim.paper is not None, f"{experiment.name}: {claim.label}"


def test_the_page_of_documentation_says_what_the_tables_say() -> None:
    results = DOCS / "experiments.json"
    assert (DOCS / "experiments.md").read_text() == documentation(read_results(results)), (
        "run: python -m rollweave_experiments.document docs/experiments.json > docs/experiments.md"
    )


def test_the_kept_results_are_of_the_rows_that_are_claimed() -> None:
    kept = read_results(DOCS / "experiments.json")["experiments"]
    run = {one["name"] for one in kept}
    assert run >= {experiment.name for experiment in OURS}
    found = {(one["name"], row["row"], row["claim"], row["holds"]) for one in kept for row in one["rows"]}
    claimed = {(e.name, c.label, c.kind, c.holds) for e in experiments().values() for c in e.study.claims}
    assert found == {row for row in claimed if row[0] in run}


def test_the_bar_is_met_by_the_kept_results() -> None:
    ours = {experiment.name for experiment in OURS}
    kept = [one for one in read_results(DOCS / "experiments.json")["experiments"] if one["name"] in ours]
    verdicts = [row["verdict"] for one in kept for row in one["rows"] if row["claim"] == "number"]
    assert verdicts.count("ok") >= 0.8 * len(verdicts)
    assert "miss" not in verdicts


# ------------------------------------------------------------------------------------------------------- the verdicts


def test_a_number_agrees_is_near_or_is_missed() -> None:
    claims = [Claim(label, "number", 2.0, "P") for label in ("inside", "near", "beyond")]
    result = assess(study(*claims), [0], [Measurement({"inside": 2.29, "near": 1.45, "beyond": 2.61})])
    assert [row.verdict for row in result.rows] == ["ok", "near", "miss"]
    assert [row.ok for row in result.rows] == [True, False, False]


def test_a_range_is_kept_inside_and_measured_from_its_nearer_end() -> None:
    assert deviation(1.9, (1.4, 2.4)) == 0.0
    assert deviation(2.64, (1.4, 2.4)) == pytest.approx(0.1)
    assert deviation(1.26, (1.4, 2.4)) == pytest.approx(0.1)
    assert deviation(None, 1.0) is None


def test_a_shape_holds_only_if_it_holds_for_every_seed() -> None:
    claim = Claim("rises", "shape", 100.0, "P", holds="it rises")
    kept, broken = Measurement({"rises": 1.0}, {"rises": True}), Measurement({"rises": 3.0}, {"rises": False})
    assert assess(study(claim), [0, 1], [kept, kept]).rows[0].ok  # however far the figure is from the paper's
    both = assess(study(claim), [0, 1], [kept, broken]).rows[0]
    assert (both.verdict, both.measured, both.spread) == ("miss", 2.0, (1.0, 3.0))


def test_calibration_is_counted_apart() -> None:
    claims = (Claim("a", "number", 1.0, "P"), Claim("b", "calibration", 1.0, "P"), Claim("c", "shape", 1.0, "P"))
    result = assess(study(*claims), [0], [Measurement({"a": 1.0, "b": 9.0}, {"c": False})])
    assert [(s.kind, s.rows, s.ok, s.miss) for s in scores([result])] == [
        ("number", 1, 1, 0),
        ("shape", 1, 0, 1),
        ("calibration", 1, 0, 1),
    ]


def test_a_row_nobody_claimed_and_a_claim_nobody_measured_are_errors() -> None:
    one = study(Claim("a", "number", 1.0, "P"))
    with pytest.raises(ValueError, match="stranger"):
        assess(one, [0], [Measurement({"a": 1.0, "stranger": 1.0})])
    with pytest.raises(ValueError, match="nothing was measured"):
        assess(one, [0], [Measurement({})])


# --------------------------------------------------------------------------------------------------------- the presets


@pytest.mark.parametrize("name", CHEAP)
def test_a_preset_runs_in_miniature(name: str) -> None:
    run_in_miniature(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [experiment.name for experiment in OURS if experiment.name not in CHEAP])
def test_every_preset_runs_in_miniature(name: str) -> None:
    run_in_miniature(name)


def run_in_miniature(name: str) -> None:
    """Every claimed row gets a verdict, numbers get a figure, and the page shows them all."""
    result = run(experiments()[name], [0], small=True)
    for row in result.rows:
        assert row.claim.kind == "shape" or (row.measured is not None and row.measured > 0), row.label
    drawn = page([result])
    assert all(drawn.count(f'<tr class="{v}">') == sum(r.verdict == v for r in result.rows) for v in ("ok", "miss"))


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import json; from rollweave_experiments.catalogue import experiments, run;"
        "print(json.dumps(run(experiments()['flash-queue'], [3], small=True).as_json()))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = run(experiments()["flash-queue"], [3], small=True)
    assert there == json.dumps(here.as_json()) + "\n"
    assert there != json.dumps(run(experiments()["flash-queue"], [4], small=True).as_json()) + "\n"


# ----------------------------------------------------------------------------------------------- commands and pages


def test_the_list_as_json() -> None:
    result = CliRunner().invoke(app, ["experiments", "list", "--json"])
    listed = json.loads(result.stdout)
    assert [entry["name"] for entry in listed] == list(experiments())
    for entry in listed:
        assert entry["paper"] and entry["claim"] in ("number", "shape", "calibration")
        assert sum(entry["rows"].values()) == len(experiments()[entry["name"]].study.claims)
    assert next(e for e in listed if e["name"] == "rollart-weights")["claim"] == "number"  # the strongest of its rows


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="rollart-ladder"):
        chosen("rollart-lader")


def test_run_prints_and_saves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    claims = (Claim("up", "number", 2.0, "P"), Claim("rises", "shape", None, "S", holds="it <rises>"))
    plot = Plot("curve", "x", "y", {"measured": ((1, 1.0), (2, 3.0))})
    found = {0: 2.0, 1: 4.0}
    made = Experiment(
        study(*claims), lambda seed, small: Measurement({"up": found[seed]}, {"rises": seed == 0}, (plot,))
    )
    monkeypatch.setattr("rollweave_experiments.catalogue.experiments", lambda: {"made-up": made})
    html, out = tmp_path / "page.html", tmp_path / "out"
    words = ["experiments", "run", "made-up", "--seeds", "2", "--html", str(html), "--out", str(out)]
    printed = CliRunner().invoke(app, words).stdout
    assert "2-4x" in printed and "50 %" in printed and "FAILS: it <rises>" in printed
    assert "number: 0 of 1 within 15 %, 0 within 30 %, 1 missed" in printed
    assert html.read_text().count('<tr class="miss">') == 2 and "it &lt;rises&gt;" in html.read_text()
    assert json.loads((out / "made-up.json").read_text())["rows"][0]["measured"] == 3.0
    assert (out / "made-up.svg").read_text().startswith("<svg")


def test_json_is_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Experiment(study(Claim("up", "number", 2.0, "P")), lambda seed, small: Measurement({"up": 2.0}))
    monkeypatch.setattr("rollweave_experiments.catalogue.experiments", lambda: {"made-up": made})
    printed = json.loads(CliRunner().invoke(app, ["experiments", "run", "all", "--json"]).stdout)
    assert printed == as_json([run(made, [0])])
    assert printed["scores"]["number"] == {"rows": 1, "ok": 1, "near": 0, "miss": 0}


def test_plots_put_values_where_they_belong() -> None:
    bars = standalone(Plot("bars", "", "s", {"paper": (("a", 1.0), ("b", 2.0))}, bars=True))
    heights = [float(part.split('"')[0]) for part in bars.split('height="')[1:] if 'fill="var(--s0)"><title>' in part]
    assert len(heights) == 2 and heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    lines = standalone(Plot("lines", "x", "y", {"one": ((0, 0.0), (10, 5.0)), "two": ((0, 5.0), (10, 0.0))}))
    assert lines.count("<polyline") == 2 and lines.count("<circle") == 4
