"""A run that was cut at a checkpoint and goes on is the run that was never cut."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rollweave.clock import Clock, run_virtual
from rollweave.config.job import Job
from rollweave.engines.protocol import EngineStats
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import ConfigError, RunFolderError, WorkerDied
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import MemoryRecorder, read_events, surviving
from rollweave.observability.metrics import MetricsWriter, read_metrics
from rollweave.pipelines.assemble import assemble
from rollweave.pipelines.checkpoints import DriverState
from rollweave.policies.chat import ChatFormat
from rollweave.policies.start import start_policy
from rollweave.rewards.scorer import NamedReward
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.state import SchedulerState
from rollweave.runs.folder import RunFolder
from rollweave.runs.train import train_job
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.inline import start_inline
from rollweave.training import checkpoint
from rollweave.trajectory import Trajectory
from spans import assert_same_files

MODEL = {"type": "tiny", "hidden": 32, "layers": 1, "head_dim": 8, "warm_start": {"steps": 2, "episodes": 10}}


def job(pipeline: dict[str, Any], steps: int = 5, **sections: Any) -> Job:
    return Job.model_validate(
        {
            "seed": 3,
            "model": MODEL,
            "environment": {"type": "frozen_lake"},
            "pipeline": pipeline,
            "rollout": {"groups_per_step": 2, "group_size": 3, "environments": 5, "max_turns": 4},
            "training": {
                "steps": steps,
                "learning_rate": 1e-3,
                "minibatches": 2,
                "schedule": "cosine",
            },
            "runtime": {"type": "inline", "threads": 1},
            "evaluation": {"every": 2, "tasks": 3},
            "checkpoint": {"every": 2, "keep": 9},
            "logging": {"tensorboard": False},
            **sections,
        }
    )


def parity(trajectory: Trajectory) -> float:
    """A reward that differs between members, so that every step has something to learn."""
    return sum(trajectory.tokens().tolist()) % 7 / 7


# --------------------------------------------------------------------- on the virtual clock, with the real torch parts


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    some = job({"type": "sync+"})
    environments = EnvironmentFactory.from_config(some.environment, Path())
    tasks = source(some.environment, some.seed, Path())
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    return start_policy(some, folder, environments, tasks, lambda what, done, total: None)


def seconds(stats: EngineStats) -> float:
    return 0.01 + 0.001 * (stats.running + stats.waiting)


class Stretch:
    """A stretch of a run: from the start or a checkpoint to the end."""

    def __init__(self, job: Job, policy: Path, checkpoints: Path, start: Path | None, train_seconds: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self.trained: list[int] = []
        self.in_flight_at_saves: list[int] = []
        run_virtual(lambda clock: self._run(job, policy, checkpoints, start, train_seconds, clock))

    async def _run(
        self, job: Job, policy: Path, checkpoints: Path, start: Path | None, train_seconds: float, clock: Clock
    ) -> None:
        rewards = (NamedReward("parity", parity, 1.0, "parity"),)
        blueprint = Blueprint(job, policy, EnvironmentFactory.from_config(job.environment, Path()), rewards)
        fleet = Fleet()
        dispatcher = Dispatcher.of(job.rollout, fleet)
        async with start_inline(blueprint, fleet, dispatcher, clock, seconds, train_seconds) as trainer:
            drive = assemble(
                job.control,
                fleet,
                dispatcher,
                trainer,
                source(job.environment, job.seed, Path()),
                ChatFormat.of(policy).stop_tokens,
                checkpoints,
                clock,
                MemoryRecorder(clock.now),
                on_row=[lambda step, row: self.rows.append({"step": step, **row})],
                on_trajectories=[lambda step, all_of_them: self.trained.extend({t.group for t in all_of_them})],
            )
            loop = drive.loop
            loop.checkpoints.describe = self._describe
            if start is not None:
                state = DriverState.load(checkpoint.read_driver(start)).scheduler
                await loop.checkpoints.restore(start, state)
            await drive.advance()
            loop.scheduler.ledger.check()
            self.ledger = loop.scheduler.ledger

    def _describe(self, state: SchedulerState) -> DriverState:
        self.in_flight_at_saves.append(len(state.open))
        return DriverState(state)

    def learnt(self, first: int = 0) -> list[Any]:
        keys = ("step", "reward/mean", "weights/checksum", "eval/reward", "lr", "tokens/trained")
        return [[row.get(key) for key in keys] for row in self.rows if row["step"] >= first and "lr" in row]


@pytest.mark.parametrize(
    ("mode", "train_seconds"),
    [
        ({"type": "sync+"}, 0.2),
        ({"type": "rollart", "alpha": 0}, 0.2),
        ({"type": "sync"}, 0.2),
        # A train step that is longer than any episode: rollout is done with what it may do, all of it buffered.
        ({"type": "rollart", "alpha": 1}, 9.0),
        ({"type": "rollart", "alpha": 1.5}, 9.0),
    ],
)
def test_cut_at_a_checkpoint_it_ends_with_the_same_bits(
    mode: dict[str, Any], train_seconds: float, policy: Path, tmp_path: Path
) -> None:
    whole = Stretch(job(mode), policy, tmp_path / "whole", None, train_seconds)
    assert whole.in_flight_at_saves == [0, 0], "nothing was under way when a checkpoint was made"
    for cut in (2, 4):
        rest = Stretch(job(mode), policy, tmp_path / f"rest-{cut}", tmp_path / "whole" / f"step-{cut}", train_seconds)
        assert rest.learnt() == whole.learnt(first=cut)
        assert rest.ledger.summary() == whole.ledger.summary()
    assert len({row["weights/checksum"] for row in whole.rows if "lr" in row}) == 5, "every step changed the weights"


def test_with_work_under_way_nothing_is_lost_or_trained_twice(policy: Path, tmp_path: Path) -> None:
    """Open episodes are played again under the weights of the checkpoint: other tokens, but every task once."""
    mode = {"type": "rollart", "alpha": 1}
    before = Stretch(job(mode, steps=4), policy, tmp_path / "a", None, 0.05)
    assert max(before.in_flight_at_saves) > 0, "episodes were under way when a checkpoint was made"
    state = DriverState.load(checkpoint.read_driver(tmp_path / "a" / "step-4")).scheduler
    rests = [Stretch(job(mode, steps=8), policy, tmp_path / name, tmp_path / "a" / "step-4", 0.05) for name in "bc"]
    assert rests[0].learnt() == rests[1].learnt(), "going on twice from one checkpoint is the same"
    trained = before.trained + rests[0].trained
    assert len(trained) == len(set(trained)) == 16
    assert {group.id for group in [*state.open, *state.buffered]} <= set(rests[0].trained)
    assert rests[0].ledger.attempts["aborted"] == len(state.ledger.open_attempts) - sum(
        len(group.members) for group in state.buffered
    ) - sum(len(group.finished) for group in state.open)


# --------------------------------------------------------------------------------------------------- the run folder

SYNC = {"type": "sync+"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps with the checkpoints 2, 4 and 5."""
    return train_job(job(SYNC), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it whose process was killed after the last step, before it could say so."""
    copy = shutil.copytree(finished, tmp_path / "run")
    (copy / "summary.json").unlink()
    return copy


def lose(run: Path, *steps: int) -> Path:
    for step in steps:
        shutil.rmtree(run / "checkpoints" / f"step-{step}")
    return run


def curve(run: Path) -> list[Any]:
    rows = [row for row in read_metrics(run).rows if "lr" in row]
    return [(row["step"], row["weights/checksum"], row["reward/mean"], row["ledger/task/trained"]) for row in rows]


def trained(run: Path) -> list[Any]:
    ends = [event for event in surviving(read_events(run / "events.jsonl")) if event.name == "task.end"]
    return [event.data["group"] for event in ends if event.data["end"] == "trained"]


def assert_same_history(run: Path, finished: Path) -> None:
    assert curve(run) == curve(finished)
    assert trained(run) == trained(finished)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        steps = [[json.loads(line)["step"] for line in (path / name).open()] for path in (run, finished)]
        assert steps[0] == steps[1], name


@pytest.mark.parametrize("lost", [(5,), (4, 5), (2, 4, 5)], ids=["from 4", "from 2", "from the start"])
def test_a_killed_run_goes_on_where_its_checkpoint_is(run: Path, finished: Path, lost: tuple[int, ...]) -> None:
    train_job(job(SYNC), lose(run, *lost), resume=True)
    assert_same_history(run, finished)
    resumes = [event for event in read_events(run / "events.jsonl") if event.name == "run.resume"]
    version = {(5,): 4, (4, 5): 2, (2, 4, 5): 0}[lost]
    assert [event.data["version"] for event in resumes] == [version]
    times = [event.time for event in read_events(run / "events.jsonl")]
    assert times == sorted(times), "the time goes on where it was"
    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "completed"


def test_one_killed_before_its_last_words_says_them(run: Path, finished: Path) -> None:
    """All steps are trained and saved, but there is no summary: only that is missing."""
    train_job(job(SYNC), run, resume=True)
    assert_same_history(run, finished)
    assert json.loads((run / "summary.json").read_text())["steps"] == 5


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "missing", "no manifest"])
def test_a_damaged_checkpoint_is_set_aside(
    run: Path, finished: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = lose(run, 5) / "checkpoints" / "step-4" / "model.safetensors"
    if damage == "cut short":
        os.truncate(weights, 100)
    elif damage == "other bytes":
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    elif damage == "missing":
        weights.unlink()
    else:
        (weights.parent / checkpoint.MANIFEST).unlink()
    train_job(job(SYNC), run, resume=True)
    assert "checkpoint step-4 cannot be used" in capsys.readouterr().out
    assert (run / "checkpoints" / "set-aside-step-4").is_dir()
    assert_same_history(run, finished)


def test_a_checkpoint_of_another_history_is_set_aside(
    run: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saved by a trainer that outlived its driver: whole, but the logs have gone another way since."""
    lines = (lose(run, 5) / "events.jsonl").read_text().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if '"checkpoint.begin", "data": {"version": 4}' in line)
    lines[place] = lines[place].replace('"time": ', '"time": 9')
    (run / "events.jsonl").write_text("".join(lines))
    train_job(job(SYNC), run, resume=True)
    assert "checkpoint step-4 cannot be used: events.jsonl has another history" in capsys.readouterr().out
    assert_same_history(run, finished)


def test_a_run_folder_of_an_older_version_is_refused_and_left_alone(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        driver = json.loads((folder / checkpoint.DRIVER).read_text())
        del driver["format"]
        (folder / checkpoint.DRIVER).write_text(json.dumps(driver))
        (folder / checkpoint.SIDECAR).unlink()
        (folder / checkpoint.MANIFEST).unlink()
        (folder / checkpoint.MANIFEST).write_text(json.dumps(checkpoint._manifest(folder)))
    before = sorted(run.rglob("*"))
    with pytest.raises(RunFolderError, match=r"run: .*format 1, this version reads format 2\): continue it with the"):
        train_job(job(SYNC, steps=6), run, resume=True)
    assert sorted(run.rglob("*")) == before


def test_what_is_learnt_from_what_may_not_change(run: Path) -> None:
    other = job(SYNC, seed=4, rollout={"groups_per_step": 3, "group_size": 3, "environments": 5, "max_turns": 4})
    with pytest.raises(ConfigError, match=r"rollout.groups_per_step: 2 in the run, 3 now\n  seed: 3 in the run, 4 now"):
        train_job(other, run, resume=True)


def test_more_steps_may_be_wanted(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    train_job(job(SYNC), run, resume=True)
    assert "is finished: 5 steps are trained" in capsys.readouterr().out
    train_job(job(SYNC, steps=6), run, resume=True)
    assert [row[0] for row in curve(run)] == [0, 1, 2, 3, 4, 5]
    assert curve(run)[:5] == curve(finished)
    assert RunFolder(run).job().training.steps == 6
    event = next(event for event in read_events(run / "events.jsonl") if event.name == "run.resume")
    assert event.data["changed"] == {"training.steps": [5, 6]}


def test_what_was_changed_is_told_from_the_checkpoint_on(run: Path) -> None:
    """Also if the process that was given the change died before it saved anything."""
    config = RunFolder(lose(run, 5))
    config.replace_job(job(SYNC, steps=6))
    train_job(config.job(), run, resume=True)
    event = next(event for event in read_events(run / "events.jsonl") if event.name == "run.resume")
    assert event.data["changed"] == {"training.steps": [5, 6]}


def test_resume_starts_a_run_that_was_never_started(tmp_path: Path, finished: Path) -> None:
    """The same command in a loop, whatever happened before."""
    assert curve(train_job(job(SYNC), tmp_path / "new", resume=True)) == curve(finished)


def test_two_processes_never_work_in_one_folder(run: Path) -> None:
    with (
        RunFolder(run).locked(),
        pytest.raises(RunFolderError, match=f"is in use by process {os.getpid()} on "),
    ):
        train_job(job(SYNC), run, resume=True)


def test_a_dead_process_leaves_its_lock_to_the_next(run: Path) -> None:
    (run / "lock").write_text('{"pid": 1, "host": "elsewhere"}')
    with RunFolder(run).locked():
        assert json.loads((run / "lock").read_text())["pid"] == os.getpid()


def failing(monkeypatch: pytest.MonkeyPatch, method: str, step: int, error: Exception, times: int) -> None:
    """Let a part fail so many times at a step."""
    import rollweave.runtimes.inline as inline
    from rollweave.rollout.scheduler import RolloutScheduler

    owner: Any = inline.InlineTrainer if method == "begin" else RolloutScheduler
    right = getattr(owner, method)
    left = [times]

    async def wrong(self: Any, given: Any, *others: Any, **named: Any) -> Any:
        if given == step and left[0]:
            left[0] -= 1
            raise error
        return await right(self, given, *others, **named)

    monkeypatch.setattr(owner, method, wrong)


@pytest.mark.parametrize(("step", "place"), [(1, "its start, step 0"), (3, "checkpoint step-2, step 2")])
def test_a_dead_trainer_is_replaced_from_the_checkpoint(
    step: int,
    place: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, "begin", step, WorkerDied("the worker 'trainer' died", "trainer"), times=2)
    run = train_job(job(SYNC), tmp_path / "run")
    assert_same_history(run, finished)
    assert f"going on from {place} of 5" in capsys.readouterr().out


def test_a_trainer_that_always_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "begin", 3, WorkerDied("the worker 'trainer' died", "trainer"), times=99)
    with pytest.raises(WorkerDied):
        train_job(job(SYNC), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_reason"] == "failed"


def test_a_failed_run_saves_what_it_has(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "get_batch", 3, RunFolderError("no more"), times=1)
    with pytest.raises(RunFolderError, match="no more"):
        train_job(job(SYNC), tmp_path / "run")
    assert checkpoint.newest(tmp_path / "run" / "checkpoints") == tmp_path / "run" / "checkpoints" / "step-3"
    train_job(job(SYNC), tmp_path / "run", resume=True)
    assert_same_history(tmp_path / "run", finished)


def test_the_state_survives_its_file_exactly(run: Path) -> None:
    kept = checkpoint.read_driver(run / "checkpoints" / "step-4")
    assert_same_files(DriverState.load(kept).dump(), kept)


def test_tensorboard_shows_a_step_that_was_done_again_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed_at, steps, reward in ((None, range(4), 0.0), (2, range(2, 5), 1.0)):
        writer = MetricsWriter(tmp_path, tensorboard=True, resumed_at=resumed_at)
        for step in steps:
            writer.write(step, {"reward/mean": reward})
        writer.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("reward/mean")] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
