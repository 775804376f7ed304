"""The terminal view: a line per step in a log, a picture in a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from rollweave.observability.screen import Header, staleness_fact, tokens_fact
from rollweave.observability.summary import summarise
from rollweave.observability.terminal import View
from rollweave.observability.text import ASCII_BLOCKS, bar, duration, number, sparkline
from synthetic_run import rows

HEADER = Header("quickstart", "rollart", "ray", "tiny", 60, 1)


def view(width: int = 100, terminal: bool = False, **options: object) -> tuple[View, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, **options)  # type: ignore[arg-type]
    return View(console, now=lambda: 12.0), file


def test_sparkline_shows_the_shape():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1, 1], 8) == "▁▁▁"
    assert sparkline([], 8) == ""
    assert sparkline([0.0, None, float("nan"), 1.0], 8) == "▁█"
    assert sparkline([0, 0, 0, 0, 9, 9, 9, 9], 2) == "▁█"
    assert len(sparkline(list(range(1000)), 10)) == 10
    assert sparkline([0, 1], 8, ASCII_BLOCKS).isascii()
    assert sparkline([0, 1], 0) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.41234, "0.412"), (12, "12"), (4123.0, "4.12k"), (1.3e6, "1.30M"), (-0.5, "-0.500"), (2.1e-6, "2.1e-6"),
     (float("nan"), "-"), (None, "-"), (0.0, "0")],
)  # fmt: skip
def test_number(value: float | None, text: str):
    assert number(value) == text


def test_duration_and_bar():
    assert [duration(x) for x in (2.13, 192, 3840, None)] == ["2.1 s", "3m 12s", "1h 04m", "-"]
    assert duration(59.96) == "60.0 s"
    assert bar(0.25, 8) == ("██", "░░░░░░")
    assert bar(7.0, 4) == ("████", "")


def test_a_log_gets_one_aligned_line_per_step():
    follow, file = view(width=40)  # narrower than the line: a log must not be wrapped
    follow.start(HEADER)
    for row in rows(60, evaluate_every=0):
        follow.step(row)
    lines = [line for line in file.getvalue().splitlines() if line.startswith("step")]
    assert len(lines) == 60
    assert re.match(r"step  1/60  reward +-?0\.\d{3} ▁ ", lines[0])
    assert lines[-1].startswith("step 60/60")
    assert {line.index("idle engine") for line in lines} == {lines[0].index("idle engine")}
    assert all(len(line) <= 125 for line in lines)
    assert "\x1b" not in file.getvalue()


def test_a_log_says_what_matters_and_not_more():
    follow, file = view()
    follow.start(HEADER)
    for done in range(101):
        follow.progress("warm start", done, 100)
    follow.note("checkpoint saved: [step-10]")
    follow.waiting("group 17")
    follow.step({"step": 0, "eval/reward": 0.1, "eval/version": 0})
    text = file.getvalue()
    assert "rollart α=1 · ray · tiny, 60 steps" in text
    assert re.findall(r"warm start (\d+)/100", text) == ["0", "25", "50", "75", "100"]
    assert "checkpoint saved: [step-10]" in text  # brackets are not markup
    assert "version 0: reward 0.100" in text
    assert "group 17" not in text


def test_missing_numbers_do_not_break_a_line():
    follow, file = view()
    follow.start(HEADER)
    follow.step({"step": 0, "reward/mean": None, "idle/engine": None})
    assert "step  1/60" in file.getvalue()


def picture(width: int, **options: object) -> str:
    follow, file = view(width, terminal=True, **options)
    follow.start(HEADER)
    made = rows(60)
    for row in made[:25]:
        follow.step(row)
    follow.progress("warm start", 3, 10)
    follow.waiting("trainer waits for group 17: env in step 12 since 3 s")
    follow.note("checkpoint saved")
    file.truncate(0)
    follow.console.print(follow._screen)
    follow.end(summarise("quickstart", made, "target", target=0.85))
    return file.getvalue()


def test_the_picture_holds_everything():
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture(110))
    for expected in (
        "quickstart", "rollart α=1 · ray · tiny", "25/60", "held-out", "generated", "trained", "0.82 mean",
        "engine", "trainer", "group 17: env in step 12", "surplus 36", "checkpoint saved", "left", "3/10   warm start",
        "target 0.85 reached after 60 steps",
    ):  # fmt: skip
        assert expected in text, expected


@pytest.mark.parametrize("width", [30, 60, 200])
def test_the_picture_fits_its_terminal(width: int):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture(width))
    panel = [line for line in text.splitlines() if line.startswith(("│", "╭", "╰"))]
    assert panel and all(len(line) == width for line in panel)
    assert width < 60 or "± 0.368" in text  # the curve gives way to the number behind it, not the other way round


def test_only_the_numbers_are_bold():
    row = {"tokens_per_second/generated": 812.0, "tokens_per_second/trained": 799.0, "staleness/mean": 0.5}
    for fact, words in ((tokens_fact(row), "/s generated"), (staleness_fact(row), " mean")):
        at = fact.plain.index(words) + 1
        assert not fact.style and not any(span.start <= at < span.end for span in fact.spans)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured.search(picture(100, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(picture(100, color_system="standard"))


def test_a_terminal_without_unicode_gets_plain_lines():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    follow = View(Console(file=file, force_terminal=True), now=lambda: 0.0)
    assert not follow.live
    follow.start(HEADER)
    for row in rows(4):
        follow.step(row)
    file.flush()
    assert b"step  3/60" in raw.getvalue()


def test_steps_before_the_start_are_a_programming_error():
    follow, _ = view()
    with pytest.raises(RuntimeError, match="start"):
        follow.step({"step": 0})
