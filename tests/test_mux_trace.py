"""Traces: what is refused and how it is said; what a generated trace looks like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollweave.mux.simulation.trace import (
    PROFILES,
    TraceError,
    TraceJob,
    describe,
    generate,
    peak_concurrency,
    read_trace,
    write_trace,
)

HEADER = "submit_s,duration_s,gpus\n"

BROKEN = {
    "": "the file is empty",
    "\n \n": "the file is empty",
    HEADER: "no job",
    "submit,duration,gpus\n0,1,1\n": "line 1: the header is `submit,duration,gpus`",
    "0,1200,1\n": "line 1: the header is `0,1200,1`",
    f"{HEADER}0,1200,1\n5,1200\n": "line 3: 2 values where the header names 3 (`5,1200`)",
    f"{HEADER}0,1200,1,extra\n": "line 2: 4 values",
    f"{HEADER}0,1200,1\nsoon,1200,1\n": "line 3: submit_s is 'soon'",
    f"{HEADER}0,nan,1\n": "line 2: duration_s is 'nan'",
    f"{HEADER}0,inf,1\n": "line 2: duration_s is 'inf'",
    f"{HEADER}-1,1200,1\n": "line 2: submit_s is -1",
    f"{HEADER}0,0,1\n": "line 2: duration_s is 0",
    f"{HEADER}0,-3,1\n": "line 2: duration_s is -3",
    f"{HEADER}0,1200,0\n": "line 2: gpus is '0'",
    f"{HEADER}0,1200,1.5\n": "line 2: gpus is '1.5'",
    f"{HEADER}0,1200,²\n": "line 2: gpus is '²'",
    f"{HEADER}9,1200,1\n\n3,1200,1\n": "line 4: submit_s 3 comes after 9; sort the file",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_trace_is_refused_with_file_line_and_value(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=re.escape(BROKEN[text])) as refused:
        read_trace(path)
    assert str(refused.value).startswith(str(path))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "binary.csv")


def test_a_written_trace_reads_back_the_same(tmp_path: Path) -> None:
    jobs = [TraceJob(0, 1200, 1, "a"), TraceJob(0, 0.25, 8, "b"), TraceJob(7.5, 3600, 4, "c")]
    path = tmp_path / "trace.csv"
    path.write_text(write_trace(jobs), encoding="utf-8")
    assert read_trace(path) == jobs


def test_the_column_with_names_is_optional(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}0,1200,1\n5,60,2\n")
    assert read_trace(path) == [TraceJob(0, 1200, 1), TraceJob(5, 60, 2)]


def test_peak_counts_jobs_at_the_same_time() -> None:
    assert peak_concurrency([TraceJob(0, 10, 1), TraceJob(5, 10, 1), TraceJob(10, 10, 1)]) == 2


@pytest.mark.parametrize("like", PROFILES)
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_generated_trace_has_the_statistics_of_its_profile(like: str, seed: int) -> None:
    profile, found = PROFILES[like], describe(generate(seed=seed, like=like))
    assert found.jobs == 300
    assert found.arrival_span_h == pytest.approx(profile.span_h, rel=0.001)
    assert found.mean_h == pytest.approx(profile.mean_h, rel=0.01)
    _, p10_h, median_h, p90_h, max_h = profile.curve_h
    assert found.p10_h == pytest.approx(p10_h, rel=0.05)
    assert found.median_h == pytest.approx(median_h, rel=0.05)
    assert found.p90_h == pytest.approx(p90_h, rel=0.05)
    assert found.max_h == pytest.approx(max_h, rel=0.001)
    assert found.mean_concurrency == pytest.approx(300 * profile.mean_h / profile.span_h, rel=0.01)
    assert found.peak_concurrency == pytest.approx(profile.peak, rel=0.15)


def test_a_seed_fixes_the_trace_and_another_one_gives_another() -> None:
    assert generate(seed=3) == generate(seed=3)
    assert generate(seed=3) != generate(seed=4)


def test_fewer_jobs_come_over_a_shorter_time() -> None:
    found = describe(generate(jobs=60))
    assert found.jobs == 60
    assert found.mean_concurrency == pytest.approx(7.46, rel=0.1)
