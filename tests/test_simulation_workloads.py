"""Simulated work: what the presets draw, that modes meet the same episodes, and a recorded run played again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import pytest

from rollweave.config.workload import LogNormal, Mixed, Normal, Part, TaskModel, Uniform, constant
from rollweave.engines.protocol import Completion, Request, Sampling
from rollweave.errors import ConfigError
from rollweave.seeds import generator
from rollweave.simulation.draws import sampler
from rollweave.simulation.hardware.engine import GpuEngine
from rollweave.simulation.hardware.environment import Scripts
from rollweave.simulation.hardware.machines import GpuTrainer
from rollweave.simulation.simulate import scenario, simulate
from rollweave.simulation.workloads.episode import NEVER, DrawnWorkload, EpisodeModel
from rollweave.simulation.workloads.presets import PRESETS, resolve
from rollweave.simulation.workloads.recorded import RecordedWorkload
from rollweave.trajectory import Group, Span, TokenBuffer, TokenIds

TURNS = {"swe-bench": (30, 50), "webshop": (5, 30), "frozen-lake": (20, 100), "gem-math": (1, 4), "gem-game": (1, 1)}
"""RollArt, Table 1."""


@pytest.mark.parametrize("name", TURNS)
def test_presets_take_as_many_turns_as_the_paper_says(name: str) -> None:
    model = EpisodeModel(PRESETS[name])
    turns = [len(model.draw(seed, 0).answers) for seed in range(400)]
    low, high = TURNS[name]
    assert low <= min(turns) and max(turns) <= high
    assert high == low or max(turns) - min(turns) > (high - low) * 0.8


def test_reasoning_has_a_heavy_tail() -> None:
    """ROLL Flash, section 2.1: the longest response of a batch is more than 20 times the median."""
    model = EpisodeModel(PRESETS["rlvr-math"])
    lengths = [model.draw(seed, 0).answers[0] for seed in range(2000)]
    assert max(lengths) > 20 * median(lengths)


def test_production_has_twelve_turns_in_two_humps() -> None:
    model = EpisodeModel(PRESETS["production"])
    turns = [len(model.draw(seed, 0).answers) for seed in range(3000)]
    assert 11 <= fmean(turns) <= 13 and max(turns) <= 48
    assert not [t for t in turns if 5 < t < 11]


def test_distributions_are_what_they_say() -> None:
    rng = generator(0, "test")
    draws = {
        "constant": [sampler(constant(3))(rng) for _ in range(10)],
        "uniform": [sampler(Uniform(type="uniform", low=2, high=4))(rng) for _ in range(2000)],
        "normal": [sampler(Normal(type="normal", mean=1, std=5))(rng) for _ in range(2000)],
        "lognormal": [
            sampler(LogNormal(type="lognormal", median=10, sigma=1, low=2, high=50))(rng) for _ in range(2000)
        ],
        "mixed": [
            sampler(Mixed(type="mixed", parts=(Part(weight=3, of=constant(0)), Part(weight=1, of=constant(1)))))(rng)
            for _ in range(2000)
        ],
    }
    assert set(draws["constant"]) == {3}
    assert (
        min(draws["uniform"]) >= 2
        and max(draws["uniform"]) <= 4
        and fmean(draws["uniform"]) == pytest.approx(3, abs=0.05)
    )
    assert min(draws["normal"]) == 0
    assert median(draws["lognormal"]) == pytest.approx(10, rel=0.1)
    assert (min(draws["lognormal"]), max(draws["lognormal"])) == (2, 50)
    assert fmean(draws["mixed"]) == pytest.approx(0.25, abs=0.04)


def test_members_share_the_prompt_and_nothing_else() -> None:
    model = EpisodeModel(PRESETS["webshop"])
    one, other, again = model.draw(7, 0), model.draw(7, 1), model.draw(7, 0)
    assert one == again != other
    assert one.observations[0] == other.observations[0]
    assert one.answers != other.answers


def test_misfortune_comes_as_often_as_it_should() -> None:
    task = TaskModel(reset_failure_rate=0.2, reset_hang_rate=0.1, turns=constant(5), step_failure_rate=0.02)
    episodes = [EpisodeModel(task).draw(seed, 0) for seed in range(3000)]
    assert fmean(e.reset_seconds == NEVER for e in episodes) == pytest.approx(0.1, abs=0.02)
    assert fmean(e.failing_step == -1 for e in episodes) == pytest.approx(0.2, abs=0.03)
    assert fmean(e.failing_step in range(5) for e in episodes) == pytest.approx(0.8 * (1 - 0.98**5), abs=0.02)


def test_a_file_overrides_its_preset() -> None:
    task = resolve(TaskModel(preset="gem-math", name="mine", turns=constant(9)))
    assert (task.name, task.turns) == ("mine", constant(9))
    assert task.answer_tokens == PRESETS["gem-math"].answer_tokens


def test_weights_share_out_the_groups() -> None:
    tasks = [PRESETS["gem-math"].model_copy(update={"weight": 3.0}), PRESETS["gem-game"]]
    source = DrawnWorkload(tasks, seed=1).source
    names = [source.task(index).environment for index in range(2000)]
    assert names.count("gem-math") / 2000 == pytest.approx(0.75, abs=0.04)


# --------------------------------------------------------------------------------------------- tokens by number


@dataclass
class Listener:
    """Keeps what a simulated run trained on."""

    spans: list[Span] = field(default_factory=list)
    contexts: list[TokenIds] = field(default_factory=list)


def test_simulated_spans_and_contexts_own_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Listener()
    accumulate, generate = GpuTrainer.accumulate, GpuEngine.generate

    async def train(self: GpuTrainer, groups: Sequence[Group]) -> None:
        heard.spans += [span for group in groups for member in group.members for span in member.spans()]
        await accumulate(self, groups)

    def ask(self: GpuEngine, request: Request) -> Awaitable[Completion]:
        heard.contexts.append(request.tokens)
        return generate(self, request)

    monkeypatch.setattr(GpuTrainer, "accumulate", train)
    monkeypatch.setattr(GpuEngine, "generate", ask)
    pools = [
        {"name": "rollout", "device": "H20", "count": 4, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 8, "role": "train"},
    ]
    rollout = {"groups_per_step": 2, "group_size": 2}
    simulate(
        scenario(
            {
                "training": {"steps": 2},
                "cluster": {"pools": pools},
                "workload": {"tasks": [{"preset": "frozen-lake"}]},
                "rollout": rollout,
            }
        )
    )
    answers = [span for span in heard.spans if span.sampled]
    assert len(answers) > 8 and len(heard.contexts) > len(answers) / 2
    assert all(span.tokens.strides == (0,) for span in heard.spans)
    assert all(span.logprobs is not None and span.logprobs.strides == (0,) for span in answers)
    assert all(context.strides == (0,) for context in heard.contexts)


def test_the_workload_says_how_long_an_answer_is() -> None:
    scripts = Scripts()
    one, other = scripts.begin(), scripts.begin()
    context = TokenBuffer(scripts.open(one.show(10, answer=5)))
    other.show(3, answer=9)
    context.extend(answer := scripts.answer(Request("a#1", "a", context.view(), 0, Sampling())))
    assert len(answer) == 5
    context.extend(scripts.reply(one.show(7, answer=2), answered_end=True))
    assert (len(context), len(scripts.answer(Request("a#2", "a", context.view(), 0, Sampling())))) == (22, 2)


# ----------------------------------------------------------------------------------------------- a recorded run


def record(folder: Path, rows: list[dict[str, object]]) -> Path:
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def transcript(task: str, answers: list[int], outcome: str = "finished") -> dict[str, object]:
    turns = [
        {"observation_tokens": 100 + n, "versions": [[3, tokens - 1], [4, 1]], "seconds": {"environment": 0.5}}
        for n, tokens in enumerate(answers)
    ]
    return {"task": task, "outcome": outcome, "reward": 1.0, "turns": turns}


def test_a_recorded_run_is_played_again(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        [
            transcript("lake/train/1", [5, 6]),
            transcript("lake/train/2", [7]),
            transcript("lake/train/3", [9], "aborted"),
        ],
    )
    workload = RecordedWorkload(run, seed=0)
    episodes = [workload.episode(workload.source.task(index)) for index in range(50)]
    assert {tuple(episode.answers) for episode in episodes} == {(5, 6), (7,)}
    assert all(episode.step_seconds == [0.5] * len(episode.answers) for episode in episodes)
    outcome = simulate(
        scenario(
            {
                "training": {"steps": 2},
                "cluster": {
                    "pools": [
                        {"name": "r", "device": "H20", "count": 1, "role": "rollout"},
                        {"name": "t", "device": "H20", "count": 1, "role": "train"},
                    ]
                },
                "workload": {"trace": str(run)},
                "rollout": {"groups_per_step": 2, "group_size": 2},
            }
        )
    )
    assert outcome.reward_mean == 1.0 and 8 <= outcome.turns <= 16


def test_a_run_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no trajectories\.jsonl"):
        RecordedWorkload(tmp_path, seed=0)
    record(tmp_path, [transcript("lake/train/1", [5], "timed_out")])
    with pytest.raises(ConfigError, match="no finished episode"):
        RecordedWorkload(tmp_path, seed=0)


def test_a_run_of_an_older_version_is_refused_with_the_fix(tmp_path: Path) -> None:
    old = transcript("lake/train/1", [5])
    for turn in old["turns"]:
        del turn["observation_tokens"]
    with pytest.raises(ConfigError, match="record a run anew"):
        RecordedWorkload(record(tmp_path, [old]), seed=0)
