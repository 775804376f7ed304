"""The checker of names: it finds what does not exist, lets pass what does, and docs and docstrings are clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.known_names import KnownNames, learn_names
from tools.lint_names import check, files_to_read, lint

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def names() -> KnownNames:
    return learn_names(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("see `rollout/lynk.py`", id="file"),
        pytest.param("see `no_such_folder/`", id="folder"),
        pytest.param("see `docs/no_such_page.md`", id="page"),
        pytest.param("run `recipes/no_such_recipe.yaml`", id="recipe"),
        pytest.param("see [here](no_such_page.md#part)", id="link"),
        pytest.param("see rollout/lynk.py for that", id="file in running text"),
        pytest.param("`tests/test_lint_names.py::test_no_such_test`", id="test"),
        pytest.param("`test_clock.py::test_the_names_exist`", id="test of another file"),
        pytest.param("`rollweave.clok`", id="module"),
        pytest.param("`rollweave.clock.VirtualCluck`", id="name of a module"),
        pytest.param("`python -m bench.no_such_bench --fast`", id="program"),
        pytest.param("`RolloutShedular`", id="class"),
        pytest.param("the RolloutShedular decides", id="class in running text"),
        pytest.param("`RolloutScheduler.get_bach`", id="method"),
        pytest.param("`Span.no_such_field`", id="field"),
        pytest.param("`train_the_jobs(job)`", id="function"),
        pytest.param("`clock.no_such_call()`", id="method of a value"),
        pytest.param("`no_such_helper`", id="snake case"),
        pytest.param("`NO_SUCH_CONSTANT`", id="constant"),
        pytest.param("`rollout.group_sise`", id="key"),
        pytest.param("`rollout.sampling.max_tokenz: 3`", id="key and value"),
        pytest.param("`offpolicy/es`", id="metric"),
        pytest.param("`ledger/reward-failed`", id="metric without its part"),
        pytest.param("`rollweave trian JOB.yaml`", id="command"),
        pytest.param("`rollweave env chek`", id="command of a group"),
        pytest.param("`rollweave train JOB.yaml --dry-rum`", id="option"),
        pytest.param("`make quickstrat`", id="make target"),
        pytest.param("```\n$ rollweave trian JOB.yaml   # go\n```", id="command in a block"),
        pytest.param("```python\nfrom rollweave import trian\n```", id="import in a block"),
        pytest.param("`rollweave train\nJOB.yaml --dry-rum`", id="name over two lines"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, names: KnownNames) -> None:
    assert len(check(text, "docs/x.md", names)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`clock.py`, `src/rollweave/clock.py:12`, `src/rollweave/`, [here](README.md), `recipes/quickstart.yaml`",
        "`test_lint_names.py::test_a_name_that_does_not_exist_is_found`",
        "`rollweave.clock`, `rollweave.train`, `python -m tools.lint_names docs/x.md`, `python -m bench.NAME`",
        "`RolloutScheduler`, `RolloutScheduler.get_batch`, two RolloutSchedulers, `UntrainableBatch`, `True`",
        "`reset(self, seed)`, `clock.sleep()`, `len(x)`, `get_batch`, `asyncio.TaskGroup`, `torch.nn.Linear`",
        "`rollout.group_size`, `rollout.sampling.max_tokens: 3`, `environment.of[]`, `pipeline.type=sync`",
        "`reward/mean`, `reward/<name>`, `reward/format`, `offpolicy/ratio_*`, `group.admit`",
        "`rollweave train JOB.yaml --dry-run`, `rollweave env check TARGET`, `rollweave jobs [--explain ID]`",
        "`make lint`, `make bench BENCH=engine`",
        "```\nrollweave status RUN [--watch]    what waits --since when\nsome_other_program --flag\n```",
        "```python\nfrom rollweave import train, RollweaveError\n```",
        "a word, `alpha`, `0.5`, `-min(r A, clip(r) A)`, `next_step + k // N`, `metrics.jsonl`, FrozenLake",
    ],
)
def test_a_name_that_exists_passes(text: str, names: KnownNames) -> None:
    assert [str(finding) for finding in check(text, "docs/x.md", names)] == []


def test_docstrings_and_comments_are_read_and_code_is_not(names: KnownNames) -> None:
    source = '"""First.\n\nSee `no/such.py`."""\nx = "`no/string.py`"  # `no/comment.py`\n"""Of `no_such_field`."""\n'
    found = [(finding.line, finding.name) for finding in check(source, "src/x.py", names)]
    assert sorted(found) == [(3, "no/such.py"), (4, "no/comment.py"), (5, "no_such_field")]


def test_a_message_names_the_place_and_what_was_probably_meant(names: KnownNames) -> None:
    (finding,) = check("One.\n\nThe `RolloutShedular` decides.", "docs/x.md", names)
    assert str(finding).startswith("docs/x.md:3: `RolloutShedular` does not exist (nearest: RolloutScheduler")


def test_the_program_fails_on_a_finding_and_passes_without(tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    for text, code in (("`no/such.py`\n", 1), ("`clock.py`\n", 0)):
        page.write_text(text)
        command = [sys.executable, "-m", "tools.lint_names", str(page)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (child.returncode, f"{page}:1" in child.stdout) == (code, code == 1)


def test_the_names_exist(names: KnownNames) -> None:
    files = files_to_read()
    assert {"README.md", "architecture.md", "clock.py"} <= {path.name for path in files}
    assert "CHANGELOG.md" not in {path.name for path in files}
    assert [str(finding) for finding in lint(files, names)] == []
