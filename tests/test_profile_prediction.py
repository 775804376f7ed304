"""A profile: the file goes round, its times are used, predictions are the same every time, calibration finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollweave.config.hardware import Contention, EngineTimes, HostTimes, Measured, Observed, TrainerTimes, WeightTimes
from rollweave.config.job import Job
from rollweave.config.models import ModelSpec
from rollweave.config.scenario import Scenario
from rollweave.config.workload import TaskModel
from rollweave.errors import ConfigError
from rollweave.observability.report.data import load_run
from rollweave.observability.report.page import page
from rollweave.observability.report.sections import write_prediction
from rollweave.profiling.episodes import empirical
from rollweave.profiling.profile import device, load_profile, scenario_of, write_profile
from rollweave.profiling.timing import line
from rollweave.simulation.calibration import calibrate, found, solve
from rollweave.simulation.costs.measured import interpolated
from rollweave.simulation.prediction import Prediction, as_scenario, predict
from rollweave.simulation.simulate import simulate
from synthetic_run import write_run

MODEL = ModelSpec(name="small", params=2e6, layers=4, hidden=192, heads=4, kv_heads=4, head_dim=64, bytes_per_value=4)
TASK = TaskModel.model_validate(
    {
        "name": "frozen_lake",
        "turns": {"type": "constant", "value": 3},
        "prompt_tokens": {"type": "constant", "value": 20},
        "observation_tokens": {"type": "constant", "value": 10},
        "answer_tokens": {"type": "constant", "value": 2},
    }
)


def times(**changes: Any) -> Measured:
    return Measured(
        model="small",
        engine=EngineTimes(batches=(1, 16), seconds=(0.004, 0.01), cached_token=1e-6, prefill_token=1e-4),
        trainer=TrainerTimes(step=0.1, token=5e-4),
        weights=WeightTimes(publish=0.02, prepare=0.02, commit=0.01),
    ).model_copy(update=changes)


def job(**changes: Any) -> Job:
    return Job.model_validate(
        {
            "name": "small",
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake", **changes.pop("environment", {})},
            "rollout": {"groups_per_step": 2, "group_size": 4, "environments": 8, "max_context": 128},
            "engine": {"slots": 16},
            **changes,
        }
    )


def profile(measured: Measured | None = None, of: Job | None = None) -> Scenario:
    return scenario_of(of or job(), device("small", measured or times()), MODEL, [TASK])


def test_a_profile_goes_round(tmp_path: Path) -> None:
    written = write_profile(profile(), tmp_path / "small.profile.yaml")
    assert load_profile(written) == profile()


def test_a_simulation_file_without_measurements_is_no_profile(tmp_path: Path) -> None:
    plain = profile().model_copy(update={"cluster": profile().cluster.model_copy(update={"devices": ()})})
    pools = tuple(pool.model_copy(update={"device": "CPU"}) for pool in plain.cluster.pools)
    plain = plain.model_copy(update={"cluster": plain.cluster.model_copy(update={"pools": pools})})
    written = write_profile(plain, tmp_path / "plain.yaml")
    with pytest.raises(ConfigError, match="no device in it was measured; make one with `rollweave profile`"):
        load_profile(written)


def test_a_prediction_is_the_same_every_time() -> None:
    late = job(environment={"latency": {"mean": 0.3, "std": 0.3}})
    assert predict(late, profile()) == predict(late, profile())
    assert predict(late, profile()) != predict(late.model_copy(update={"seed": 1}), profile())


def test_the_times_of_a_step_are_those_measured() -> None:
    """8 episodes of 3 turns in step with each other: what the engine and the trainer take can be added up by hand."""
    guess = predict(job(pipeline={"type": "sync"}), profile())
    tokens = 20 + 2 * 10 + 3 * 2
    assert guess.train_seconds == pytest.approx(0.1 + 5e-4 * 8 * tokens)
    step = interpolated((1, 16), (0.004, 0.01), 8)
    steps = 3 * 2 * step + 1e-4 * 8 * (20 + 2 * 11)
    assert guess.get_batch_seconds == pytest.approx(steps, rel=0.05)
    assert guess.step_seconds == pytest.approx(guess.train_seconds + guess.get_batch_seconds + 0.05, rel=0.02)


def test_the_latency_of_the_job_is_in_its_prediction() -> None:
    slow = {"latency": {"mean": 0.5, "std": 0.0}}
    quick = predict(job(pipeline={"type": "sync+"}), profile())
    late = predict(job(pipeline={"type": "sync+"}, environment=slow), profile())
    assert late.get_batch_seconds - quick.get_batch_seconds == pytest.approx(4 * 0.5, rel=0.01), "a reset, three steps"


def test_another_model_on_the_device_is_modelled_by_roofline() -> None:
    other = profile().model_copy(update={"model": "tiny"})
    assert simulate(other).step_seconds > 5.0, "the constants' overhead of a train step"
    assert simulate(profile()).step_seconds < 1.0


def test_turns_that_come_up_together_travel_together() -> None:
    hosts = HostTimes(message=0.1, turn=0.01)
    alone = predict(job(pipeline={"type": "sync"}), profile())
    hosted = predict(job(pipeline={"type": "sync"}), profile(times(host=hosts)))
    together = 4 * (0.1 + 8 * 0.01)
    assert hosted.get_batch_seconds - alone.get_batch_seconds == pytest.approx(together, rel=0.02)


def test_contention_counts_only_where_both_are_at_work() -> None:
    shared = profile(times(contention=Contention(trainer=2.0)))
    for pipeline in ({"type": "sync"}, {"type": "sync+"}):
        assert predict(job(pipeline=pipeline), shared) == predict(job(pipeline=pipeline), profile())
    busy, calm = (predict(job(), each).train_seconds for each in (shared, profile()))
    assert busy == pytest.approx(2 * calm)


def test_calibration_finds_what_was_hidden() -> None:
    """A sample made with known costs of hosts and a slower engine: both come out again."""
    scaled = EngineTimes(batches=(1, 16), seconds=(0.005, 0.0125), cached_token=1.25e-6, prefill_token=1.25e-4)
    truth = profile(times(host=HostTimes(message=0.004, turn=0.003), engine=scaled))
    seen = _observed(truth, "sync+")
    calibrated = calibrate(profile(times(host=HostTimes(message=0.004))), seen, None)
    assert found(calibrated).host.turn == pytest.approx(0.003, rel=0.1)
    assert found(calibrated).engine.seconds[-1] == pytest.approx(0.0125, rel=0.05)


def _observed(truth: Scenario, pipeline: str) -> Observed:
    guess = Prediction.of(simulate(as_scenario(job(pipeline={"type": pipeline}), truth)))
    return Observed(
        step_seconds=guess.step_seconds,
        get_batch_seconds=guess.get_batch_seconds,
        train_seconds=guess.train_seconds,
        engine_busy_seconds=(1 - guess.engine_idle) * guess.step_seconds,
    )


def test_solving_stops_at_the_ends() -> None:
    assert solve(lambda x: x * x, 4.0, 8.0) == pytest.approx(2.0, abs=0.1)
    assert solve(lambda x: x, 99.0, 8.0) == pytest.approx(8.0, abs=0.1)


def test_small_helpers() -> None:
    assert interpolated((1, 4, 8), (1.0, 4.0, 6.0), 6) == 5.0
    assert interpolated((1, 4, 8), (1.0, 4.0, 6.0), 12) == 8.0, "on the line through the last two"
    assert line(100, 1.0, 300, 2.0) == TrainerTimes(step=0.5, token=0.005)
    assert line(100, 1.0, 300, 6.0) == TrainerTimes(step=0.0, token=0.02), "never a negative fixed part"
    thinned = empirical(range(1000))
    assert len(thinned.values) == 64 and sum(thinned.values) / 64 == pytest.approx(499.5, abs=8)  # type: ignore[union-attr]


def test_the_report_shows_predicted_and_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    assert "Predicted and measured" not in page(load_run(run))
    write_prediction(run, {"time/step": 1.0, "idle/engine": 0.25})
    shown = page(load_run(run))
    assert "Predicted and measured" in shown and "25%" in shown
