"""Draws the status of a run in the terminal, with rich."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from rollweave.observability.screen import facts_grid, framed, ledger_counts, ledger_fact, staleness_fact, tokens_fact
from rollweave.observability.status import Status
from rollweave.observability.text import duration, number, percent, sparkline

STYLES = {
    "running": "bold green", "ended": "bold cyan", "dead": "bold red", "new": "bold yellow",
}  # fmt: skip

COLOURS = {
    "generate": "green", "train": "green", "step": "blue", "reset": "magenta", "reward": "cyan", "get_batch": "yellow",
    "sync_exposed": "red", "recompute": "cyan", "eval": "magenta", "save": "blue", "close": "white", "permit": "yellow",
    "between calls": "white",
}  # fmt: skip

NAMES = {"get_batch": "wait for data", "sync_exposed": "weight sync", "eval": "evaluation", "permit": "wait for permit"}

LABEL = 14
"""The number of characters before a bar."""

REST = {"engine": "idle", "trainer": "idle", "environments": "free"}
"""The word for the time in which a pool does nothing."""


def status_screen(status: Status) -> RenderableType:
    parts: list[RenderableType] = [_facts(status)]
    if status.state in ("running", "dead") and status.now:
        parts += [Text(), _waiting(status), Text(), Minute(status.now.get("last_minute") or {})]
    title = Text.assemble((status.name, "bold"), "  ", (_state(status), STYLES[status.state]))
    return framed(Group(*parts), title, status.folder)


def _state(status: Status) -> str:
    silent = f", silent for {duration(status.silent)}" if status.silent is not None else ""
    if status.state == "running":
        preparing = "" if status.now else ", preparing"
        return f"running (pid {status.pid} on {status.host}{preparing}{silent})"
    if status.state == "dead":
        written = f", last status {duration(status.silent)} ago" if status.silent is not None else ""
        return f"dead: its process ended without a summary{written}; go on with --resume"
    if status.state == "ended":
        return f"ended: {status.error or status.reason}"
    return "not training yet"


def _facts(status: Status) -> Table:
    return facts_grid(
        [
            ("steps", _steps(status)),
            ("reward", _reward(status)),
            ("queue", _queue(status)),
            ("staleness", staleness_fact(status.row)),
            ("tokens", tokens_fact(status.row)),
            ("tasks", _ledger(status, "task")),
            ("attempts", _ledger(status, "attempt")),
        ]
    )


def _steps(status: Status) -> Text:
    text = Text().append(f"{status.step} of {status.steps}" if status.steps else f"{status.step}", style="bold")
    if status.seconds_per_step:
        text.append(f"   {duration(status.seconds_per_step)} a step, {number(3600 / status.seconds_per_step)} an hour")
    if status.seconds_left is not None:
        text.append(f"   {duration(status.seconds_left)} left", style="dim")
    return text


def _reward(status: Status) -> Text:
    if not status.rewards:
        return Text("-", style="dim")
    return Text.assemble((f"{number(status.rewards[-1])}  ", "bold"), (sparkline(status.rewards, 40), "green"))


def _queue(status: Status) -> Text:
    row, queue = status.row, status.now.get("queue") or {}
    if queue and status.state != "ended":
        scoring = f"[bold]{queue['scoring']}[/] episodes being scored, " if queue.get("scoring") else ""
        return Text.from_markup(
            f"[bold]{queue['complete']}[/] groups complete, [bold]{queue['running']}[/] being played, {scoring}"
            f"[bold]{queue['free']}[/] of {queue['slots']} slots free"
        )
    if "queue/length_seen" not in row:
        return Text("-", style="dim")
    seen, waited = number(row["queue/length_seen"]), duration(row.get("queue/trainer_blocked_seconds"))
    return Text.from_markup(f"[bold]{seen}[/] groups seen by the trainer, which waited [bold]{waited}[/]")


def _ledger(status: Status, ledger: str) -> Text:
    live = (status.now.get("ledger") or {}).get(f"{ledger}s") if status.state == "running" else None
    return ledger_fact(live or ledger_counts(status.row, ledger))


def _waiting(status: Status) -> RenderableType:
    tree = Tree(Text("what waits for what", style="dim"), guide_style="bright_black")
    phase = status.now.get("phase")
    if phase:
        name = NAMES.get(phase["name"], phase["name"])
        tree.add(Text.assemble("the loop is in ", (name, "bold"), ("  " + duration(phase["seconds"]), "yellow")))
    for node in status.now.get("graph") or []:
        _grow(tree, node)
    for worker, place in ((status.now.get("places") or {}).get("workers") or {}).items():
        if not place["preferred"]:
            tree.add(Text(f"{worker} is on {place['node']}: {place['reason']}", style="yellow"))
    for worker, times in (status.now.get("restarts") or {}).items():
        tree.add(Text(f"{worker} was started again {times} times", style="red"))
    if not tree.children:
        tree.add(Text("nothing waits", style="dim"))
    return tree


def _grow(tree: Tree, node: Mapping[str, Any]) -> None:
    since = f"  {duration(node['seconds'])}"
    branch = tree.add(Text.assemble((node["who"], "bold"), " waits for ", node["what"], (since, "yellow")))
    for child in node["because"]:
        _grow(branch, child)
    if node["more"]:
        branch.add(Text(f"and {node['more']} more", style="dim"))


@dataclass(frozen=True, slots=True)
class Minute:
    """Draws the last minute: a bar for each pool, as wide as the terminal allows, and below it a legend."""

    minute: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"where the last {number(self.minute.get('seconds') or 0.0, 2)} s went", style="dim")
        width = max(10, options.max_width - LABEL)
        for pool, shares in (self.minute.get("pools") or {}).items():
            yield Text(f"{pool:<{LABEL}}", style="dim").append_text(_bar(shares, width))
            yield Padding(_legend(pool, shares), (0, 0, 0, LABEL))


def _bar(shares: Mapping[str, float], width: int) -> Text:
    bar = Text(no_wrap=True)
    reached, drawn = 0.0, 0
    for what, share in _ranked(shares):
        reached += share
        until = min(width, round(reached * width))
        bar.append("█" * (until - drawn), style=COLOURS.get(what, "white"))
        drawn = until
    return bar.append("░" * (width - drawn), style="bright_black")


def _legend(pool: str, shares: Mapping[str, float]) -> Text:
    legend = Text()
    for what, share in _ranked(shares):
        if share >= 0.005:
            legend.append(f"{NAMES.get(what, what)} ", style=COLOURS.get(what, "white"))
            legend.append(f"{percent(share)}  ", style="bold")
    rest = max(0.0, 1.0 - sum(shares.values()))
    return legend.append(f"{REST[pool]} {percent(rest)}", style="dim")


def _ranked(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])
