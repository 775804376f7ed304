"""Job files: what is read, what is refused and how it is said, overrides, and the way back to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools.reference import markdown

from rollweave.config.control import RollArtPipeline, SyncPipeline
from rollweave.config.document import dump, parse
from rollweave.config.environments import PromptsConfig, PythonEnvironmentConfig
from rollweave.config.job import InlineRuntime, Job, LocalModel, RayRuntime, TinyModel
from rollweave.config.load import dump_job, load_job, parse_text
from rollweave.errors import ConfigError

# Hypothesis fails a case that takes long: a timing assertion, wrong on a busy machine.
unhurried = settings(deadline=None)

ROOT = Path(__file__).resolve().parents[1]

GOOD = """\
model:
  type: tiny
environment:
  type: frozen_lake
pipeline:
  type: sync+
training:
  learning_rate: 1e-4
  steps: 7
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, *overrides: str) -> str:
    """The message with which a job is refused, with the folder cut out."""
    with pytest.raises(ConfigError) as caught:
        load_job(write(folder, text), overrides)
    return str(caught.value).replace(f"{folder}/", "")


# ------------------------------------------------------------------------------------------------ what is read


def test_a_job_is_read_with_its_defaults(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, GOOD))
    assert isinstance(job.model, TinyModel)
    assert (job.training.learning_rate, job.training.steps) == (1e-4, 7)
    assert job.rollout.group_size == 8
    assert isinstance(job.runtime, RayRuntime)


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "0.0001", "1.0e-4", "+1e-04", ".0001"])
def test_every_spelling_of_a_float_is_a_float(text: str) -> None:
    assert parse(f"x: {text}", "f").data == {"x": 1e-4}


@pytest.mark.parametrize(
    ("text", "value"),
    [("no", "no"), ("on", "on"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("010", 10), ("1_0", "1_0")],
)
def test_the_surprises_of_yaml_1_1_are_gone(text: str, value: object) -> None:
    assert parse(f"x: {text}", "f").data == {"x": value}


def test_a_whole_number_may_stand_for_a_number(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, GOOD + "  gradient_clip: 2\n  betas: [0, 1]\n"))
    assert (job.training.gradient_clip, job.training.betas) == (2.0, (0.0, 1.0))


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a\nd: {<<: [{x: 5}, *a]}\n"
    document = parse(text, "f")
    assert document.data == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
        "d": {"x": 5, "y": 2},
    }
    assert document.origin(("b", "y")) == "f:4"
    assert document.origin(("b", "x")) == "f:1"


# --------------------------------------------------------------------------------------------- what is refused


def test_an_unknown_key_names_the_line_and_the_nearest_key(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "  lerning_rate: 3\n")
    assert message == "job.yaml:10: training.lerning_rate: no such key; did you mean learning_rate?"


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "group_size: 4\n")
    assert message == "job.yaml:10: group_size: no such key here; did you mean rollout.group_size?"


def test_a_key_that_resembles_nothing_lists_the_valid_ones(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "checkpoint:\n  qqq: 4\n")
    assert message == "job.yaml:11: checkpoint.qqq: no such key; valid keys are every, keep"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('  minibatches: "3"', 'training.minibatches: expected a whole number above 0, got "3"; remove the quotes'),
        ("  minibatches: true", "training.minibatches: expected a whole number above 0, got true"),
        ("  minibatches: 2.0", "training.minibatches: expected a whole number above 0, got 2.0"),
        ("  minibatches: 0", "training.minibatches: expected a whole number above 0, got 0"),
        ("  minibatches:", "training.minibatches: expected a whole number above 0, got nothing"),
        ("  gradient_clip: true", "training.gradient_clip: expected a number above 0, got true"),
        ("  betas: [0.9]", "training.betas: expected a list of 2 numbers, got [0.9]"),
        ("  betas: 0.9", "training.betas: expected a list of 2 numbers, got 0.9"),
        (
            "  schedule: cosin",
            'training.schedule: expected one of constant, linear, cosine, got "cosin"; did you mean cosine?',
        ),
        (
            "  loss: ppo",
            "training.loss: expected a section with a type: ppo, decoupled_ppo, tis, cispo, topr, gspo, kimi, "
            'got "ppo"',
        ),
    ],
)
def test_a_wrong_value_shows_what_is_expected_and_what_was_given(tmp_path: Path, line: str, complaint: str) -> None:
    assert refused(tmp_path, GOOD + line + "\n") == f"job.yaml:10: {complaint}"


def test_yes_is_text_and_not_a_truth_value(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "logging: {tensorboard: yes}\n")
    assert message == 'job.yaml:10: logging.tensorboard: expected true or false, got "yes"'


def test_an_unknown_type_lists_the_types(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("frozen_lake", "frozenlake"))
    assert message == (
        'job.yaml:4: environment.type: no such type "frozenlake"; did you mean frozen_lake? '
        "(valid: frozen_lake, prompts, python, mixture)"
    )


def test_a_missing_type_lists_the_types(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "runtime:\n  hosts: 2\n")
    assert message == "job.yaml:10: runtime.type: missing; choose one of inline, ray"


def test_a_missing_key_says_which_where_and_what_it_is(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("type: frozen_lake", "type: prompts"))
    assert message == (
        "job.yaml:3: environment.file: missing; expected text (A .jsonl or .parquet file with one task per row)"
    )


def test_a_key_of_another_type_of_a_union_is_unknown(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("type: sync+", "type: sync+\n  alpha: 1"))
    assert message == "job.yaml:7: pipeline.alpha: a key of type areal or rollart only; type sync+ has no keys"


def test_a_contradiction_inside_a_section_has_the_line_of_its_key(tmp_path: Path) -> None:
    text = GOOD.replace("type: sync+", "type: rollart\n  alpha: 0.5\n  sync_point: after_batch")
    assert refused(tmp_path, text).startswith(
        "job.yaml:8: pipeline: sync_point=after_batch needs a staleness bound (alpha) of 1 or more, not 0.5"
    )


def test_errors_inside_lists_of_unions_have_plain_paths(tmp_path: Path) -> None:
    text = GOOD.replace("  type: frozen_lake\n", "  type: mixture\n  of:\n")
    text = text.replace(
        "  of:\n", "  of:\n    - environment: {type: frozen_lake, sise: 4}\n    - environment: {type: frozen_lake}\n"
    )
    assert refused(tmp_path, text) == "job.yaml:6: environment.of[0].environment.sise: no such key; did you mean size?"


def test_all_problems_are_listed(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("type: tiny", "type: tinny") + "  stepps: 3\n")
    first, *problems = message.splitlines()
    assert first == "job.yaml: 2 problems"
    assert [problem.split(": ")[0] for problem in problems] == ["  job.yaml:2", "  job.yaml:10"]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("weights.store=file",), "store=file needs a url: say where, as in weights.url=file:///mnt/shared/weights"),
        (("weights.store=mooncake",), "store=mooncake needs a url: say where, as in weights.url=10.0.0.1:50051"),
        (("weights.url=file:///x",), "url=file:///x is for store=file and store=mooncake, not for auto: remove it"),
        (("weights.store=shared_memory", "runtime.type=inline"), "weights.store=shared_memory needs runtime.type=ray"),
        (("weights.store=shared_memory", "runtime.address=10.0.0.1:6379"), "joins processes of one machine"),
        (("weights.delta=true",), "weights.delta makes less travel between machines, but here"),
    ],
)
def test_a_weight_store_that_cannot_work_is_refused(overrides: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    assert complaint in refused(tmp_path, GOOD, *overrides)


def test_the_weight_store_follows_from_where_the_job_runs(tmp_path: Path) -> None:
    def store(*overrides: str) -> str:
        return load_job(write(tmp_path, GOOD), overrides).weight_store

    assert store() == "shared_memory"
    assert store("runtime.type=inline") == "memory"
    assert store("runtime.address=10.0.0.1:6379") == "ray"
    assert store("weights.store=ray", "weights.delta=true") == "ray"
    assert store("weights.store=file", "weights.url=s3://bucket/weights") == "file"


def test_a_contradiction_names_the_file_and_the_key(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("type: sync+", "type: rollart") + "  loss: {denominator: proximal}\n")
    assert message.startswith("job.yaml:10: training.loss.denominator=proximal ignores staleness, but rollart trains")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "job.yaml: expected keys and values"),
        ("- 1\n", "job.yaml: expected keys and values"),
        ("model: {type: tiny\n", "job.yaml:2: not valid YAML"),
        ("model:\n\ttype: tiny\n", "job.yaml:2: not valid YAML"),
        ("seed: 1\nmodel: {type: tiny}\nseed: 2\n", "job.yaml:3: seed: given twice, first at job.yaml:1"),
        ("a: {b: 1, b: 1}\n", "job.yaml:1: a.b: given twice"),
        ("seed: .nan\n", "job.yaml:1: .nan is not a finite number"),
        ("seed: !!python/name:os.system x\n", "job.yaml:1: 'x' has the tag"),
        ("1: x\n", "job.yaml:1: '1' is not a key"),
        ("a: &a [*a]\n", "job.yaml:1: this anchor contains itself"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: not valid YAML"),
        ("a: {<<: 3}\n", "job.yaml:1: `<<` merges sections"),
    ],
)
def test_text_that_is_no_job(tmp_path: Path, text: str, complaint: str) -> None:
    assert refused(tmp_path, text).startswith(complaint)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_job(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_job(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        load_job(tmp_path / "binary.yaml")


# -------------------------------------------------------------------------------------------------- overrides


def test_overrides_are_yaml_and_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    job = load_job(path, ["training.steps=9", "training.betas=[0.8, 0.9]", "name=a=b", "evaluation.target=1e-2"])
    assert (job.training.steps, job.training.betas, job.name, job.evaluation.target) == (9, (0.8, 0.9), "a=b", 0.01)


def test_switching_a_type_drops_the_keys_of_the_old_one(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("type: sync+", "{type: rollart, alpha: 3}"))
    assert load_job(path, ["pipeline.type=sync"]).pipeline == SyncPipeline(type="sync")


def test_the_order_of_overrides_does_not_matter_to_a_type(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    job = load_job(path, ["pipeline.alpha=0", "pipeline.type=rollart"])
    assert job.pipeline == RollArtPipeline(type="rollart", alpha=0)


def test_overriding_a_type_with_itself_keeps_the_section(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("type: tiny", "type: tiny\n  hidden: 64"))
    job = load_job(path, ["model.type=tiny"])
    assert isinstance(job.model, TinyModel)
    assert job.model.hidden == 64


def test_a_section_left_out_of_the_file_keeps_its_default_type(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, GOOD), ["runtime.hosts=3"])
    assert job.runtime == RayRuntime(type="ray", hosts=3)


def test_an_argument_called_type_is_an_ordinary_key(tmp_path: Path) -> None:
    text = GOOD.replace("type: frozen_lake", "{type: python, target: 'm:E', arguments: {type: a, b: 1}}")
    job = load_job(write(tmp_path, text), ["environment.arguments.type=z"])
    assert isinstance(job.environment, PythonEnvironmentConfig)
    assert job.environment.arguments == {"type": "z", "b": 1}


def test_list_items_go_by_position(tmp_path: Path) -> None:
    text = GOOD + "rewards: [{function: 'm:f'}, {function: 'm:g'}]\n"
    job = load_job(write(tmp_path, text), ["rewards.1.weight=2"])
    assert [reward.weight for reward in job.rewards] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("training.stepz=3", "override 'training.stepz=3': training.stepz: no such key; did you mean steps?"),
        ("trainning.steps=3", "override 'trainning.steps=3': trainning: no such key; did you mean training?"),
        ("training.steps=x", "override 'training.steps=x': training.steps: expected a whole number above 0, got \"x\""),
        ("name.x=3", "override 'name.x=3': name: expected text, got"),
        ("training.steps.x=3", "override 'training.steps.x=3': training.steps is a value, it has no key x"),
        ("rewards.1.weight=3", "override 'rewards.1.weight=3': rewards is a list of 1; name one by position"),
        ("steps", "override 'steps': expected key=value"),
        ("=3", "override '=3': expected key=value"),
        ("a={", "override 'a={': not valid YAML"),
        (
            "pipeline.type=sinc",
            "override 'pipeline.type=sinc': pipeline.type: no such type \"sinc\"; did you mean sync?",
        ),
        (
            "training={steps: 0}",
            "override 'training={steps: 0}': training.steps: expected a whole number above 0, got 0",
        ),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, complaint: str) -> None:
    text = GOOD + "rewards: [{function: 'm:f'}]\n"
    assert refused(tmp_path, text, override).startswith(complaint)


# ------------------------------------------------------------------------------------- sections as one text


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("tiny", {"type": "tiny"}),
        ("smollm2", {"type": "smollm2-135m"}),
        ("./m", {"type": "local", "path": "./m"}),
        ("../models/m", {"type": "local", "path": "../models/m"}),
        ("/models/m", {"type": "local", "path": "/models/m"}),
        ("Qwen/Qwen3-0.6B", {"type": "hub", "name": "Qwen/Qwen3-0.6B"}),
    ],
)
def test_a_model_may_be_one_text(tmp_path: Path, text: str, section: dict[str, str]) -> None:
    short = load_job(write(tmp_path, f"model: {text}\nenvironment: frozen_lake\n"))
    assert short == load_job(write(tmp_path, f"model: {section}\nenvironment: {{type: frozen_lake}}\n"))
    assert load_job(write(tmp_path, dump_job(short))) == short
    assert load_job(write(tmp_path, GOOD), [f"model={text}"]).model == short.model


def test_an_environment_may_be_one_text(tmp_path: Path) -> None:
    own = load_job(write(tmp_path, "model: tiny\nenvironment: envs/e.py:E\n")).environment
    assert own == PythonEnvironmentConfig(type="python", target=f"{tmp_path}/envs/e.py:E")
    message = refused(tmp_path, "model: tiny\nenvironment: frozen_lak\n")
    assert message.startswith('job.yaml:2: environment.type: no such type "frozen_lak"; did you mean frozen_lake?')


def test_overrides_reach_into_a_section_that_is_one_text(tmp_path: Path) -> None:
    path = write(tmp_path, "model: tiny\nenvironment: frozen_lake\n")
    job = load_job(path, ["model.warm_start.steps=0", "environment.size=8"])
    assert isinstance(job.model, TinyModel) and job.model.warm_start.steps == 0
    assert job.environment.size == 8  # type: ignore[union-attr]
    assert load_job(path, ["model.type=local", "model.path=m"]).model == LocalModel(type="local", path=f"{tmp_path}/m")


@pytest.mark.parametrize("overrides", [[], ["model.hidden=32"]])
def test_a_text_that_is_no_model_is_refused_with_what_may_stand_there(tmp_path: Path, overrides: list[str]) -> None:
    message = refused(tmp_path, "model: tinny\nenvironment: frozen_lake\n", *overrides)
    assert message == (
        "job.yaml:1: model: no model 'tinny'; write tiny, smollm2, a folder (./tinny) or a model of the hub "
        "(Qwen/Qwen3-0.6B)"
    )


def test_a_name_of_the_hub_has_two_parts(tmp_path: Path) -> None:
    message = refused(tmp_path, "model: {type: hub, name: Qwen3}\nenvironment: frozen_lake\n")
    assert message == "job.yaml:1: model.name: expected organisation/name, as in Qwen/Qwen3-0.6B, got 'Qwen3'"


# ------------------------------------------------------------------------------------- files, and the way back


def test_relative_file_names_are_taken_from_the_job_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    text = """\
model: {type: local, path: ../models/m}
environment:
  type: mixture
  of:
    - environment: {type: prompts, file: data.jsonl}
    - environment: {type: python, target: "envs/e.py:E", arguments: {file: data.jsonl}}
rewards: [{function: "score.py:f"}, {function: "package.module:f"}, {function: "/abs/score.py:f"}]
pipeline: {type: sync}
"""
    write(tmp_path / "jobs", text)
    monkeypatch.chdir(tmp_path)
    job = load_job(Path("jobs/job.yaml"))
    assert isinstance(job.model, LocalModel)
    assert job.model.path == str(tmp_path / "models/m")
    prompts, own = (member.environment for member in job.environment.of)  # type: ignore[union-attr]
    assert isinstance(prompts, PromptsConfig)
    assert isinstance(own, PythonEnvironmentConfig)
    assert prompts.file == str(tmp_path / "jobs/data.jsonl")
    assert own.target == f"{tmp_path}/jobs/envs/e.py:E"
    assert own.arguments == {"file": "data.jsonl"}
    assert [r.function for r in job.rewards] == [
        f"{tmp_path}/jobs/score.py:f",
        "package.module:f",
        "/abs/score.py:f",
    ]


def test_a_job_made_in_python_keeps_its_names() -> None:
    assert LocalModel(type="local", path="m").path == "m"


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_comes_back_equal_from_its_resolved_file(recipe: Path, tmp_path: Path) -> None:
    job = load_job(recipe)
    assert load_job(write(tmp_path, dump_job(job))) == job


def test_a_resolved_file_states_every_default(tmp_path: Path) -> None:
    text = dump_job(load_job(write(tmp_path, GOOD), ["runtime.type=inline"]))
    assert "learning_rate: 0.0001" in text
    assert "get_batch: 1800.0" in text
    assert load_job(write(tmp_path, text)).runtime == InlineRuntime(type="inline")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@unhurried
@given(JSON)
@example({"\x85": ["\u2028", "\u2029"]})
@example("text\nof two lines")
def test_any_plain_data_comes_back_from_yaml_as_it_was(data: object) -> None:
    assert parse(dump(data), "f").data == data


@unhurried
@given(st.from_regex(r"[-+.0-9eE_:~<nNaAtTrRuUlLsSfF ]{0,8}", fullmatch=True))
@example("1e-4")
@example("1E5")
@example("<<")
@example("~")
def test_text_that_looks_like_a_value_comes_back_as_text(text: str) -> None:
    assert parse(dump({text: [text]}), "f").data == {text: [text]}


@settings(unhurried, max_examples=40)
@given(arguments=st.dictionaries(st.text(), JSON, max_size=3), rate=st.floats(1e-12, 1e3), seed=st.integers())
def test_any_job_comes_back_equal_from_its_resolved_file(arguments: dict[str, object], rate: float, seed: int) -> None:
    data = {
        "seed": seed,
        "model": {"type": "tiny"},
        "environment": {"type": "python", "target": "m:E", "arguments": arguments},
        "pipeline": {"type": "sync"},
        "training": {"learning_rate": rate},
    }
    job = parse_text(dump(data), "a job", ROOT, Job)
    assert (job.seed, job.training.learning_rate) == (seed, rate)
    assert parse_text(dump_job(job), "its copy", Path("/elsewhere"), Job) == job


# -------------------------------------------------------------------------------------------------- reference


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `make docs`"


def test_the_reference_names_every_key_of_every_section() -> None:
    page = markdown()

    def check(section: object) -> None:
        for name in type(section).model_fields:  # type: ignore[attr-defined]
            assert f"| `{name}` |" in page

    job = Job(
        model=TinyModel(type="tiny"),
        environment=PromptsConfig(type="prompts", file="f"),
        pipeline=SyncPipeline(type="sync"),
    )
    for section in (
        job,
        job.model,
        job.environment,
        job.rollout,
        job.rollout.deadlines,
        job.training,
        job.training.loss,
    ):
        check(section)
