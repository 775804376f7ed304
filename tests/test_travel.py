"""What travels to machines that share no disk, and how a worker there finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollweave.config.load import load_job
from rollweave.errors import ConfigError
from rollweave.runtimes import travel
from rollweave.runtimes.travel import pack_luggage
from rollweave.targets import MOVED_FOLDERS, load_target


def job_in(folder: Path) -> Path:
    code, policy = folder / "code", folder / "policy"
    (code / "helpers").mkdir(parents=True)
    (code / "data").mkdir()
    policy.mkdir()
    (code / "world.py").write_text("from helpers import SIZE\n\nclass World:\n    size = SIZE\n")
    (code / "helpers" / "__init__.py").write_text("SIZE = 7\n")
    (code / "data" / "big.bin").write_bytes(b"x" * 1000)
    (code / "rewards.py").write_text("def good(trajectory):\n    return 1.0\n")
    (policy / "config.json").write_text("{}")
    (folder / "job.yaml").write_text(
        "model: tiny\nenvironment: {type: python, target: code/world.py:World}\n"
        "rewards: [{function: code/rewards.py:good}, {function: 'json:dumps', name: other}]\n"
    )
    return folder / "job.yaml"


def test_the_policy_and_the_folders_of_named_files_travel_once(tmp_path: Path) -> None:
    luggage = pack_luggage(load_job(job_in(tmp_path)), tmp_path / "policy")
    assert [(one.name, one.folder.name) for one in luggage] == [("policy", "policy"), ("code-0", "code")]
    assert {str(file) for file in luggage[1].files} == {"world.py", "rewards.py", "helpers/__init__.py"}


def test_too_much_code_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(job_in(tmp_path))
    monkeypatch.setattr(travel, "MOST_CODE_MB", 1e-6)
    with pytest.raises(ConfigError, match=r"MB of Python files.*package\.module:name"):
        pack_luggage(job, tmp_path / "policy")


def test_a_worker_elsewhere_loads_the_file_from_where_it_has_travelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "far.py").write_text("WHERE = 'there'\n")
    monkeypatch.setenv(MOVED_FOLDERS, json.dumps({str(tmp_path / "here"): str(there)}))
    assert load_target(f"{tmp_path / 'here' / 'far.py'}:WHERE", Path()) == "there"
    with pytest.raises(ConfigError, match="no such file"):
        load_target(f"{tmp_path / 'elsewhere' / 'far.py'}:WHERE", Path())
