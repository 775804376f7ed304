"""metrics.jsonl holds what the catalogue knows, in strict JSON; the summary adds it up."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rollweave.observability import catalogue
from rollweave.observability.metrics import MetricsWriter, read_metrics
from rollweave.observability.summary import summarise, write_summary
from synthetic_run import rows

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def test_the_page_is_made_from_the_catalogue():
    assert PAGE.read_text() == catalogue.markdown() + "\n", (
        "run: python -m rollweave.observability.catalogue > docs/metrics.md"
    )


@pytest.mark.parametrize(
    "key", ["step", "reward/format", "tokens/wasted/infra-failed", "loss/kl", "memory/engine_mb", "idle/trainer", "lr"]
)
def test_known_keys(key: str):
    assert catalogue.find(key) is not None


@pytest.mark.parametrize("key", ["rewards/mean", "tokens/wasted", "reward/a/b", "memory/engine", "reward/", "xlr"])
def test_unknown_keys(key: str):
    with pytest.raises(ValueError, match="unknown metric"):
        catalogue.check(key)


def test_an_exact_key_wins_over_a_pattern():
    metric = catalogue.find("reward/mean")
    assert metric is not None and metric.key == "reward/mean"


def test_no_key_is_declared_twice():
    keys = [metric.key for metric in catalogue.all_metrics()]
    assert len(keys) == len(set(keys))


def test_a_row_has_step_first_and_the_rest_sorted(tmp_path: Path):
    writer = MetricsWriter(tmp_path)
    writer.write(3, {"time/step": 1.0, "lr": 0.1, "weights/checksum": "ab"})
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"step": 3, "lr": 0.1, "time/step": 1.0, "weights/checksum": "ab"}\n'


def test_an_unknown_key_is_refused_with_the_nearest_and_nothing_is_written(tmp_path: Path):
    writer = MetricsWriter(tmp_path)
    with pytest.raises(ValueError, match="staleness/mean"):
        writer.write(0, {"lr": 0.1, "stalenes/mean": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_numbers_that_are_none_become_null_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    writer = MetricsWriter(tmp_path)
    with caplog.at_level(logging.WARNING):
        row = writer.write(5, {"grad/norm": float("nan"), "loss/total": float("-inf"), "lr": 0.1})
    assert row == {"step": 5, "grad/norm": None, "loss/total": None, "lr": 0.1}
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == row
    assert "step 5: grad/norm is nan" in caplog.text


def test_a_resumed_run_appends_and_its_later_rows_win(tmp_path: Path):
    first = MetricsWriter(tmp_path)
    first.write(0, {"reward/mean": 0.1})
    first.write(1, {"reward/mean": 0.2, "eval/reward": 0.5})
    first.close()
    second = MetricsWriter(tmp_path)
    second.write(1, {"reward/mean": 0.25})
    second.close()
    read = read_metrics(tmp_path).rows
    assert [(row["step"], row["reward/mean"]) for row in read] == [(0, 0.1), (1, 0.25)]
    assert read[1]["eval/reward"] == 0.5


def test_tensorboard_gets_the_numbers(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = MetricsWriter(tmp_path, tensorboard=True)
    writer.write(0, {"reward/mean": 0.25, "weights/checksum": "ab", "lr": float("nan")})
    writer.write(1, {"reward/mean": 0.5})
    writer.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["reward/mean"]
    assert [(scalar.step, scalar.value) for scalar in board.Scalars("reward/mean")] == [(0, 0.25), (1, 0.5)]


def test_summary_adds_up_the_rows(tmp_path: Path):
    made = rows(20, evaluate_every=5)
    summary = summarise("job", made, "target", target=0.9)
    assert summary.steps == 20  # the row that only evaluates is not a step
    assert summary.tokens_generated == sum(row.get("tokens/generated", 0) for row in made)
    assert summary.tokens_wasted["surplus"] == sum(row.get("tokens/wasted/surplus", 0) for row in made)
    assert summary.attempts["trained"] == 20 * 128
    assert summary.eval_final == 0.93
    assert summary.eval_first == made[0]["eval/reward"]
    assert summary.eval_best == max(row["eval/reward"] for row in made if "eval/reward" in row)
    assert summary.target_reached is True
    assert summarise("job", made, "completed", target=0.99).target_reached is False
    write_summary(tmp_path, summary)
    assert json.loads((tmp_path / "summary.json").read_text())["exit_reason"] == "target"
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_summary_of_a_run_that_did_nothing():
    summary = summarise("job", [], "failed", target=0.5, error="no such model")
    assert (summary.steps, summary.eval_best, summary.target_reached) == (0, None, False)


def test_elapsed_goes_on_after_a_resume():
    counted = [{"step": step, "reward/mean": 0.0, "time/elapsed": x} for step, x in enumerate([10.0, 20.0, 5.0, 15.0])]
    assert summarise("job", counted, "completed").elapsed == 35.0
