"""`rollweave env`: the check's findings and what a person sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rollweave.cli.env import app
from rollweave.errors import ConfigError

WORLDS = '''
import itertools, math, os, signal

class Guess:
    """Sound: guess the seed's parity."""
    def __init__(self, prize=1.0): self.prize = prize
    def reset(self, seed): self.seed = seed; return "even or odd?"
    def step(self, action): return "", self.prize * ((action == "even") == (self.seed % 4 == 0)), True
    def scripted_action(self, rng): return rng.choice(["even", "odd"])

class Constant(Guess):
    def step(self, action): return "", 0.5, True

class Endless(Guess):
    def step(self, action): return "more", 0.0, False

class NaN(Guess):
    def step(self, action): return "", math.nan, True

class BadReset(Guess):
    def reset(self, seed): raise RuntimeError("no licence")

class BadStep(Guess):
    def step(self, action): return {}["missing"]

class Hangs(Guess):
    def step(self, action): signal.pause()

class Crashes(Guess):
    def step(self, action): os._exit(9)

class Rare(Guess):
    """One episode in ninety earns something, and there is no script."""
    scripted_action = None
    played = itertools.count(1)
    def step(self, action): return "", float(next(Rare.played) % 90 == 0), True

def long_answers(trajectory): return len(trajectory.turns[-1].text)
def raises(trajectory): raise ValueError("no judge")
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1?", "answer": 2}\n{"prompt": "2+2?", "answer": 4}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def env(*arguments: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=answers)


def check(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = env("check", *arguments, "--episodes", "4", "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_sound_environment_passes_with_its_figures() -> None:
    code, report = check("worlds.py:Guess", "prize=3")
    assert (code, report["problems"]) == (0, [])
    scripted = report["players"]["scripted"]
    assert scripted["outcomes"] == {"finished": 4}
    assert scripted["turns"] == {"least": 1, "mean": 1, "most": 1}
    assert scripted["observation characters"]["most"] == len("even or odd?")
    assert scripted["reward"]["most"] == 3.0 and scripted["different rewards"] == 2
    assert scripted["step ms"]["least"] > 0


@pytest.mark.parametrize(
    ("world", "options", "finding"),
    [
        ("Constant", [], "earned exactly 0.5: nothing can be learned from a constant reward; return different"),
        ("Endless", ["--max-turns", "30"], "none of 8 episodes ended within 30 turns: return done=True"),
        ("NaN", [], "NaN.step returned the reward nan: the reward must be a finite number"),
        ("BadReset", [], "BadReset.reset raised RuntimeError: no licence ("),
        ("BadStep", [], "BadStep.step raised KeyError: 'missing' ("),
        ("Hangs", ["--deadline", "0.5"], "did not return within 0.5 s: it must return or raise"),
        ("Crashes", [], "its process ended with exit code 9"),
        ("Guess", ["--reward", "worlds.py:raises"], "worlds.py:raises raised for random/0: ValueError: no judge ("),
    ],
)
def test_broken_environments_are_refused_with_the_fix(world: str, options: list[str], finding: str) -> None:
    code, report = check(f"worlds.py:{world}", *options)
    assert code == 1 and report["refused"]
    assert any(finding in problem for problem in report["problems"]), report["problems"]


def test_a_rare_reward_is_not_a_constant_one() -> None:
    code, report = check("worlds.py:Rare")
    assert code == 0 and "scripted" not in report["players"]
    assert any("rewards are rare: the first 89 episodes" in note for note in report["notes"])
    assert any("scripted_action" in note for note in report["notes"])


def test_prompts_need_a_reward_to_be_worth_anything() -> None:
    code, report = check("prompts", "file=sums.jsonl")
    assert code == 1 and "--reward file.py:function" in report["problems"][0]
    code, report = check("prompts", "file=sums.jsonl", "--reward", "worlds.py:long_answers")
    assert code == 0 and report["players"]["random"]["different rewards"] > 1


def test_the_table_shows_both_players_and_the_verdict() -> None:
    result = env("check", "frozen_lake", "--episodes", "12")
    assert result.exit_code == 0
    assert all(word in result.stdout for word in ("random", "scripted", "different rewards", "ok: episodes end"))
    refused = env("check", "worlds.py:Constant", "--episodes", "2")
    assert refused.exit_code == 1 and "refused: all" in refused.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frozen_lak"], "did you mean 'frozen_lake'"),
        (["frozen_lake", "siz=8"], "did you mean size"),
        (["frozen_lake", "size=5"], "size"),
        (["worlds.py:Gess"], "did you mean 'Guess'"),
        (["prompts"], "file: missing"),
        (["prompts", "file=none.jsonl"], "no such file"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_nearest_name(arguments: list[str], message: str) -> None:
    result = env("check", *arguments)
    refused = str(result.exception) if isinstance(result.exception, ConfigError) else result.stdout
    assert result.exit_code == 1 and message in refused


def test_list_knows_every_option() -> None:
    entries = {entry["name"]: entry for entry in json.loads(env("list", "--json").stdout)}
    assert set(entries) == {"frozen_lake", "prompts", "python"}
    options = {option["name"]: option["default"] for option in entries["frozen_lake"]["options"]}
    assert options["slippery"] == "false" and "levels" in options and "type" not in options
    assert "frozen_lake" in env("list").stdout


def test_play_asks_and_ends_with_the_reward() -> None:
    result = env("play", "frozen_lake", "map=fixed", answers="sideways\nD\nD\nR\nR\nD\nR\n")
    assert result.exit_code == 0
    assert "Not a move" in result.stdout and result.stdout.rstrip().endswith("7 turns, reward 1")


def test_scripted_play_asks_nobody_and_follows_its_seed() -> None:
    first, again, other = (env("play", "frozen_lake", "--scripted", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    assert "> " in first and "turns, reward" in first


def test_importing_the_commands_is_cheap() -> None:
    heavy = {"torch", "gymnasium", "numpy", "pydantic"}
    code = f"import sys, rollweave.cli.env; print({heavy} & set(sys.modules) or 'none')"
    path = os.pathsep.join(sys.path)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert process.stdout.strip() == "none", process.stderr
