"""The part of a job file that drives the control plane, and that a simulation file shares.

`pipelines/assemble.py` reads `ControlConfig` and nothing else. A job and a scenario each have one (`.control`), so a
simulation needs no model, environment or loss of its own.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section

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
    """Strings that end an answer, in addition to the model's own end-of-turn token."""


class Deadlines(Section):
    """Seconds after which a wait counts as an infrastructure failure, which is retried and never becomes a reward."""

    env_reset: PositiveFloat = 60.0
    env_step: PositiveFloat = 30.0
    reward: PositiveFloat = 60.0
    generate: PositiveFloat = 600.0
    get_batch: PositiveFloat = 1800.0
    train_step: PositiveFloat = 3600.0
    weight_sync: PositiveFloat = 300.0


class RolloutConfig(Section):
    """How episodes are played and put together into groups."""

    groups_per_step: PositiveInt = 16
    """N: the number of groups that one train step consumes."""
    group_size: PositiveInt = 8
    """Members of a group: episodes of the same task that are compared with each other."""
    environments: PositiveInt = 64
    """Number of episodes that run at once; redundant ones are added to it."""
    max_turns: PositiveInt = 20
    """An episode with more turns is truncated, and is trained like any other."""
    max_context: PositiveInt = 1024
    """Tokens of a whole episode; a longer episode is truncated."""
    sampling: SamplingConfig = SamplingConfig()
    isolation: Literal["async", "process"] = "async"
    """Where environments run: `async`, in their host; `process`, in processes that can be killed when they hang."""
    environments_per_process: PositiveInt = 8
    max_retries: Annotated[int, Field(ge=0)] = 3
    """New attempts of a member after infrastructure failures, before its group fails."""
    retry_backoff: NonNegative = 0.5
    """Seconds before the first new attempt; the time doubles with each further one, up to a minute."""
    scheduling: Literal["queue", "batch"] = "queue"
    """`queue`: a free environment takes the next episode. `batch`: all wait until the last one is free (baseline)."""
    prompt_replication: bool = True
    """Each member of a group is an episode of its own, on any engine. Off: all members of a group use one engine
    (baseline)."""
    redundant_groups: NonNegative = 0.0
    """Extra groups in play, as a share: with 0.25 a quarter more groups run than a step needs, so that the step does
    not wait for the slowest. At alpha 1 and more it adds environments only, because the staleness bound admits as many
    groups without it."""
    redundant_members: Annotated[int, Field(ge=0)] = 0
    """Extra members of each group: the first `group_size` to finish form the group, the others are cancelled."""
    filter: Literal["none", "zero_variance"] = "none"
    """`zero_variance`: a group whose members all got the same reward teaches nothing and is replaced."""
    affinity: Literal["auto", "least_held"] = "auto"
    """How a trajectory gets its engine if engines of several pools are open to its task. `auto`: the pool where it is
    expected to end first, by what the run learns of its tasks and pools. `least_held`: the engine that holds the fewest
    trajectories (baseline). A pool with `tasks` in the cluster file decides it for those tasks."""
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: fewer episodes run at once while the engines evict KV caches, and never more than `environments`."""
    deadlines: Deadlines = Deadlines()

    @property
    def slots(self) -> int:
        """The number of episodes played at once, including the redundant ones."""
        share = (1 + self.redundant_groups) * (1 + self.redundant_members / self.group_size)
        return ceil(self.environments * share - 1e-9)


# ------------------------------------------------------------------------------------------------ the loop


InFlight = Literal["recompute", "keep", "restart_turn"]


class FixedPipeline(Section):
    """A pipeline in which the staleness bound (alpha) is no choice."""

    alpha: ClassVar[float] = 0.0
    in_flight: ClassVar[InFlight] = "recompute"


class SyncPipeline(FixedPipeline):
    """Environments take their turns in batches, with a barrier after each phase, as in most frameworks today."""

    type: Literal["sync"]


class SyncPlusPipeline(FixedPipeline):
    """There is no barrier between environments, but generation and training still alternate."""

    type: Literal["sync+"]


class OneOffPipeline(FixedPipeline):
    """The trainer trains on the last batch while the next one is generated, so every batch is one version old."""

    type: Literal["one_off"]
    alpha: ClassVar[float] = 1.0


class ArealPipeline(Section):
    """Staleness is checked only when an episode starts, so long episodes may exceed the bound (baseline)."""

    type: Literal["areal"]
    alpha: Annotated[int, Field(ge=1)] = 1
    """The staleness bound (alpha): how many versions an episode may be ahead of the trainer when it starts."""
    in_flight: InFlight = "recompute"
    """As for rollart."""


class RollArtPipeline(Section):
    """Rollout goes on while the trainer trains, at most `alpha` versions ahead of it."""

    type: Literal["rollart"]
    alpha: NonNegative = 1.0
    """The staleness bound (alpha): at train step n no trajectory has a token older than version n - alpha. With 1.5,
    up to half of a batch may be 2 versions old."""
    policy: Literal["wait", "requeue", "drop"] = "wait"
    """What happens to a running group that would exceed the bound: `wait`, the step waits for it; `requeue`, it is
    played again; `drop`, its task is dropped. Only `wait` wastes no work."""
    max_requeues: Annotated[int, Field(ge=0)] = 2
    """After a task was requeued so many times the step waits for it, so that every task is trained in the end."""
    sync_point: Literal["before_batch", "after_batch"] = "before_batch"
    """When engines get new weights: before the step's batch is taken, or after it (the paper's order)."""
    in_flight: InFlight = "recompute"
    """What a weight update does to running answers: `recompute` rebuilds their cache under the new weights, `keep`
    keeps the old cache, `restart_turn` begins the turn again."""

    @model_validator(mode="after")
    def _check_sync_point(self) -> RollArtPipeline:
        if self.alpha < 1 and self.sync_point == "after_batch":
            raise ValueError(
                f"sync_point=after_batch needs a staleness bound (alpha) of 1 or more, not {self.alpha:g}: the batch "
                "of a step would have to come from weights that the engines only get after it; raise alpha or use "
                "before_batch"
            )
        return self


PipelineConfig = Annotated[
    SyncPipeline | SyncPlusPipeline | OneOffPipeline | ArealPipeline | RollArtPipeline, Field(discriminator="type")
]


PROBE_TOLERANCE = 1e-3


class WeightsConfig(Section):
    """How new weights reach the engines."""

    transfer: Literal["background", "blocking"] = "background"
    """`background`: engines fetch and verify new weights while they generate, and switch between two steps.
    `blocking`: generation stands still meanwhile (baseline)."""
    bucket_mb: PositiveFloat = 64.0
    """Weights travel in buckets of this size, each with a digest."""
    store: Literal["auto", "shared_memory", "ray", "file", "mooncake"] = "auto"
    """What lies between trainer and engines. `auto`: shared memory if they are on one machine, else `ray`. `ray`:
    Ray's object store. `file`: files behind `url`, which all machines can reach. `mooncake`: the Mooncake store whose
    master is at `url`."""
    url: str = ""
    """With `file`: a folder, such as `file:///mnt/shared/weights` or `s3://bucket/folder`; what a session leaves there
    is removed at its end. With `mooncake`: `host:port` of the `mooncake_master`."""
    delta: bool = False
    """Only bytes that changed travel between machines. Worth it in bfloat16 at small learning rates; in float32 every
    value changes with every step, and each version travels whole."""
    probe_tolerance: PositiveFloat = PROBE_TOLERANCE
    """After every update engine and trainer score one fixed row of tokens, the probe. An engine whose log-probs differ
    from the trainer's by more than this (in nats) counts as dead. Raise it for engines that do not compute in
    float32."""

    @model_validator(mode="after")
    def _check_url(self) -> WeightsConfig:
        needs_url = self.store in ("file", "mooncake")
        if needs_url and not self.url:
            example = "file:///mnt/shared/weights" if self.store == "file" else "10.0.0.1:50051"
            raise ValueError(f"store={self.store} needs a url: say where, as in weights.url={example}")
        if self.url and not needs_url:
            raise ValueError(f"url={self.url} is for store=file and store=mooncake, not for {self.store}: remove it")
        return self


class EvaluationConfig(Section):
    """Greedy episodes on held-out tasks, beside training; neither the staleness bound nor the ledger counts them."""

    every: Annotated[int, Field(ge=0)] = 10
    """Train steps between evaluations; 0: never. Unless it is 0, the first and the last version are evaluated too."""
    tasks: PositiveInt = 100
    target: float | None = None
    """Stop early once the held-out reward reaches this."""


class CheckpointConfig(Section):
    """When checkpoints are saved, and how many are kept."""

    every: Annotated[int, Field(ge=0)] = 10
    """Train steps between checkpoints, from which `--resume` continues; 0: only at the end (and on Ctrl-C)."""
    keep: PositiveInt = 2


# ------------------------------------------------------------------------------------------------ all of it


TURNS_REFUSE_STREAM = (
    "training.stream computes gradients while answers are sampled, but colocated engines and trainer take turns: "
    "remove training.stream, or give the trainer a pool of its own"
)


class ControlConfig(Section):
    """The settings of the control plane."""

    name: str = "job"
    seed: int = 0
    steps: PositiveInt = 1
    rollout: RolloutConfig = RolloutConfig()
    pipeline: PipelineConfig = RollArtPipeline(type="rollart")
    weights: WeightsConfig = WeightsConfig()
    stream: bool = False
    """Groups go to the trainer as they become final, not when the batch is complete."""
    sleep: bool = False
    """Engines that stand still because it is not their turn give their memory on the device back."""
    evaluation: EvaluationConfig = EvaluationConfig(every=0)
    checkpoint: CheckpointConfig = CheckpointConfig(every=0)
    try_alone: str = "rollweave env check"
    """The command that runs a failing environment or reward alone."""

    @property
    def has_barrier(self) -> bool:
        """Whether all environments take each turn together."""
        return self.pipeline.type == "sync"
