"""Every recorded run comes out again, decision by decision; one that was tampered with does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.world.world import World

from rollweave.cli.main import main
from rollweave.config.job import Job
from rollweave.errors import RunFolderError
from rollweave.observability.events import Event, read_events
from rollweave.observability.jsonl import encode
from rollweave.runs.train import train_job
from rollweave.simulation.recorded.replay import Replayed, replay
from rollweave.tasks import SeedSource
from virtual_worlds import jobs, make_job, rollart, run, worlds


def recorded(job: Job, world: World) -> list[Event]:
    """A simulated run's events as they would be read from a file, up to the end of its last step."""
    events = [Event(e.time, e.name, json.loads(encode(e.data))) for e in run(job, world).recorder.events]
    last = max(n for n, event in enumerate(events) if event.name == "step.end")
    return events[: last + 1]


def again(job: Job, events: Sequence[Event]) -> Replayed:
    return replay(job, SeedSource("simulated", job.seed), events)


@settings(max_examples=60, deadline=None)
@given(jobs(), worlds)
def test_any_run_in_any_mode_under_any_fault_comes_out_again(job: Job, world: World) -> None:
    result = again(job, recorded(job, world))
    assert result.difference is None, str(result.difference)
    assert result.steps == 4


def tampered(events: list[Event], name: str, number: int, **data: Any) -> list[Event]:
    """The recording with one event changed."""
    place = [n for n, event in enumerate(events) if event.name == name][number]
    old = events[place]
    return [*events[:place], Event(old.time, old.name, {**old.data, **data}), *events[place + 1 :]]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("group.admit", {"version": 7}),
        ("batch.ready", {"groups": [0, 1, 2, 9]}),
        ("episode.begin", {"free": 99}),
        ("attempt.end", {"end": "surplus"}),
        ("step.end", {"ledger": {}}),
    ],
)
def test_a_decision_that_differs_is_reported(name: str, data: dict[str, Any]) -> None:
    job = make_job(rollart(1), steps=3)
    events = recorded(job, World())
    difference = again(job, tampered(events, name, 2, **data)).difference
    assert difference is not None
    assert difference.recorded.name == name and difference.replayed is not None
    assert {**difference.replayed.data, **data} == difference.recorded.data, "only what was tampered with differs"
    assert f"recorded  {name}" in str(difference) and difference.before


def test_an_input_that_differs_leads_to_another_decision() -> None:
    """An episode that is recorded as failed was in truth taken into its group."""
    job = make_job(rollart(1), steps=3)
    events = tampered(recorded(job, World()), "trajectory.end", 3, outcome="env_failed")
    difference = again(job, events).difference
    assert difference is not None and difference.recorded.name != "trajectory.end"


def test_other_rules_make_other_decisions() -> None:
    """What a replay is for: code (here: alpha) that has changed since."""
    events = recorded(make_job(rollart(1), steps=3), World())
    difference = again(make_job(rollart(2), steps=3), events).difference
    assert difference is not None and difference.replayed is not None
    assert difference.replayed.name == "group.admit", "it would have let more in"


def test_a_decision_that_is_missing_is_reported() -> None:
    job = make_job(rollart(1), steps=3)
    events = recorded(job, World())
    place = next(n for n, event in enumerate(events) if event.name == "batch.ready")
    difference = again(job, [*events[:place], *events[place + 1 :]]).difference
    assert difference is not None and difference.replayed is not None and difference.replayed.name == "batch.ready"


# ------------------------------------------------------------------------------------------------------- real runs


def small(steps: int, **sections: Any) -> Job:
    return Job.model_validate(
        {
            "model": {"type": "tiny", "hidden": 32, "layers": 1, "head_dim": 8, "warm_start": {"steps": 0}},
            "environment": {"type": "frozen_lake"},
            "pipeline": {"type": "rollart", "alpha": 1},
            "rollout": {"groups_per_step": 2, "group_size": 2, "environments": 3, "max_turns": 3},
            "training": {"steps": steps},
            "runtime": {"type": "inline", "threads": 1},
            "evaluation": {"every": 2, "tasks": 2},
            "checkpoint": {"every": 2},
            "logging": {"tensorboard": False},
            **sections,
        }
    )


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_a_run_and_its_continuation_come_out_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train_job(small(3), tmp_path / "run")
    code, first = printed(capsys, "replay", folder)
    assert (code, first.partition(" decisions, ")[2]) == (0, "all the same (3 steps)\n")
    train_job(small(5, evaluation={"every": 3, "tasks": 2}), folder, resume=True)
    code, text = printed(capsys, "replay", folder, "--json")
    result = json.loads(text)
    assert (code, result["difference"], result["steps"], result["stretches"]) == (0, None, 5, 2)
    assert result["decisions"] > int(first.split()[0])


def test_a_tampered_file_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train_job(small(2), tmp_path / "run")
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"step": 1, "groups": [', '"step": 1, "groups": [77, ', 1))
    code, text = printed(capsys, "replay", folder)
    assert code == 1
    assert "came out differently\n  recorded  batch.ready" in text and "[77, " in text


def test_what_cannot_be_replayed_says_so(tmp_path: Path) -> None:
    folder = train_job(small(1), tmp_path / "run")
    events = [event for event in read_events(folder / "events.jsonl") if event.name != "host.attach"]
    with pytest.raises(RunFolderError, match="does not hold what a replay needs"):
        replay(small(1), SeedSource("frozen_lake", 0), events)
