"""What the commands show of jobs and nodes. A view is a plain dictionary, the `--json` of a command; a screen is a
view as text, aligned and with units.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rollweave.mux.daemon.records import JobRecord, JobState
from rollweave.mux.daemon.store import StateFolder

if TYPE_CHECKING:  # the commands show views and need no controller
    from rollweave.mux.daemon.controller import Controller


def job_view(record: JobRecord, controller: Controller, run: Path) -> dict[str, Any]:
    profile, progress = record.profile, record.progress
    solo = profile.t_roll + profile.t_train if profile else None
    mean = progress.seconds / progress.iterations if progress.iterations else None
    placed = controller.admission.state
    group = placed.group_of(record.id) if record.id in placed.home else None
    return {
        "id": record.id,
        "source": record.source,
        "state": record.state,
        "doing": _doing(record, controller),
        "error": record.error,
        "slo": record.slo,
        "step": progress.step,
        "steps": record.steps,
        "t_roll": profile.t_roll if profile else None,
        "t_train": profile.t_train if profile else None,
        "solo_seconds": solo,
        "planned_seconds": placed.jobs[record.id].pace if group else None,
        "iteration_seconds": mean,
        "slowest_iteration_seconds": progress.slowest or None,
        "slow_down": mean / solo if mean and solo else None,
        "worked_roll_seconds": progress.worked.t_roll,
        "worked_train_seconds": progress.worked.t_train,
        "tokens": progress.tokens,
        "cold_start_seconds": record.cold_seconds or None,
        "warm_start_seconds": record.warm_seconds,
        "group": group.id if group else None,
        "mode": group.mode if group else None,
        "life": record.life,
        "pid": record.process.pid if record.process else None,
        "submitted": record.submitted,
        "first_ready": progress.first_ready,
        "ended": record.ended,
        "why": record.why,
        "events": controller.store.events(record.id),
        "run": str(run),
    }


def daemon_view(controller: Controller, folder: StateFolder) -> dict[str, Any]:
    admission, table = controller.admission, controller.permit_table
    counts = {"rollout": admission.rollout_nodes, "train": admission.train_nodes}
    nodes = [f"{pool}-{number}" for pool, count in counts.items() for number in range(count)]
    return {
        "state_folder": str(folder.path),
        "set_aside": list(controller.set_aside.values()),
        "nodes": [
            {
                "node": node,
                "holder": table.holder(node),
                "seconds": controller.held_seconds(node),
                "waiting": table.line(node),
            }
            for node in nodes
        ],
        "jobs": {state: sum(job.state == state for job in controller.jobs.values()) for state in get_args(JobState)},
    }


def _doing(record: JobRecord, controller: Controller) -> str:
    """What a job does right now, in a few words."""
    table = controller.permit_table
    if permit := table.permits.get(record.id):
        what = "starts" if permit.visit and record.state == "running" else "measures" if permit.visit else "runs"
        return f"{what} on {', '.join(permit.nodes)}"
    if request := table.requests.get(record.id):
        holder = table.holder(request.nodes[0])
        ahead = holder or next((job for job in table.line(request.nodes[0]) if job != record.id), None)
        return f"waits for {', '.join(request.nodes)}" + (f" behind {ahead}" if ahead else "")
    if record.over or record.state == "waiting":
        return ""
    return "is being started" if record.process is None or record.state == "profiling" else "loads"


def jobs_screen(jobs: Sequence[dict[str, Any]]) -> str:
    if not jobs:
        return "no jobs; hand one in with: rollweave submit JOB.yaml --slo 1.5"
    head = ("job", "state", "step", "alone", "planned", "measured", "slow-down", "SLO", "now")
    return _table([head, *(_job_row(job) for job in jobs)], "<<>>>>>><")


def daemon_screen(daemon: dict[str, Any]) -> str:
    rows = [(node["node"], _holder(node), " ".join(node["waiting"]) or "-") for node in daemon["nodes"]]
    counts = ", ".join(f"{count} {state}" for state, count in daemon["jobs"].items() if count) or "none"
    table = _table([("node", "used by", "waiting, next first"), *rows])
    return "\n".join([table, "", f"jobs: {counts}", f"state: {daemon['state_folder']}", *daemon["set_aside"]])


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
    events = [f"  {datetime.fromtimestamp(at):%H:%M:%S}  {name:<11} {text}" for at, name, _, text in job["events"]]
    return "\n".join([_table(facts), "", "placement:", *why, "", "what happened:", *events])


def _job_row(job: dict[str, Any]) -> tuple[str, ...]:
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


def _table(rows: Sequence[Sequence[str]], aligned: str = "<<<") -> str:
    """Rows as columns; `aligned` has a format sign for each: `<` left, `>` right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(aligned, widths, strict=False))
    return "\n".join(line.format(*row).rstrip() for row in rows)
