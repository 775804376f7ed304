"""The doctor: it finds what is broken, says how to mend it, and survives what kills its children."""

from __future__ import annotations

import json

import pytest

from rollweave.cli.main import main
from rollweave.runs import doctor
from rollweave.runs.device_test import device_test
from rollweave.runs.doctor import GIB, Finding, Probe

WORKS = Probe({"gpus": [], "threads": 2, "float32": True, "bfloat16": True})


def test_a_child_that_dies_of_an_illegal_instruction_is_reported() -> None:
    code = """
import os, signal
print('{"gpus": [], "threads": 2}', flush=True)
print('{"float32": true}', flush=True)
os.kill(os.getpid(), signal.SIGILL)
"""
    torch = doctor.probe(code)
    assert doctor.check_float32(torch).status == "ok"
    check = doctor.check_bfloat16(torch)
    assert (check.status, check.detail) == ("warning", "a matrix product fails: killed by SIGILL")
    assert "float32" in check.fix


def test_a_child_that_raises_leaves_its_last_words() -> None:
    assert doctor.probe("raise ImportError('no libgomp')") == Probe({}, "ImportError: no libgomp")


def test_a_child_that_never_answers_is_given_up() -> None:
    assert doctor.probe("import signal; signal.pause()", 0.1).ending == "no answer within 0.1 s"


def test_without_float32_nothing_runs() -> None:
    assert doctor.check_float32(Probe({}, "ModuleNotFoundError: no torch")).status == "broken"
    assert doctor.check_float32(Probe({"threads": 2, "float32": False})).status == "broken"


@pytest.mark.parametrize(
    ("setting", "cores", "status"),
    [
        ("", 2, "ok"),
        ("1", 2, "ok"),
        ("2", 2, "warning"),
        ("2", 4, "ok"),
        ("3", 4, "warning"),
        ("x", 4, "warning"),
        ("1", 1, "ok"),
    ],
)
def test_two_processes_must_not_want_more_threads_than_cores(setting: str, cores: int, status: str) -> None:
    check = doctor.check_threads({"OMP_NUM_THREADS": setting} if setting else {}, cores)
    assert check.status == status
    assert bool(check.fix) == (status != "ok")


def test_little_room_is_a_warning_with_a_fix() -> None:
    for what, little in (("memory", GIB), ("disk", GIB), ("/dev/shm", GIB // 16)):
        check = doctor.check_room(what, little)
        assert check.status == "warning"
        assert check.fix
        assert doctor.check_room(what, 8 * GIB).status == "ok"
        assert doctor.check_room(what, None).status == "ok"


def test_a_gpu_is_named_and_called_untested() -> None:
    check = doctor.check_gpu(Probe({"gpus": ["H20"]}))
    assert check.status == "warning"
    assert "H20" in check.detail
    for torch in (Probe({"gpus": ["H20"]}), WORKS):
        assert "never been executed on a GPU" in doctor.check_gpu(torch).detail


def test_a_missing_package_or_extra_names_its_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_package("no-such-package-anywhere").status == "broken"
    monkeypatch.setitem(doctor.EXTRAS, "x", ("something", ("no_such_module_anywhere",)))
    check = doctor.check_extra("x")
    assert (check.status, "rollweave[x]" in check.fix) == ("warning", True)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("broken", 1)])
def test_the_command_fails_only_when_something_is_broken(
    status: doctor.Grade, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("a", "ok", "1"), Finding("b", status, "[2]", "mend [it]")])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert (ended.value.code or 0) == code
    assert "mend [it]" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] == (code == 0)
    assert [check["name"] for check in found["checks"]] == ["a", "b"]


def test_every_finding_about_this_machine_that_is_not_good_names_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe", lambda code: WORKS)
    checks = doctor.examine()
    assert {"python", "torch", "ray", "threads", "memory", "disk", "/dev/shm", "bfloat16", "gpu", "extra smollm2"} <= {
        check.name for check in checks
    }
    assert all(check.fix for check in checks if check.status != "ok")


def test_the_self_test_of_a_gpu_is_told() -> None:
    torch = Probe({"gpus": ["H20"]})
    passed = doctor.check_gpu(torch, Probe({"gap": 1e-6, "seconds": 4.2, "crossings": 900.0}))
    assert "H20: self-test passed in 4 s (log-probs differ by 1e-06)" in passed.detail
    failed = doctor.check_gpu(torch, Probe({}, "CUDA error: out of memory"))
    assert failed.status == "warning" and "failed: CUDA error: out of memory" in failed.detail
    assert failed.fix.startswith("set device=cpu")


def test_the_self_test_runs_on_the_device_that_is_here() -> None:
    found = device_test("cpu")
    assert found["gap"] < 1e-5 and 0 < found["seconds"] < 30
    assert found["crossings"] > 300
