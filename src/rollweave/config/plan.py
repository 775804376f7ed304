"""What `--dry-run` says: the resolved file, and in a few words what it would do."""

from __future__ import annotations

from pathlib import Path

from rollweave.config.job import HubModel, Job, LocalModel, ModelConfig
from rollweave.config.load import dump_job
from rollweave.config.losses import RatioLoss
from rollweave.errors import RunFolderError


def outline(job: Job) -> str:
    """What training this job would run, in five lines."""
    rollout, training = job.rollout, job.training
    episodes = rollout.groups_per_step * rollout.group_size
    target = "" if job.evaluation.target is None else f", until the held-out reward reaches {job.evaluation.target:g}"
    return "\n".join(
        [
            f"policy       {model_in_words(job.model)}, in {job.environment.type}",
            f"each step    {rollout.groups_per_step} groups x {rollout.group_size} members = {episodes} episodes "
            f"of at most {rollout.max_turns} turns",
            f"training     {training.steps} steps at learning rate {training.learning_rate:g}{target}",
            f"loss         {loss_in_words(job)}",
            f"run by       {job.pipeline.type} on {job.runtime.type}",
        ]
    )


def model_in_words(model: ModelConfig) -> str:
    """The model as a reader knows it: by its name, or by the name of its folder."""
    match model:
        case HubModel(name=name):
            return name
        case LocalModel(path=path):
            return Path(path).name
    return model.type


def loss_in_words(job: Job) -> str:
    """Which loss is trained, what its ratio divides by and how stale the data may be."""
    loss = job.training.loss
    over = {
        "behaviour": ", its ratio over the engine's log-probs (denominator: behaviour)",
        "proximal": ", its ratio over the trainer's own log-probs before the step (denominator: proximal)",
    }
    ratio = over[loss.denominator] if isinstance(loss, RatioLoss) else ""
    return f"{loss.type}{ratio}; staleness bound (alpha) {job.alpha:g}"


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
