"""Bad input as a user meets it: one clear message that names the fix, no traceback, nothing lost or overwritten."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollweave.cli.main import main
from rollweave.config.job import TinyModel
from rollweave.errors import EnvironmentFailed
from rollweave.policies.tiny import build

SMALL = TinyModel(type="tiny", hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=64)

JOB = """\
name: small
model: {type: local, path: policy}
environment: {type: python, target: worlds.py:Fine}
rollout:
  groups_per_step: 2
  group_size: 2
  environments: 4
  max_turns: 3
  max_context: 512
  sampling: {max_tokens: 4}
training: {steps: 2}
pipeline: {type: sync+}
runtime: {type: inline, threads: 1}
evaluation: {every: 0}
logging: {tensorboard: false}
"""


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SMALL, 0, tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture
def place(tmp_path: Path, policy: Path) -> Path:
    """A user's folder: a job, the model it starts from, and a file with environments and rewards."""
    (tmp_path / "policy").symlink_to(policy)
    (tmp_path / "job.yaml").write_text(JOB)
    shutil.copy(Path(__file__).with_name("bad_worlds.py"), tmp_path / "worlds.py")
    return tmp_path


@dataclass
class Ended:
    code: int
    out: str
    err: str
    run: Path

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.run / "summary.json").read_text()))

    @property
    def outcomes(self) -> list[str]:
        events = [json.loads(line) for line in (self.run / "events.jsonl").read_text().splitlines()]
        return [event["data"]["outcome"] for event in events if event["name"] == "trajectory.end"]


class User:
    """Runs the program in this process and reads what it prints."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place = place
        self.capsys = capsys

    def train(self, *overrides: str) -> Ended:
        run = self.place / "run"
        with pytest.raises(SystemExit) as ended:
            main(["train", str(self.place / "job.yaml"), *overrides, "--out", str(run)])
        out, err = self.capsys.readouterr()
        return Ended(ended.value.code if isinstance(ended.value.code, int) else 0, out, err, run)


@pytest.fixture
def user(place: Path, capsys: pytest.CaptureFixture[str]) -> User:
    return User(place, capsys)


def environment(name: str, **arguments: object) -> str:
    return "environment=" + json.dumps({"type": "python", "target": f"worlds.py:{name}", "arguments": arguments})


def reward(name: str) -> str:
    return f'rewards=[{{"function": "worlds.py:{name}"}}]'


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_loads(checkpoint: Path, step: int) -> None:
    """A whole checkpoint, of the step its name says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(checkpoint)
    assert json.loads((checkpoint / "state" / "trainer.json").read_text())["version"] == step


def assert_said(ended: Ended, *parts: str) -> None:
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.out + ended.err


# ------------------------------------------------------------------------- refused before anything is written


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("training: {steps: 2}", "trainig: {steps: 2}", ["job.yaml:11", "trainig", "did you mean training?"]),
        ("  max_turns: 3", "  max_turn: 3", ["job.yaml:8", "max_turn", "did you mean max_turns?"]),
        ("  group_size: 2", "  group_size: two", ["job.yaml:6", "rollout.group_size", "a whole number", '"two"']),
        ("  group_size: 2", "  group_size: 1", ["rollout.group_size is 1", "set it to 2 or more"]),
        (
            "training: {steps: 2}\npipeline: {type: sync+}",
            "training: {steps: 2, loss: {denominator: proximal}}\npipeline: {type: rollart, alpha: 2}",
            ["job.yaml:11", "denominator=proximal ignores staleness", "staleness bound (alpha) 2", "remove it"],
        ),
        ("name: small", "name: [", ["job.yaml:"]),
    ],
)
def test_a_mistake_in_the_job_file(user: User, line: str, instead: str, said: list[str]) -> None:
    (user.place / "job.yaml").write_text(JOB.replace(line, instead))
    ended = user.train()
    assert_said(ended, *said)
    assert not ended.run.exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.stepz=3", ["'training.stepz=3'", "did you mean steps?"]),
        ("training.steps=soon", ["'training.steps=soon'", "a whole number", '"soon"']),
        ("model.path=nowhere", ["model.path", "nowhere does not exist", "Hugging Face model folder"]),
        ("model.path=.", ["has no config.json", "give the folder that holds config.json"]),
        (environment("Fin"), ["worlds.py defines no 'Fin'; did you mean 'Fine'?"]),
        ("environment.target=world.py:Fine", ["no such file", "did you mean 'worlds.py'?"]),
        ("environment.target=broken.py:Fine", ["the file cannot be loaded: SyntaxError", "broken.py:1"]),
        ('environment={"type": "prompts", "file": "tasks.jsonl"}', ["tasks.jsonl"]),
        (reward("raise"), ["worlds.py defines no 'raise'; did you mean 'raises'?"]),
    ],
)
def test_something_named_that_is_not_there_or_not_usable(user: User, override: str, said: list[str]) -> None:
    (user.place / "broken.py").write_text("class Fine(:\n")
    ended = user.train(override)
    assert_said(ended, *said)
    assert not ended.run.exists()


def test_a_model_without_chat_template(user: User) -> None:
    model = user.place / "bare"
    shutil.copytree(user.place / "policy", model)
    (model / "chat_template.jinja").unlink()
    ended = user.train("model.path=bare")
    assert_said(ended, f"the tokenizer in {model} has no chat template", "add a chat_template.jinja file to the folder")
    assert not ended.run.exists()


def test_weights_that_are_cut_short(user: User) -> None:
    shutil.copytree(user.place / "policy", user.place / "cut")
    os.truncate(user.place / "cut" / "model.safetensors", 30_000)
    ended = user.train("model.path=cut")
    assert_said(ended, f"the weights in {user.place}/cut cannot be loaded", "fetch the model again")


def test_a_dry_run_finds_what_is_missing_too(user: User) -> None:
    assert_said(user.train("model.path=nowhere", "--dry-run"), "nowhere does not exist")


def test_a_second_run_into_the_same_folder(user: User) -> None:
    first = user.train()
    assert first.code == 0
    before = contents(first.run)
    assert {"config.yaml", "metrics.jsonl", "summary.json", "checkpoints/step-2/model.safetensors"} <= set(before)
    assert_said(user.train("seed=5"), f"{first.run} already holds a run", "name another folder with --out")
    assert contents(first.run) == before


def test_a_folder_with_other_files_is_no_run_folder(user: User) -> None:
    (user.place / "run").mkdir()
    (user.place / "run" / "thesis.tex").write_text("years of work")
    assert_said(user.train(), "already holds a run (or other files)", "name another folder with --out")
    assert contents(user.place / "run") == {"thesis.tex": b"years of work"}


# ------------------------------------------------------------- environments and rewards that do not work at all


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (environment("RaisesInReset"), ["RaisesInReset.reset raised FileNotFoundError: levels.json is missing"]),
        (environment("RaisesInStep"), ["RaisesInStep.step raised KeyError: 'wall'"]),
        (environment("RewardsNaN"), ["RewardsNaN.step returned the reward nan", "must be a finite number"]),
        (environment("ObservesNaN"), ["ObservesNaN.reset returned nan", "an observation is a string"]),
        (environment("ObservesNoText"), ["ObservesNoText.reset returned '\\ud800'", "decode it with errors='replace'"]),
        (environment("NeedsArguments"), ["could not be made (environment.arguments: none)", "'key'"]),
        (reward("raises"), ["worlds.py:raises raised", "ZeroDivisionError: nothing to divide by"]),
        (reward("returns_nan"), ["worlds.py:returns_nan returned nan", "must be a finite number"]),
        (reward("returns_nothing"), ["worlds.py:returns_nothing returned None", "return one on every path"]),
    ],
)
def test_a_run_whose_episodes_all_fail_ends_with_their_error(user: User, override: str, said: list[str]) -> None:
    ended = user.train(override)
    assert_said(ended, "episodes all failed", *said, f"try it alone: rollweave env check {user.place}/worlds.py:")
    assert ended.summary["exit_reason"] == "failed"
    assert ended.err == f"error: {ended.summary['error']}\n"
    assert list((ended.run / "checkpoints").iterdir()) == []


def test_the_message_points_at_the_line_of_the_user(user: User) -> None:
    source = (user.place / "worlds.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if '{}["wall"]' in text)
    assert_said(user.train(environment("RaisesInStep")), f"({user.place}/worlds.py:{line})")


def test_an_environment_that_always_hangs_names_the_deadline(user: User) -> None:
    ended = user.train(environment("HangsAlways"), "rollout.deadlines.env_step=0.05")
    assert_said(ended, "waits for environment step 1", "deadline 0.05 s", "rollout.deadlines")


def test_debug_shows_where_it_came_from(user: User) -> None:
    words = ["train", str(user.place / "job.yaml"), environment("RaisesInStep"), "--out", str(user.place / "run")]
    with pytest.raises(EnvironmentFailed, match="episodes all failed"):
        main([*words, "--debug"])


# -------------------------------------------------------------------------- trouble that a run has to live with


def test_an_episode_that_never_ends_is_truncated_and_trained(user: User) -> None:
    ended = user.train(environment("NeverEnds"))
    assert ended.code == 0
    assert ended.outcomes == ["truncated"] * 8
    assert ended.summary["attempts"]["trained"] == 8


def test_failures_now_and_then_are_counted_and_tried_again(user: User) -> None:
    ended = user.train(environment("FailsEveryFifthStep"))
    assert ended.code == 0
    assert ended.summary["exit_reason"] == "completed"
    failed = ended.outcomes.count("env_failed")
    assert failed >= 3
    assert ended.summary["attempts"] | {"infra-failed": failed, "trained": 8, "open": 0} == ended.summary["attempts"]
    assert ended.summary["tokens_wasted"]["infra-failed"] > 0


@pytest.mark.parametrize(("world", "isolation"), [("AwaitsForeverOnce", "async"), ("HangsOnce", "process")])
def test_one_hanging_environment_is_given_up_and_the_others_go_on(user: User, world: str, isolation: str) -> None:
    ended = user.train(
        environment(world, marker=str(user.place / "hung")),
        f"rollout.isolation={isolation}",
        "rollout.environments_per_process=1",
        "rollout.deadlines.env_step=1.5",
    )
    assert ended.code == 0
    assert ended.summary["exit_reason"] == "completed"
    timed_out = ended.outcomes.count("timed_out")
    assert timed_out >= 1
    assert ended.summary["attempts"]["infra-failed"] == timed_out
    assert ended.summary["attempts"]["trained"] == 8


# ------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], ["nowhere does not exist"]),
        (["nowhere", "--env", "frozen_lake"], ["nowhere does not exist"]),
        (["policy"], ["policy is not a run folder, so say what to play", "--env frozen_lake"]),
        (["policy", "environment.type=python", "environment.target=worlds.py:RaisesInStep"], ["KeyError: 'wall'"]),
    ],
)
def test_what_cannot_be_evaluated(
    user: User, words: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(user.place)
    with pytest.raises(SystemExit) as ended:
        main(["eval", *words, "--tasks", "2"])
    out, err = user.capsys.readouterr()
    assert ended.value.code == 2
    assert_said(Ended(2, out, err, user.place), *said)


# ------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def disk_quota() -> Iterator[None]:
    """Gives back what `FillsTheDisk` takes from this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("disk_quota")
def test_a_full_disk_at_a_checkpoint_leaves_the_earlier_one(user: User) -> None:
    ended = user.train(environment("FillsTheDisk"), "checkpoint.every=1", "training.steps=5")
    assert_said(ended, f"cannot write checkpoint {ended.run}/checkpoints/step-2", "File too large", "free space")
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == ["step-1"]
    assert_loads(ended.run / "checkpoints" / "step-1", step=1)
    assert ended.summary["exit_reason"] == "failed"
    assert ended.err == f"error: {ended.summary['error']}\n"
    assert not (ended.run / "report.html").exists()  # it does not fit either, and half a page is none


# ------------------------------------------------------------------------------------------------------ Ctrl-C


def test_ctrl_c_while_a_step_trains_books_that_step_first(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollweave.training.trainer import TorchTrainer

    finish = TorchTrainer.finish

    def pressed_meanwhile(trainer: TorchTrainer) -> Any:
        if trainer.version == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return finish(trainer)

    monkeypatch.setattr(TorchTrainer, "finish", pressed_meanwhile)
    ended = user.train("training.steps=50")
    assert ended.code == 0
    assert ended.summary["exit_reason"] == "interrupted"
    assert ended.summary["steps"] == 2
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == ["step-2"]
    assert_loads(ended.run / "checkpoints" / "step-2", step=2)


def test_ctrl_c_while_episodes_are_played_saves_what_there_is(user: User) -> None:
    ended = user.train(environment("PressesCtrlC"))
    assert ended.code == 0
    assert ended.summary["exit_reason"] == "interrupted"
    assert "small: interrupted after 0 steps" in ended.out
    assert f"checkpoint  {ended.run}/checkpoints/step-0" in ended.out
    assert_loads(ended.run / "checkpoints" / "step-0", step=0)


def test_ctrl_c_before_the_first_step_promises_nothing(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("rollweave.policies.start.start_policy", pressed)
    ended = user.train()
    assert ended.code == 0
    assert ended.summary["exit_reason"] == "interrupted"
    assert "report" not in ended.out
    assert "checkpoint  none" in ended.out


# -------------------------------------------------------------------------------- the program as it is started


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """In a session of its own, like a terminal's: a signal to the group reaches its children as well."""
    command = [sys.executable, "-m", "rollweave.cli.main", "train", "job.yaml", *words, "--out", "run"]
    return subprocess.Popen(
        command,
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ROLLWEAVE_DEBUG": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def press_ctrl_c_after_a_step(program: subprocess.Popen[str], place: Path) -> Ended:
    assert program.stdout is not None
    seen = ""
    for line in program.stdout:
        seen += line
        if line.startswith("step "):
            break
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=120)
    return Ended(program.returncode, seen + out, err, place / "run")


def assert_interrupted_cleanly(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert ended.err == ""  # no traceback, and no progress bars of transformers
    assert "interrupted: saving a checkpoint" in ended.out
    assert ended.summary["exit_reason"] == "interrupted"
    steps = ended.summary["steps"]
    assert 1 <= steps < 100_000
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"step-{steps}"]
    assert_loads(ended.run / "checkpoints" / f"step-{steps}", step=steps)
    assert f"report      {ended.run.name}/report.html" in ended.out


TINY = 'model={"type": "tiny", "hidden": 32, "layers": 1, "warm_start": {"steps": 2, "episodes": 4}}'


def test_ctrl_c_in_a_terminal(place: Path) -> None:
    words = [TINY, 'environment={"type": "frozen_lake"}', "training.steps=100000"]
    assert_interrupted_cleanly(press_ctrl_c_after_a_step(start(place, *words), place))


RAY = 'runtime={"type": "ray", "engine_threads": 1, "trainer_threads": 1}'
patient = pytest.mark.timeout(600)


def train_on_ray(place: Path, *words: str) -> Ended:
    program = start(place, RAY, *words)
    out, err = program.communicate(timeout=500)
    return Ended(program.returncode, out, err, place / "run")


@pytest.mark.slow
@patient
def test_ctrl_c_on_ray(place: Path) -> None:
    assert_interrupted_cleanly(press_ctrl_c_after_a_step(start(place, RAY, "training.steps=100000"), place))


@pytest.mark.slow
@patient
@pytest.mark.parametrize(
    ("override", "said"),
    [
        (environment("RaisesInStep"), ["RaisesInStep.step raised KeyError: 'wall'", "rollweave env check"]),
        ("rollout.max_context=4096", ["max_context is 4096", "2048 positions"]),
        (
            environment("LosesTheCheckpoints", checkpoints="run/checkpoints"),
            ["cannot write checkpoint run/checkpoints"],
        ),
    ],
)
def test_what_fails_in_a_worker_is_said_as_if_it_had_failed_here(place: Path, override: str, said: list[str]) -> None:
    ended = train_on_ray(place, override)
    assert_said(ended, *said)
    assert "ray" not in (ended.out + ended.err).replace("ray (disaggregated)", "").replace(str(place), "")
    assert ended.summary["exit_reason"] == "failed"
    assert ended.err == f"error: {ended.summary['error']}\n"


@pytest.mark.slow
@patient
def test_a_dead_worker_is_named_with_the_end_of_its_log(place: Path) -> None:
    ended = train_on_ray(place, environment("KillsItsProcess"))
    assert_said(ended, "the worker 'host-0' died", "run/logs/host-0.log", "farewell", "rollout.isolation=process")
    assert "raylet" not in ended.out + ended.err
    assert ended.summary["exit_reason"] == "failed"


@pytest.mark.slow
@patient
def test_no_cluster_at_the_address(place: Path) -> None:
    ended = train_on_ray(place, 'runtime={"type": "ray", "address": "127.0.0.1:1"}')
    assert_said(ended, "runtime.address: no Ray cluster answers at '127.0.0.1:1'", "runtime.address=local")
