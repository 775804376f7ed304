"""The simulation file: rollout and pipeline as in a job file, a cluster, and the workload.

    model: qwen3-8b
    cluster: h800_h20.yaml            # a cluster file, or its content
    workload: {tasks: [{preset: frozen-lake}, {preset: gem-math}]}
    rollout: {groups_per_step: 64, group_size: 8}
    pipeline: {type: rollart, alpha: 1}

The sections `rollout`, `training`, `pipeline` and `weights` are those of a job, with defaults that suit large models.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section, Share
from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.config.control import (
    TURNS_REFUSE_STREAM,
    ControlConfig,
    Deadlines,
    PipelineConfig,
    RollArtPipeline,
    RolloutConfig,
    SamplingConfig,
    WeightsConfig,
)
from rollweave.config.hardware import Constants
from rollweave.config.models import ModelSpec, find_model
from rollweave.config.workload import Distribution, WorkloadConfig, constant


class SimulatedSampling(SamplingConfig):
    """As in a job, with a default for large models."""

    max_tokens: PositiveInt = 32768
    """Per turn."""


class SimulatedDeadlines(Deadlines):
    """As in a job, with defaults for clusters: an image may take minutes to pull, a long answer half an hour."""

    env_reset: PositiveFloat = 600.0
    env_step: PositiveFloat = 300.0
    reward: PositiveFloat = 600.0
    generate: PositiveFloat = 36_000.0
    get_batch: PositiveFloat = 360_000.0
    train_step: PositiveFloat = 360_000.0
    weight_sync: PositiveFloat = 36_000.0


class SimulatedRollout(RolloutConfig):
    """As in a job, with defaults for large models."""

    groups_per_step: PositiveInt = 64
    environments: PositiveInt | None = None  # type: ignore[assignment]
    """Number of episodes that run at once; none: as many as the staleness bound admits."""
    max_turns: PositiveInt = 1000
    max_context: PositiveInt = 32768
    sampling: SimulatedSampling = SimulatedSampling()
    deadlines: SimulatedDeadlines = SimulatedDeadlines()


class SimulatedTraining(Section):
    """How long the simulated job trains. The cost of a step is modelled, so a simulation has no other training keys."""

    steps: PositiveInt = 5
    """Train steps of the simulation."""
    stream: bool = False
    """As in a job."""


class JudgeConfig(Section):
    """A language model that scores trajectories, on the pools of role `reward`."""

    model: str = "qwen2.5-7b"
    answer_tokens: Distribution = constant(256)
    seconds: Distribution | None = None
    """How long a call takes; none: the roofline of the model on the pool's device."""
    concurrency: PositiveInt = 16
    """Calls that a device serves at once."""
    cold_start: NonNegative | None = None
    """Seconds until a new function instance answers; none: the value in the constants. Only on `serverless` pools."""
    idle_seconds: NonNegative = 60.0
    """A function instance that was idle for so long is shut down and costs nothing any more."""
    colocated: bool = False
    """The judge computes beside the engines of the first pool that generates, on the same devices, and there is no pool
    of role `reward` (RollPacker)."""
    offloaded: Share = 0.5
    """Share of a colocated judge's layers that lie in host memory. They are fetched layer by layer while others
    compute; the rest takes room from the engines' KV caches."""
    sharing_slowdown: Annotated[float, Field(ge=1.0)] = 1.25
    """How many times as long an engine and a colocated judge take while both compute. RollPacker: at most 1.25."""


class OutageConfig(Section):
    """An engine dies and comes back."""

    engine: Annotated[int, Field(ge=0)]
    """The number of the engine, modulo the number of engines."""
    at: NonNegative
    """Seconds after the start."""
    seconds: NonNegative


class Scenario(Section):
    """The content of a simulation file."""

    renamed: ClassVar[dict[str, str]] = {"steps": "training.steps"}
    from_files: ClassVar[tuple[str, ...]] = ("cluster",)
    name: str = "scenario"
    seed: int = 0
    warmup: Annotated[int, Field(ge=0)] = 1
    """Number of first steps that averages leave out, because the pipeline is still filling."""
    model: str = "qwen3-8b"
    """A model of the catalogue, also by its name on the hub (Qwen/Qwen3-8B), or of `models`."""
    models: tuple[ModelSpec, ...] = ()
    """Models of your own."""
    cluster: ClusterConfig
    """A cluster, or the name of a cluster file."""
    workload: WorkloadConfig
    rollout: SimulatedRollout = SimulatedRollout()
    training: SimulatedTraining = SimulatedTraining()
    pipeline: PipelineConfig = RollArtPipeline(type="rollart")
    weights: WeightsConfig = WeightsConfig()
    judge: JudgeConfig = JudgeConfig()
    prefix_cache: bool = True
    """A turn computes only what its trajectory added since the last one."""
    outages: tuple[OutageConfig, ...] = ()
    constants: Constants = Constants()
    """How much of the peaks real software reaches; the same for all device classes, each number with its source."""

    def spec(self, name: str = "") -> ModelSpec:
        return find_model(name or self.model, self.models)

    @property
    def judge_pool(self) -> Pool | None:
        """Where the judge computes, if there is one."""
        roles = ("rollout", "colocated", "decode") if self.judge.colocated else ("reward",)
        return next((pool for pool in self.cluster.pools if pool.role in roles), None)

    @property
    def control(self) -> ControlConfig:
        """The part that drives the control plane, which is the same as a job's."""
        admitted = int(self.rollout.groups_per_step * self.rollout.group_size * (1 + self.pipeline.alpha))
        environments = self.rollout.environments or admitted
        rollout = RolloutConfig.model_validate({**self.rollout.model_dump(), "environments": environments})
        return ControlConfig(
            name=self.name,
            seed=self.seed,
            steps=self.training.steps,
            rollout=rollout,
            pipeline=self.pipeline,
            weights=self.weights,
            stream=self.training.stream,
        )

    @model_validator(mode="after")
    def _check_names(self) -> Scenario:
        find_model(self.model, self.models)
        find_model(self.judge.model, self.models, key="judge.model")
        if self.training.stream and self.cluster.of_role("colocated"):
            raise ValueError(TURNS_REFUSE_STREAM)
        if self.judge.colocated and self.cluster.of_role("reward"):
            raise ValueError("judge.colocated leaves the pool of role reward idle: remove one of the two")
        if self.warmup >= self.training.steps:
            raise ValueError(
                f"warmup {self.warmup} leaves nothing of {self.training.steps} steps: lower it or raise training.steps"
            )
        return self
