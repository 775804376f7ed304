"""The state of the live terminal view (`Screen`), and how rich draws it.

Rich draws in a thread of its own. So values of the state are replaced or appended to, never changed in place, and the
thread sees a consistent state at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rollweave.observability.text import bar, duration, number, percent, sparkline

POOLS = {"engine": "engine", "trainer": "trainer", "environments": "envs"}
"""The pools whose idle share is shown, with the short names that fit."""

NOTES_KEPT = 4
RECENT_STEPS = 10
"""The remaining time is estimated from so many steps: enough to be steady, few enough to follow a change."""


@dataclass(frozen=True, slots=True)
class Header:
    """The facts that do not change during a run."""

    name: str
    mode: str
    runtime: str
    model: str
    steps: int
    alpha: float | None = None

    def line(self) -> str:
        mode = self.mode if self.alpha is None else f"{self.mode} α={self.alpha:g}"
        return f"{mode} · {self.runtime} · {self.model}"


@dataclass(slots=True)
class Screen:
    """The state behind the live view and the log lines."""

    header: Header
    now: Callable[[], float]
    began: float
    row: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0
    rewards: list[float | None] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    waiting: str = ""
    task: tuple[str, int, int] | None = None
    """A preparation (for example the warm start), how much of it is done, and how much there is."""

    def step(self, row: Mapping[str, Any]) -> None:
        if (evaluation := row.get("eval/reward")) is not None:
            self.evaluations.append(evaluation)
        if "reward/mean" not in row:
            return
        self.row = row
        self.done = int(row["step"]) + 1
        self.rewards.append(row["reward/mean"])
        self.step_seconds = [*self.step_seconds, row.get("time/step") or 0.0][-RECENT_STEPS:]

    def note(self, text: str) -> None:
        self.notes = (*self.notes, text)[-NOTES_KEPT:]

    def left(self) -> float | None:
        """The remaining seconds; None until a step has shown how long steps take."""
        if not self.step_seconds:
            return None
        return (self.header.steps - self.done) * sum(self.step_seconds) / len(self.step_seconds)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = facts_grid(_lines(self, max(options.max_width - 16, 8)))
        yield framed(facts, Text(self.header.name, style="bold"), self.header.line())
        for note in self.notes:
            yield Text(f" {note}", style="dim", no_wrap=True, overflow="ellipsis")


def framed(content: RenderableType, title: Text, below: str) -> Panel:
    """The panel of a run, as the live view and `rollweave status` show it."""
    subtitle = Text(below, style="dim")
    return Panel(
        content, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", border_style="cyan"
    )


def facts_grid(lines: list[tuple[str, Text]]) -> Table:
    """One line per fact, its label in front."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", no_wrap=True, width=9)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for label, content in lines:
        content.no_wrap, content.overflow = True, "ellipsis"
        grid.add_row(label, content)
    return grid


def _lines(screen: Screen, width: int) -> list[tuple[str, Text]]:
    lines = [("steps", _progress(screen, width))]
    if screen.task is not None:
        what, done, total = screen.task
        lines.append(("preparing", _meter(done, total, width).append(f"   {what}")))
    spread = f"  ± {number(screen.row['reward/std'])}" if screen.row.get("reward/std") is not None else ""
    best = f"  best {number(max(screen.evaluations))}" if screen.evaluations else ""
    lines.append(("reward", _series(screen.rewards, width, "green", spread)))
    lines.append(("held-out", _series(screen.evaluations, width, "magenta", best)))
    if screen.row:
        lines += [("tokens", tokens_fact(screen.row)), ("staleness", staleness_fact(screen.row))]
        lines += [("idle", _idle(screen.row, width)), ("attempts", ledger_fact(ledger_counts(screen.row, "attempt")))]
    lines.append(("waits for", Text(screen.waiting or "nothing", style="yellow" if screen.waiting else "dim")))
    return lines


def _progress(screen: Screen, width: int) -> Text:
    text = _meter(screen.done, screen.header.steps, width)
    text.append(f"   {duration(screen.now() - screen.began)}", style="bold")
    if (left := screen.left()) is not None:
        text.append(f"   {duration(left)} left", style="dim")
    return text


def _meter(done: int, total: int, width: int) -> Text:
    """A bar that leaves room for what stands behind it in a line of this width."""
    length = min(max(width - 36, 6), 40)
    filled = round(length * done / total) if total else length
    return Text.assemble(
        ("━" * filled, "cyan"), ("─" * (length - filled), "bright_black"), (f" {done}/{total}", "bold")
    )


def _series(values: Sequence[float | None], width: int, colour: str, more: str) -> Text:
    latest = number(values[-1]) if values else "-"
    return Text.assemble((f"{latest:<7}", "bold"), (sparkline(values, min(width - 22, 60)), colour), (more, "dim"))


def tokens_fact(row: Mapping[str, Any]) -> Text:
    if "tokens_per_second/generated" not in row:
        return Text("-", style="dim")
    generated, trained = (number(row.get(f"tokens_per_second/{what}")) for what in ("generated", "trained"))
    text = Text.from_markup(f"[bold]{generated}[/]/s generated  [bold]{trained}[/]/s trained")
    if share := row.get("tokens/wasted_share"):
        text.append(f"   {percent(share)} wasted so far", style="yellow")
    return text


def staleness_fact(row: Mapping[str, Any]) -> Text:
    if "staleness/mean" not in row:
        return Text("-", style="dim")
    mean, highest = number(row["staleness/mean"], 2), number(row.get("staleness/max"), 2)
    text = Text.from_markup(f"[bold]{mean}[/] mean  [bold]{highest}[/] max")
    if (bias := row.get("bias/duration")) is not None:
        text.append("   duration bias ").append(f"{bias * 100:+.1f}%", style="bold" if abs(bias) < 0.03 else "yellow")
    return text


def _idle(row: Mapping[str, Any], width: int) -> Text:
    pools = {pool: row[f"idle/{pool}"] for pool in POOLS if f"idle/{pool}" in row}
    length = max(4, min(20, width // max(len(pools), 1) - 18))
    text = Text()
    for pool, share in pools.items():
        idle = share or 0.0
        full, empty = bar(idle, length)
        style = "green" if idle < 0.25 else "yellow" if idle < 0.6 else "red"
        text.append(f"{POOLS[pool]} ").append(full, style=style).append(empty, style="bright_black")
        text.append(f" {percent(share):<4}  ", style="bold")
    return text


def ledger_counts(row: Mapping[str, Any], ledger: str) -> dict[str, Any]:
    """The states of the tasks or attempts of a metrics row, with their numbers."""
    prefix = f"ledger/{ledger}/"
    return {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}


def ledger_fact(counts: Mapping[str, Any]) -> Text:
    return Text(" · ".join(f"{state} {count}" for state, count in counts.items() if count) or "-")
