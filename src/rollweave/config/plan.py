"""What `--dry-run` says: the resolved file, and in a few words what it would do."""

from __future__ import annotations

from pathlib import Path

from rollweave.config.job import Job, RollArtPipeline
from rollweave.config.load import dump_job
from rollweave.errors import RunFolderError


def outline(job: Job) -> str:
    """What training this job would run, in four lines."""
    rollout, training = job.rollout, job.training
    episodes = rollout.groups_per_step * rollout.group_size
    alpha = f" (alpha {job.alpha})" if isinstance(job.pipeline, RollArtPipeline) else ""
    target = "" if job.evaluation.target is None else f", until the held-out reward reaches {job.evaluation.target:g}"
    return "\n".join(
        [
            f"policy       {job.model.type}, in {job.environment.type}",
            f"each step    {rollout.groups_per_step} groups x {rollout.group_size} members = {episodes} episodes "
            f"of at most {rollout.max_turns} turns",
            f"training     {training.steps} steps at learning rate {training.learning_rate:g}{target}",
            f"run by       {job.pipeline.type}{alpha} on {job.runtime.type}",
        ]
    )


def save_resolved(job: Job, folder: Path) -> Path:
    """Write the resolved job into a folder that does not hold one yet."""
    path = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(dump_job(job))
    except FileExistsError:
        raise RunFolderError(f"{path} exists already and is not overwritten; name another folder with --out") from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}; name another folder with --out") from None
    return path
