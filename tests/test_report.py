"""The report: one page that works offline, on runs finished, torn, empty, or not runs at all."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from tools.curve import curve_svg
from typer.testing import CliRunner

from rollweave.cli.inspect import report
from rollweave.errors import RunFolderError
from rollweave.observability.metrics import MetricsWriter
from rollweave.observability.report.page import write_report
from rollweave.observability.report.sections import chosen
from rollweave.observability.report.svg import Series, line_chart, smooth, stacked_bars, thin
from synthetic_run import write_run

VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order or never."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def render(run: Path) -> str:
    html = write_report(run, run / "report.html").read_text()
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return html


def words(html: str) -> str:
    """What a reader sees."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S)))


def test_a_finished_run(tmp_path: Path):
    html = render(write_run(tmp_path / "run"))
    text = words(html)
    for expected in (
        "quickstart", "target reached", "frozen_lake · tiny · rollart, α = 1", "Held-out reward 0.930", "Steps 60",
        "Learning curve", "target 0.85", "Time per step", "waiting for data", "weight sync", "Idle share", "engine",
        "Staleness", "bound α = 1", "Effective sample size", "Clip fraction", "Log-prob gap", "Throughput",
        "trained 7,680", "surplus", "infra-failed", "Slow waits", "group 17: environment in step 12", "Transcripts",
        "first", "best", "worst, last", "version 59, 2 tokens", "evaluation: every: 10",
    ):  # fmt: skip
        assert expected in text, expected
    assert html.count("<circle") == 7  # an evaluation every 10 steps, and the last version


def test_the_page_asks_nobody_for_anything(tmp_path: Path):
    html = render(write_run(tmp_path / "run", steps=5))
    addresses = set(re.findall(r"https?://[^\"' )]+", html)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"\b(src|href)=|@import|url\(", html)


def test_what_an_episode_says_is_shown_and_not_run(tmp_path: Path):
    html = render(write_run(tmp_path / "run", steps=3))
    assert "<b>Go?</b>" not in html
    assert "&lt;b&gt;Go?&lt;/b&gt;" in html


def test_an_unfinished_torn_run_without_evaluation(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=6, evaluate_every=0, finished=False)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        path = run / name
        path.write_text(path.read_text()[:-40])
    text = words(render(run))
    assert "metrics.jsonl: the last line is incomplete and was left out" in text
    assert "trajectories.jsonl: the last line is incomplete" in text
    assert "Steps 5" in text
    assert "running, or killed" in text
    assert "not evaluated yet" in text


def test_a_run_that_has_only_started(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("name: fresh\n")
    text = words(render(tmp_path))
    assert "fresh" in text
    assert "nothing recorded yet" in text
    assert "no transcripts were written" in text


def test_nulls_and_odd_rows_do_not_break_it(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=4)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "reward/mean": null, "time/step": null}\n[1]\n{"no": "step"}\n')
    (run / "trajectories.jsonl").write_text('{"step": 1, "reward": null}\n')
    (run / "summary.json").write_text('{"of": "another release"}')
    (run / "config.yaml").write_text("a: [broken")
    assert "Learning curve" in words(render(run))


def test_one_step_is_enough(tmp_path: Path):
    html = render(write_run(tmp_path / "run", steps=1, finished=False))
    assert "Steps 1" in words(html)
    assert "nan" not in html.lower()


def test_warnings_stand_above_the_curves(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=4)
    writer = MetricsWriter(run)
    writer.write(2, {"offpolicy/uncorrected": 1.0, "grad/skipped": 2.0})
    writer.close()
    text = words(render(run))
    assert "1 steps (the first: 2) trained stale data with a ratio of exactly 1" in text
    assert "2 updates were skipped" in text
    assert text.index("ratio of exactly 1") < text.index("Learning curve")


def test_a_failed_run_says_why(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=2)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"exit_reason": "failed", "error": "the engine died"}))
    text = words(render(run))
    assert "failed" in text and "the engine died" in text


@pytest.mark.parametrize("make", [lambda path: path / "nowhere", lambda path: path])
def test_what_is_not_a_run_is_refused_with_the_fix(tmp_path: Path, make):
    with pytest.raises(RunFolderError, match="rollweave train"):
        write_report(make(tmp_path), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_folder_of_runs_names_them(tmp_path: Path):
    write_run(tmp_path / "monday", steps=1)
    with pytest.raises(RunFolderError, match="monday"):
        write_report(tmp_path, tmp_path / "report.html")


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=1)
    with pytest.raises(RunFolderError, match="-o"):
        write_report(run, run)


def test_the_command_writes_beside_the_run_unless_told(tmp_path: Path):
    app = typer.Typer()
    app.command()(report)
    run = write_run(tmp_path / "run", steps=2)
    result = CliRunner().invoke(app, [str(run)])
    assert result.exit_code == 0 and "report.html" in result.output
    assert (run / "report.html").is_file()
    CliRunner().invoke(app, [str(run), "-o", str(tmp_path / "deep" / "page.html")])
    assert (tmp_path / "deep" / "page.html").is_file()


def test_the_curve_stands_alone(tmp_path: Path):
    svg = curve_svg(write_run(tmp_path / "run"))
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"held-out reward", "training reward", "train steps →", "reward", "target 0.85"} <= set(texts)
    used = set(re.findall(r"var\((--\w+)\)", svg))
    assert all(f"{name}:" in svg for name in used)  # no colour is left to a page that is not there


def test_a_curve_of_nothing_is_refused(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("name: fresh\n")
    with pytest.raises(RunFolderError, match="no learning curve yet"):
        curve_svg(tmp_path)


def test_higher_values_are_drawn_higher_and_inside():
    svg = line_chart([Series("up", [(0, -1.0), (1, 0.3), (2, 2.4)], "s1")], width=300, height=100)
    points = re.search(r'points="([^"]+)"', svg)
    assert points is not None
    places = [tuple(map(float, pair.split(","))) for pair in points[1].split()]
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert all(0 <= x <= 300 and 0 <= y <= 100 for x, y in places)


def test_bars_stack_to_the_total():
    layers = [Series("a", [(0, 1.0), (1, 2.0)], "s1"), Series("b", [(0, 3.0), (1, 2.0)], "s2")]
    rects = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', stacked_bars(layers))
    boxes = [tuple(map(float, rect)) for rect in rects]
    assert boxes[2][1] + boxes[2][2] == pytest.approx(boxes[0][1], abs=0.02)  # b stands on a
    assert boxes[2][1] == pytest.approx(boxes[3][1], abs=0.02)  # equal totals, equal height


def test_long_runs_are_thinned_but_peaks_stay():
    points = [(float(i), float(i == 500)) for i in range(1000)]
    assert len(thin(points, 100)) == 100
    assert max(y for _, y in thin(points, 100)) == pytest.approx(0.1)
    assert max(y for _, y in Series("max", points, "s1", peak=True).thinned(100).points) == 1.0


def test_smoothing_does_not_lag():
    line = [(float(i), float(i)) for i in range(100)]
    middle = smooth(line)[10:90]
    assert all(y == pytest.approx(x) for x, y in middle)


def test_chosen_transcripts():
    episodes = [{"reward": reward, "step": step} for step, reward in enumerate([0.5, 1.0, 0.0, 1.0, 0.5])]
    assert [(label, row["step"]) for label, row in chosen(episodes)] == [
        ("first", 0),
        ("best", 3),
        ("worst", 2),
        ("last", 4),
    ]
    assert [label for label, _ in chosen(episodes[:1])] == ["first, best, worst, last"]
    assert chosen([]) == []
