"""The daemon's answers as text: aligned, with units, nothing that a person does not need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

Row = Sequence[str]


def jobs_screen(jobs: Sequence[dict[str, Any]]) -> str:
    if not jobs:
        return "no jobs; hand one in with: rollweave submit JOB.yaml --slo 1.5"
    head = ("job", "state", "step", "alone", "planned", "measured", "slow-down", "SLO", "now")
    return _table([head, *(_job_row(job) for job in jobs)], right=frozenset(range(2, 8)))


def cluster_screen(cluster: dict[str, Any]) -> str:
    rows = [(node["node"], _holder(node), " ".join(node["waiting"]) or "-") for node in cluster["nodes"]]
    counts = ", ".join(f"{count} {state}" for state, count in cluster["jobs"].items() if count) or "none"
    table = _table([("node", "used by", "waiting, next first"), *rows])
    return f"{table}\n\njobs: {counts}\nstate: {cluster['state_folder']}"


def explain_screen(job: dict[str, Any]) -> str:
    """One job: where it stands, why it was put there, what happened to it."""
    facts = [
        ("job", f"{job['id']} ({job['source']})"),
        ("state", " ".join(filter(None, [job["state"], job["doing"], job["error"]]))),
        ("steps", f"{job['step']} of {job['steps']}, {job['tokens']:,} tokens"),
        ("worst case", _phases(job)),
        ("slow-down", f"{_number(job['slow_down'], 'x')} measured, {job['slo']:g}x tolerated"),
        ("iteration", f"{_seconds(job['planned_seconds'])} planned, {_seconds(job['iteration_seconds'])} measured"),
        ("start", f"{_seconds(job['cold_start_seconds'])} cold, {1e3 * job['warm_start_seconds']:.0f} ms warm at most"),
        ("group", f"{job['group']}, {job['mode']}" if job["group"] is not None else "none"),
        ("run", job["run"]),
    ]
    why = [f"  {line}" for line in job["why"]] or ["  not placed yet"]
    events = [f"  {_time(at)}  {name:<11} {text}" for at, name, _, text in job["events"]]
    return "\n".join([_table(facts), "", "placement:", *why, "", "what happened:", *events])


def _job_row(job: dict[str, Any]) -> Row:
    return (
        job["id"],
        job["state"],
        f"{job['step']}/{job['steps']}",
        _seconds(job["solo_seconds"]),
        _seconds(job["planned_seconds"]),
        _seconds(job["iteration_seconds"]),
        _number(job["slow_down"], "x"),
        f"{job['slo']:g}x",
        job["error"] or job["doing"] or "-",
    )


def _holder(node: dict[str, Any]) -> str:
    return "-" if node["holder"] is None else f"{node['holder']} since {node['seconds']:.1f} s"


def _phases(job: dict[str, Any]) -> str:
    if job["t_roll"] is None:
        return "not measured yet"
    return f"rollout {job['t_roll']:.2f} s + train {job['t_train']:.2f} s = {job['solo_seconds']:.2f} s alone"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _table(rows: Sequence[Row], right: frozenset[int] = frozenset()) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
