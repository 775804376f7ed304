"""What people and programs see of jobs and nodes: plain dictionaries, the `--json` of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollweave.mux.daemon.controller import Controller
from rollweave.mux.daemon.files import StateFolder
from rollweave.mux.daemon.records import JobRecord


def job_view(record: JobRecord, controller: Controller, run: Path) -> dict[str, Any]:
    profile, progress = record.profile, record.progress
    solo = profile.t_roll + profile.t_train if profile else None
    mean = progress.seconds / progress.iterations if progress.iterations else None
    group = controller.admission.group(record.id)
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
        "planned_seconds": controller.admission.period(record.id),
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
        "attempt": record.attempt,
        "pid": record.process.pid if record.process else None,
        "submitted": record.submitted,
        "first_ready": progress.first_ready,
        "ended": record.ended,
        "why": record.why,
        "events": controller.events(record.id),
        "run": str(run),
    }


def cluster_view(controller: Controller, folder: StateFolder) -> dict[str, Any]:
    admission, turns = controller.admission, controller.turns
    nodes = [
        *(f"rollout-{number}" for number in range(admission.rollout_nodes)),
        *(f"train-{number}" for number in range(admission.train_nodes)),
    ]
    return {
        "state_folder": str(folder.path),
        "nodes": [
            {
                "node": node,
                "holder": turns.holder(node),
                "seconds": controller.held_seconds(node),
                "waiting": turns.line(node),
            }
            for node in nodes
        ],
        "jobs": {
            state: sum(job.state == state for job in controller.jobs.values())
            for state in ("profiling", "waiting", "running", "finished", "failed", "cancelled")
        },
    }


def _doing(record: JobRecord, controller: Controller) -> str:
    """Where a job stands right now, in a few words."""
    turns = controller.turns
    if permit := turns.permits.get(record.id):
        what = "starts" if permit.visit and record.state == "running" else "measures" if permit.visit else "runs"
        return f"{what} on {', '.join(permit.nodes)}"
    if request := turns.requests.get(record.id):
        holder = turns.holder(request.nodes[0])
        ahead = holder or next((job for job in turns.line(request.nodes[0]) if job != record.id), None)
        return f"waits for {', '.join(request.nodes)}" + (f" behind {ahead}" if ahead else "")
    if record.over or record.state == "waiting":
        return ""
    return "is being started" if record.process is None or record.state == "profiling" else "loads"
