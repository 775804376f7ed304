"""The shipped environments, and how a job file becomes environments and tasks."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from rollweave.config.environments import EnvironmentConfig
from rollweave.environments.adapt import adapt
from rollweave.environments.conformance import check_conformance
from rollweave.environments.frozen_lake import RULES, FrozenLake, draw_map, held_out, look_around, parse, random_map
from rollweave.environments.protocol import StepResult
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import ConfigError, EnvironmentFailed
from rollweave.policies.start import play_scripted

MINE = """
from neighbour import GREETING

class Mine:
    def __init__(self, size=3): self.size = size
    def reset(self, seed): return GREETING + " " + str(self.size)
    def step(self, action): return "", 1.0, True

instance = Mine()

def broken(): raise RuntimeError("no database")
"""


def config(**values: Any) -> Any:
    return TypeAdapter(EnvironmentConfig).validate_json(json.dumps(values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("GREETING = 'hello'")
    (tmp_path / "mine.py").write_text(MINE)
    rows = [{"prompt": f"{i}+1?", "answer": i + 1} for i in range(20)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


# ---------------------------------------------------------------------------------------------- FrozenLake


def test_render_marks_the_player_and_names_the_neighbours() -> None:
    lake = ["SFH", "FFF", "HFG"]
    assert draw_map(lake, (1, 0), {(0, 0), (1, 0)}) == ",.O\n@..\nO.G"
    assert look_around(lake, (1, 1), {(0, 0), (1, 0), (1, 1)}) == "<DRU"
    assert look_around(lake, (1, 2), set()) == "LD-u"


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("L", "L"),
        ("right", "R"),
        (" d\n", "D"),
        ("I will go UP, then left", "U"),
        ("Action: 'R'", "R"),
        ("I'd say: left", "L"),
        ("**Down**", "D"),
        ("", None),
        ("xyzzy", None),
        ("lurd", None),
    ],
)
def test_the_first_move_in_an_answer_counts(answer: str, letter: str | None) -> None:
    assert parse(answer) == letter


def play(environment: FrozenLake, actions: str | list[str], seed: int = 0, **data: Any) -> list[StepResult]:
    async def run() -> list[StepResult]:
        adapted = adapt(environment)
        await adapted.reset(seed, data)
        return [await adapted.step(action) for action in actions]

    return asyncio.run(run())


def test_the_fixed_map_is_won_by_its_known_path() -> None:
    results = play(FrozenLake("fixed"), "DDRRDR")
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 1]
    assert [result.done for result in results] == [False] * 5 + [True]
    assert results[-1].observation == "You reached the goal."


def test_a_hole_ends_the_episode_without_reward() -> None:
    last = play(FrozenLake("fixed"), "DR")[-1]
    assert (last.reward, last.done, last.observation) == (0.0, True, "You fell into a hole.")


def test_an_answer_that_is_no_move_stays_put_and_says_so() -> None:
    moved, confused = play(FrozenLake("fixed"), ["D", "dunno"])
    assert confused.observation == f"Not a move: answer L, D, R or U.\n{moved.observation}"
    assert not confused.done


def test_no_hidden_time_limit() -> None:
    assert not any(result.done or result.truncated for result in play(FrozenLake("fixed"), "L" * 150))


def test_instructions_come_first() -> None:
    messages = asyncio.run(adapt(FrozenLake("fixed", instructions=True)).reset(0, {}))
    assert messages[0] == {"role": "system", "content": RULES}
    assert messages[1]["content"].startswith("@...\n")  # type: ignore[index]


def test_slips_come_from_the_seed() -> None:
    seen = [
        [r.observation for r in play(FrozenLake("fixed", 8, slippery=True), "RRRR", seed)] for seed in (1, 1, 2, 3, 4)
    ]
    assert seen[0] == seen[1]
    assert any(other != seen[0] for other in seen[2:])


@pytest.mark.parametrize("size", [4, 8])
def test_held_out_maps_never_occur_in_training(size: int) -> None:
    lake = config(type="frozen_lake", size=size)
    tasks = source(lake, 0, Path())
    trained = [random_map(size, (task := tasks.task(i)).seed, task.data["split"]) for i in range(150)]
    evaluated = [random_map(size, task.seed, task.data["split"]) for task in tasks.held_out(150)]
    assert not {tuple(grid) for grid in trained} & {tuple(grid) for grid in evaluated}
    assert len({tuple(grid) for grid in trained}) > 75
    unsplit = [held_out(random_map(size, seed)) for seed in range(150)]
    assert 10 < sum(unsplit) < 60  # a fifth of the maps or so


# ------------------------------------------------------------------------------------- conformance, scripts


def test_conformance_names_what_is_wrong() -> None:
    class Moody:
        deterministic = True
        resets = 0

        def reset(self, seed: int) -> str:
            Moody.resets += 1
            return str(Moody.resets)

        def step(self, action: str) -> Any:
            return "", 0.0, True

        def close(self) -> None:
            raise OSError("already closed")

    with pytest.raises(EnvironmentFailed) as caught:
        check_conformance(Moody)
    assert "close may be called twice and early: Moody.close raised OSError" in str(caught.value)


def test_conformance_finds_false_determinism() -> None:
    class Moody:
        deterministic = True
        steps = 0

        def reset(self, seed: int) -> str:
            return "start"

        def step(self, action: str) -> Any:
            Moody.steps += 1
            return str(Moody.steps), 0.0, True

    with pytest.raises(EnvironmentFailed, match="same seed same episode: turn 1 differs"):
        check_conformance(Moody)


def test_scripted_play_gives_conversations_of_legal_actions() -> None:
    lake = config(type="frozen_lake", map="fixed")
    tasks = [source(lake, 0, Path()).task(i) for i in range(30)]
    factory = EnvironmentFactory.from_config(lake, Path())
    episodes = play_scripted(factory, tasks, 12, seed=1)
    assert len(episodes) == 30 and all(1 <= len(episode) <= 12 for episode in episodes)
    assert {action for episode in episodes for _, action in episode} == set("LDRU")
    assert episodes[0][0][0] == "@...\n.O.O\n...O\nO..G\n-DR-"
    assert episodes == play_scripted(factory, tasks, 12, seed=1) != play_scripted(factory, tasks, 12, seed=2)


def test_scripted_play_without_a_script_says_what_to_write(folder: Path) -> None:
    mine = config(type="python", target="mine.py:Mine")
    with pytest.raises(ConfigError, match="scripted_action"):
        play_scripted(EnvironmentFactory.from_config(mine, folder), [source(mine, 0, folder).task(0)], 5, 0)


# ------------------------------------------------------------------------------------- from job to environment


def first_observation(job: Any, base: Path, position: int = 0) -> Any:
    """Through a pickle, as it goes to a host."""
    factory = pickle.loads(pickle.dumps(EnvironmentFactory.from_config(job, base)))
    task = source(job, 0, base).task(position)
    return asyncio.run(factory(task).reset(task.seed, task.data))


def test_a_class_from_a_file_gets_its_arguments(folder: Path) -> None:
    job = config(type="python", target="mine.py:Mine", arguments={"size": 5})
    assert first_observation(job, folder) == "hello 5"


def test_a_gymnasium_environment_needs_no_file() -> None:
    job = config(type="python", target="gymnasium:make", arguments={"id": "Blackjack-v1"})
    assert first_observation(job, Path()).startswith("(")


def test_prompts_show_the_row_and_end_after_one_answer(folder: Path) -> None:
    job = config(type="prompts", file="sums.jsonl")
    task = source(job, 0, folder).task(0)
    assert first_observation(job, folder) == task.data["prompt"]
    assert len(source(job, 0, folder).held_out(99)) == 2


def test_a_mixture_plays_each_task_in_its_own_environment(folder: Path) -> None:
    job = config(
        type="mixture",
        of=[
            {"environment": {"type": "frozen_lake", "map": "fixed"}, "name": "lake", "weight": 2.0},
            {"environment": {"type": "prompts", "file": "sums.jsonl"}},
        ],
    )
    tasks = source(job, 0, folder)
    for i in range(20):
        observation = first_observation(job, folder, i)
        assert tasks.task(i).environment == ("lake" if observation.startswith("@") else "prompts")


def test_the_jobs_seed_and_the_environments_name_choose_the_tasks(folder: Path) -> None:
    lakes = [{"environment": {"type": "frozen_lake"}, "name": name} for name in ("a", "b")]
    tasks = source(config(type="mixture", of=lakes), 0, folder)
    drawn = [tasks.task(i) for i in range(20)]
    assert len({task.seed for task in drawn}) == 20  # two lakes do not play the same maps
    assert drawn == [source(config(type="mixture", of=lakes), 0, folder).task(i) for i in range(20)]
    for job in (config(type="frozen_lake"), config(type="prompts", file="sums.jsonl")):
        one, other = ([source(job, seed, folder).task(i) for i in range(10)] for seed in (0, 1))
        assert one != other


def test_members_of_a_mixture_need_different_names() -> None:
    member = {"environment": {"type": "frozen_lake"}}
    with pytest.raises(ConfigError, match="two members are called 'frozen_lake': give each a `name`"):
        source(config(type="mixture", of=[member, member]), 0, Path())


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"target": "mine.py:Mime"}, ConfigError, "defines no 'Mime'; did you mean 'Mine'"),
        ({"target": "mein.py:Mine"}, ConfigError, r"no such file: .*mein\.py; did you mean 'mine\.py'"),
        ({"target": "mine.py"}, ConfigError, "expected `file.py:name`"),
        ({"target": "no_such_package.module:Mine"}, ConfigError, "no module 'no_such_package'"),
        ({"target": "mine.py:instance"}, ConfigError, "is a Mine: name a class"),
        ({"target": "mine.py:broken"}, EnvironmentFailed, r"RuntimeError: no database \(.*mine\.py:11\)"),
        ({"target": "mine.py:Mine", "arguments": {"sise": 1}}, EnvironmentFailed, "unexpected keyword argument 'sise'"),
        ({"target": "syntax.py:Mine"}, ConfigError, r"SyntaxError: .* \(.*syntax\.py:2\)"),
        ({"target": "imports.py:Mine"}, ConfigError, r"No module named 'nothing_here' \(.*imports\.py:1\)"),
    ],
)
def test_bad_targets_are_refused_with_the_fix(folder: Path, values: Any, kind: type[Exception], message: str) -> None:
    (folder / "syntax.py").write_text("x = 1\ndef f(:\n")
    (folder / "imports.py").write_text("import nothing_here\n")
    with pytest.raises(kind, match=message):
        first_observation(config(type="python", **values), folder)


def test_a_changed_file_is_loaded_again(folder: Path) -> None:
    job = config(type="python", target="mine.py:Mine")
    assert first_observation(job, folder) == "hello 3"
    (folder / "mine.py").write_text(MINE.replace("size=3", "size=44"))
    assert first_observation(job, folder) == "hello 44"


def test_a_missing_prompt_column_is_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"sums\.jsonl: row 1 has no prompt in column 'promt'; did you mean 'prompt'"):
        source(config(type="prompts", file="sums.jsonl", prompt="promt"), 0, folder)
    with pytest.raises(ConfigError, match="it must hold text or a list of chat messages"):
        source(config(type="prompts", file="sums.jsonl", prompt="answer"), 0, folder)
