"""Shows a run while it is going: a live view in a terminal, or one line per step in a log.

The clock here only measures how long a run takes; no decision depends on it. Rich respects NO_COLOR.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live

from rollweave.observability.screen import Header, Screen
from rollweave.observability.summary import Summary
from rollweave.observability.text import ASCII_BLOCKS, BLOCKS, duration, number, percent, sparkline

SPARK_WIDTH = 6


class View:
    """Shows one run: `start`, then `step` for each metrics row, then `end`. The other calls are optional."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console()
        self.now = now
        fancy = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = fancy and not self.console.options.ascii_only
        self._screen: Screen | None = None
        self._painter: Live | None = None

    def start(self, header: Header, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        """Begin to show a run. `earlier` are the metrics rows from before the run was resumed."""
        self._screen = Screen(header, self.now, began=self.now())
        for row in earlier:
            self._screen.step(row)
        if self.live:
            self._painter = Live(self._screen, console=self.console, refresh_per_second=4)
            self._painter.start(refresh=True)
        else:
            self._print(f"{header.name}: {header.line()}, {header.steps} steps")

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Show a row that has been written to metrics.jsonl."""
        screen = self._started()
        screen.step(metrics)
        if not self.live:
            ramp = ASCII_BLOCKS if self.console.options.ascii_only else BLOCKS
            self._print(step_line(screen, ramp) if "reward/mean" in metrics else _evaluation_line(metrics))

    def note(self, text: str) -> None:
        """Show a line of text: a checkpoint, a retry, a wait that takes too long."""
        if self.live and self._screen is not None:
            self._screen.note(text)
        else:
            self._print(text)

    def waiting(self, text: str) -> None:
        """Show what the run waits for now (an empty text: nothing). Only the live view shows it."""
        self._started().waiting = text

    def progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of a preparation (warm start, evaluation) until it is done."""
        screen = self._started()
        before = screen.task
        screen.task = (what, done, total) if done < total else None
        if not self.live and _crosses_quarter(before, what, done, total):
            self._print(f"{what} {done}/{total}")

    def end(self, summary: Summary) -> None:
        self.stop()
        for line in summary_lines(summary):
            self._print(line)

    def stop(self) -> None:
        """End the live view; its last state stays on the terminal. It may be called twice."""
        if self._painter is not None:
            self._painter.stop()
            self._painter = None
        self.live = False

    def _started(self) -> Screen:
        if self._screen is None:
            raise RuntimeError("View.start(header) comes first")
        return self._screen

    def _print(self, text: str) -> None:
        if self.console.options.ascii_only:
            text = text.encode("ascii", "replace").decode()
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def step_line(screen: Screen, ramp: str = BLOCKS) -> str:
    """Write a step as one line of about 120 characters. The columns of consecutive lines align."""
    row = screen.row
    total = str(screen.header.steps)
    evaluation = screen.evaluations[-1] if screen.evaluations else None
    idle = " ".join(f"{pool} {percent(row.get(f'idle/{pool}')):>4}" for pool in ("engine", "trainer"))
    stale = f"{number(row.get('staleness/mean'), 2)}/{number(row.get('staleness/max'), 2)}"
    columns = [
        f"step {screen.done:>{len(total)}}/{total}",
        f"reward {_fixed(row.get('reward/mean'))} {sparkline(screen.rewards, SPARK_WIDTH, ramp):<{SPARK_WIDTH}}",
        f"eval {_fixed(evaluation)}",
        f"tok/s gen {number(row.get('tokens_per_second/generated'), 2):>4}"
        f" train {number(row.get('tokens_per_second/trained'), 2):>4}",
        f"stale {stale:<6}",
        f"idle {idle}",
        f"{duration(row.get('time/step')):>6}",
    ]
    return "  ".join(columns)


def _fixed(value: float | None) -> str:
    return f"{value:6.3f}" if value is not None else "     -"


def _evaluation_line(metrics: Mapping[str, Any]) -> str:
    version = metrics.get("eval/version", metrics.get("step"))
    return f"held-out evaluation of version {version}: reward {_fixed(metrics.get('eval/reward')).strip()}"


def _crosses_quarter(before: tuple[str, int, int] | None, what: str, done: int, total: int) -> bool:
    """Whether the log gets a line for this progress: only at the start and at every quarter."""
    if before is None or before[0] != what:
        return True
    return total > 0 and done * 4 // total > before[1] * 4 // total


def summary_lines(summary: Summary) -> list[str]:
    """Say how the run ended, for both views."""
    endings = {
        "completed": "all steps done",
        "target": f"target {summary.target} reached",
        "interrupted": "interrupted",
        "failed": f"failed: {summary.error}",
    }
    lines = [f"{summary.name}: {endings[summary.exit_reason]} after {summary.steps} steps, {duration(summary.elapsed)}"]
    if summary.eval_final is not None:
        lines.append(
            f"  held-out reward {number(summary.eval_first)} → {number(summary.eval_final)}, best "
            f"{number(summary.eval_best)} at version {summary.eval_best_version}"
        )
    wasted = sum(summary.tokens_wasted.values())
    lines.append(
        f"  {number(summary.tokens_generated)} tokens generated, {number(summary.tokens_trained)} trained, "
        f"{number(wasted)} wasted; staleness at most {number(summary.staleness_max)}"
    )
    return lines
