"""What drives the control plane: the part of a job file that a simulation file shares.

`ControlConfig` is all that `pipelines/assemble.py` reads. A job and a scenario each hold one (`.control`), so a
simulation needs no model, environment or loss of its own.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import Section

# ------------------------------------------------------------------------------------------------ the rollout


class SamplingConfig(Section):
    """How answers are drawn during training. Evaluation is greedy."""

    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0: no limit."""
    max_tokens: PositiveInt = 16
    """Per turn."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, beside the model's own end-of-turn token."""


class Deadlines(Section):
    """Seconds after which a wait is an infrastructure failure (counted, retried, never a reward)."""

    env_reset: PositiveFloat = 60.0
    env_step: PositiveFloat = 30.0
    reward: PositiveFloat = 60.0
    generate: PositiveFloat = 600.0
    get_batch: PositiveFloat = 1800.0
    train_step: PositiveFloat = 3600.0
    weight_sync: PositiveFloat = 300.0


class RolloutConfig(Section):
    groups_per_step: PositiveInt = 16
    """N: task groups one train step consumes."""
    group_size: PositiveInt = 8
    """Members of a group: episodes of the same task that are compared with each other."""
    environments: PositiveInt = 64
    """Episodes running at once; redundant ones come on top."""
    max_turns: PositiveInt = 20
    """An episode longer than this is truncated (and trained)."""
    max_context: PositiveInt = 1024
    """Tokens of a whole episode; beyond it the episode is truncated."""
    sampling: SamplingConfig = SamplingConfig()
    isolation: Literal["async", "process"] = "async"
    """Where environments run: cooperatively in their host, or in processes that can be killed when they hang."""
    environments_per_process: PositiveInt = 8
    max_retries: Annotated[int, Field(ge=0)] = 3
    """Fresh attempts after an infrastructure failure of one episode before its group fails."""
    retry_backoff: Annotated[float, Field(ge=0.0)] = 0.5
    """Seconds before the first fresh attempt; doubles with each further one, up to a minute."""
    scheduling: Literal["queue", "batch"] = "queue"
    """`queue`: a free environment takes the next episode. `batch`: all wait until the last one is free (baseline)."""
    prompt_replication: bool = True
    """Members of a group are episodes of their own, on any worker. Off: a group stays together, on one (baseline)."""
    redundant_groups: Annotated[float, Field(ge=0.0)] = 0.0
    """Extra groups in flight, as a share: 0.25 runs a quarter more than a step needs, so that nobody waits for the
    slowest. At alpha 1 and more it adds environments only: the staleness bound admits as many groups without it."""
    redundant_members: Annotated[int, Field(ge=0)] = 0
    """Extra members of each group: the first `group_size` to finish make it, the others are cancelled."""
    filter: Literal["none", "zero_variance"] = "none"
    """`zero_variance`: a group whose members all got the same reward teaches nothing and is replaced."""
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: fewer episodes at once while the engines evict KV caches, at most `environments`."""
    deadlines: Deadlines = Deadlines()

    @property
    def slots(self) -> int:
        """Episodes played at once, the redundant ones among them."""
        share = (1 + self.redundant_groups) * (1 + self.redundant_members / self.group_size)
        return ceil(self.environments * share - 1e-9)


# ------------------------------------------------------------------------------------------------ the loop


class SyncPipeline(Section):
    """Batched environment turns and a barrier after each phase: what most frameworks do today."""

    type: Literal["sync"]


class SyncPlusPipeline(Section):
    """No barrier between environments; generation and training still take turns."""

    type: Literal["sync+"]


InFlight = Literal["recompute", "keep", "restart_turn"]


class OneOffPipeline(Section):
    """Train on the last batch while the next one is generated, all of it one version behind."""

    type: Literal["one_off"]


class ArealPipeline(Section):
    """Staleness is looked at when an episode starts and never again: long episodes may exceed the bound (baseline)."""

    type: Literal["areal"]
    alpha: Annotated[int, Field(ge=1)] = 1
    """The staleness bound (alpha) of an episode's start: versions it may be ahead then."""
    in_flight: InFlight = "recompute"
    """As for rollart."""


class RollArtPipeline(Section):
    """Rollout goes on while the trainer trains, at most `alpha` versions ahead of it."""

    type: Literal["rollart"]
    alpha: Annotated[float, Field(ge=0.0)] = 1.0
    """The staleness bound (alpha): at train step n no trajectory has a token older than version n - alpha. With 1.5,
    up to half of a batch may be 2 versions old."""
    policy: Literal["wait", "requeue", "drop"] = "wait"
    """What happens to running work that would exceed the bound: the step waits for it, it is played again, or its
    task is dropped. Only `wait` wastes nothing."""
    max_requeues: Annotated[int, Field(ge=0)] = 2
    """After that many times the step waits for the task, so that nobody starves."""
    sync_point: Literal["before_batch", "after_batch"] = "before_batch"
    """When engines get new weights: before the step's batch is taken, or after it (the paper's order)."""
    in_flight: InFlight = "recompute"
    """What an update does to answers under way: rebuild their cache under the new weights, keep the old cache, or
    begin the turn again."""


PipelineConfig = Annotated[
    SyncPipeline | SyncPlusPipeline | OneOffPipeline | ArealPipeline | RollArtPipeline, Field(discriminator="type")
]


class WeightsConfig(Section):
    """How new weights reach the engines."""

    transfer: Literal["background", "blocking"] = "background"
    """`background`: engines fetch and verify while they generate, and swap between two steps. `blocking`: generation
    stands still meanwhile (baseline)."""
    bucket_mb: PositiveFloat = 64.0
    """Weights travel in buckets of this size, each with a digest."""


class EvaluationConfig(Section):
    """Greedy episodes on held-out tasks, beside training; outside staleness and the ledger."""

    every: Annotated[int, Field(ge=0)] = 10
    """Train steps between evaluations; 0: never. The first and the last version are always evaluated otherwise."""
    tasks: PositiveInt = 100
    target: float | None = None
    """Stop early once the held-out reward reaches this."""


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=0)] = 10
    """Train steps between checkpoints, from which `--resume` continues; 0: only at the end (and on Ctrl-C)."""
    keep: PositiveInt = 2


# ------------------------------------------------------------------------------------------------ all of it


def staleness_bound(pipeline: PipelineConfig) -> float:
    """How stale a batch may be."""
    match pipeline:
        case RollArtPipeline(alpha=alpha) | ArealPipeline(alpha=alpha):
            return alpha
        case OneOffPipeline():
            return 1
    return 0


def check_sync_point(pipeline: PipelineConfig) -> None:
    """Refuses an order of batch and update in which a step could never begin."""
    if isinstance(pipeline, RollArtPipeline) and pipeline.alpha < 1 and pipeline.sync_point == "after_batch":
        raise ValueError(
            f"pipeline.sync_point=after_batch needs a staleness bound (alpha) of 1 or more, not {pipeline.alpha:g}: "
            "the batch of a step would have to come from weights that the engines only get after it; raise "
            "pipeline.alpha or use before_batch"
        )


def in_flight(pipeline: PipelineConfig) -> InFlight:
    """What an update does to answers under way."""
    return pipeline.in_flight if isinstance(pipeline, RollArtPipeline | ArealPipeline) else "recompute"


class ControlConfig(Section):
    """The numbers and choices that the control plane works with."""

    name: str = "job"
    seed: int = 0
    steps: PositiveInt = 1
    rollout: RolloutConfig = RolloutConfig()
    pipeline: PipelineConfig = RollArtPipeline(type="rollart")
    weights: WeightsConfig = WeightsConfig()
    evaluation: EvaluationConfig = EvaluationConfig(every=0)
    checkpoint: CheckpointConfig = CheckpointConfig(every=0)
    try_alone: str = "rollweave env check"
    """The command that shows a failing environment or reward by itself."""

    @property
    def alpha(self) -> float:
        """How stale a batch may be."""
        return staleness_bound(self.pipeline)

    @property
    def in_flight(self) -> InFlight:
        return in_flight(self.pipeline)
