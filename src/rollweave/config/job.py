"""The job file: every key with its default and its meaning.

A section that comes in several kinds is a union, and its `type` key says which kind it is. Values are checked before
anything starts. Pairs of values that contradict each other are refused with the fix (`Job` at the end).
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import FileName, PlainText, Section
from rollweave.config.cluster import ClusterConfig
from rollweave.config.control import (
    TURNS_REFUSE_STREAM,
    CheckpointConfig,
    ControlConfig,
    EvaluationConfig,
    PipelineConfig,
    RollArtPipeline,
    RolloutConfig,
    SyncPipeline,
    SyncPlusPipeline,
    WeightsConfig,
)
from rollweave.config.engines import EngineConfig, TorchEngineConfig, VllmEngineConfig
from rollweave.config.environments import EnvironmentConfig, PythonEnvironmentConfig, task_names
from rollweave.config.rewards import RewardConfig
from rollweave.config.training import TrainingConfig

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""`organisation/name`; a folder begins with `./`, `/` or `~`."""


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
    """A small Qwen3 with random weights and a byte-level tokenizer. It learns on a laptop. In short: `model: tiny`."""

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
    """A Hugging Face folder on this machine with a Llama, Qwen2 or Qwen3 model. In short: `model: ./folder`."""

    type: Literal["local"]
    path: FileName
    """The folder with config.json, the weights and a tokenizer that has a chat template."""


def _check_hub_name(name: str) -> str:
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"expected organisation/name, as in Qwen/Qwen3-0.6B, got {name!r}")
    return name


class HubModel(Section):
    """A Llama, Qwen2 or Qwen3 model from the Hugging Face hub. In short: `model: org/name`."""

    type: Literal["hub"]
    name: Annotated[str, AfterValidator(_check_hub_name)]
    """`organisation/name`, as on the hub. HF_ENDPOINT names another hub, HF_TOKEN opens private and gated models."""
    revision: str = "main"
    """A branch, a tag or a commit of the model."""


class SmolLM2(Section):
    """SmolLM2-135M-Instruct from its PyPI package; it is de-quantised once and cached. In short: `model: smollm2`."""

    type: Literal["smollm2-135m"]


def model_from_text(text: str) -> dict[str, str]:
    """The `model` section that a plain text stands for."""
    if text == "tiny":
        return {"type": "tiny"}
    if text in ("smollm2", "smollm2-135m"):
        return {"type": "smollm2-135m"}
    if text.startswith((".", "/", "~")):
        return {"type": "local", "path": text}
    if HUB_NAME.fullmatch(text):
        return {"type": "hub", "name": text}
    raise ValueError(
        f"no model {text!r}; write tiny, smollm2, a folder (./{text.strip('/') or 'folder'}) or a model of the hub "
        "(Qwen/Qwen3-0.6B)"
    )


ModelConfig = Annotated[
    TinyModel | LocalModel | HubModel | SmolLM2,
    Field(discriminator="type"),
    PlainText(model_from_text, "tiny, smollm2, ./folder or organisation/name of the hub"),
]


# ----------------------------------------------------------------------------------- where it runs


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


class LoggingConfig(Section):
    """What a run writes down beside its metrics and events."""

    tensorboard: bool = True
    transcripts_per_step: Annotated[int, Field(ge=0)] = 2
    """Number of trajectories per step that are written in full to trajectories.jsonl and the report."""


class Job(Section):
    """A training job."""

    from_files: ClassVar[tuple[str, ...]] = ("cluster",)
    name: str = "job"
    seed: int = 0
    """Determines the tasks, the environments and, for each turn of each trajectory, what is sampled."""
    model: ModelConfig
    environment: EnvironmentConfig
    rewards: tuple[RewardConfig, ...] = ()
    rollout: RolloutConfig = RolloutConfig()
    device: str = "auto"
    """What engine and trainer compute on, as torch calls it: `cpu`, `cuda`, `cuda:1` ... `auto`: a GPU if torch sees
    one, else the CPU. GPUs are untested."""
    sleep: bool = False
    """Where engines and trainer take turns (`runtime.placement: colocated`, pools of role `colocated`, `rollweave
    submit`), they also take turns in the device's memory: outside its turn the trainer's weights and moments and the
    engines' weights lie in main memory, and KV caches are freed. For GPUs that cannot hold both."""
    engine: EngineConfig = TorchEngineConfig()
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
    def weight_store(self) -> Literal["memory", "shared_memory", "ray", "file", "mooncake"]:
        """What lies between trainer and engines; `memory`: nothing, they are one process."""
        if self.weights.store != "auto":
            return self.weights.store
        if isinstance(self.runtime, InlineRuntime):
            return "memory"
        return "shared_memory" if self.runtime.address == "local" else "ray"

    @property
    def control(self) -> ControlConfig:
        """The part that drives the control plane."""
        return ControlConfig(
            name=self.name,
            seed=self.seed,
            steps=self.training.steps,
            rollout=self.rollout,
            pipeline=self.pipeline,
            weights=self.weights,
            stream=self.training.stream,
            sleep=self.sleep,
            evaluation=self.evaluation,
            checkpoint=self.checkpoint,
            try_alone=self._check_command(),
        )

    def _check_command(self) -> str:
        config = self.environment
        name = config.target if isinstance(config, PythonEnvironmentConfig) else config.type
        functions = [reward.function for reward in self.rewards if reward.function]
        return " ".join(["rollweave env check", name, *(f"--reward {function}" for function in functions)])

    @model_validator(mode="after")
    def _check_contradictions(self) -> Job:
        self._check_layout()
        self._check_stream()
        self._check_sleep()
        self._check_weight_store()
        if isinstance(self.engine, VllmEngineConfig):
            self._check_vllm()
        if self.pipeline.alpha > 0 and self.training.ignores_staleness:
            raise ValueError(
                f"training.loss.denominator=proximal ignores staleness, but {self.pipeline.type} trains stale data "
                f"(staleness bound (alpha) {self.pipeline.alpha:g}): remove it (the default is behaviour), or keep it "
                "and set training.mismatch.type=weight, or use training.loss.type=decoupled_ppo"
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
        for reward in self.rewards:
            if reward.code is not None and reward.code.total_timeout >= self.rollout.deadlines.reward:
                raise ValueError(
                    f"rollout.deadlines.reward is {self.rollout.deadlines.reward:g}, but a code reward may take "
                    f"{reward.code.total_timeout:g} s: raise it, or lower total_timeout of the reward"
                )
        return self

    def _check_stream(self) -> None:
        if self.training.stream and self._takes_turns:
            raise ValueError(TURNS_REFUSE_STREAM)

    @property
    def _takes_turns(self) -> bool:
        """Whether engines and trainer alternate on the same cores or devices."""
        if self.cluster is not None:
            return bool(self.cluster.of_role("colocated"))
        return isinstance(self.runtime, RayRuntime) and self.runtime.placement == "colocated"

    def _check_sleep(self) -> None:
        if not self.sleep:
            return
        alternates = isinstance(self.pipeline, SyncPipeline | SyncPlusPipeline) and isinstance(
            self.runtime, InlineRuntime
        )
        if not self._takes_turns and not alternates:
            raise ValueError(
                "sleep is for engines and trainers that take turns on one device, but here each has its own: remove "
                "sleep, or set runtime.placement=colocated"
            )
        if isinstance(self.engine, VllmEngineConfig):
            raise ValueError("sleep needs engine.type=torch: vLLM keeps its own memory; remove sleep")
        if self.training.ranks > 1:
            raise ValueError("sleep works with a single rank today: remove sleep, or set training.ranks=1")
        if self.training.stream:
            raise ValueError(TURNS_REFUSE_STREAM)

    def _check_task_names(self) -> None:
        """Refuse a reward for tasks that the job does not have."""
        for reward in self.rewards:
            for task in reward.tasks:
                if task not in (names := task_names(self.environment)):
                    raise ValueError(
                        f"rewards: {reward.shown_name} is for the task {task!r}, but the job has {', '.join(names)}: "
                        "name one of these, or give the member of environment.of that name"
                    )

    def _check_vllm(self) -> None:
        """Refuse what only the embedded engine does."""
        if self.pipeline.in_flight == "keep":
            raise ValueError(
                "pipeline.in_flight=keep needs engine.type=torch: vLLM shares its cache between trajectories and does "
                "not say which version computed which part of it; set pipeline.in_flight=recompute"
            )
        for pool in self.cluster.pools if self.cluster is not None else ():
            if pool.role in ("prefill", "decode") or pool.slowdown is not None:
                what = "a slowdown" if pool.slowdown is not None else f"role: {pool.role}"
                raise ValueError(f"engine.type=vllm: pool {pool.name} has {what}, which needs engine.type=torch")

    def _check_weight_store(self) -> None:
        """Refuse a store that the runtime does not have, and patches where nothing travels."""
        store, runtime = self.weight_store, self.runtime
        if isinstance(runtime, InlineRuntime) and store != "memory":
            raise ValueError(
                f"weights.store={store} needs runtime.type=ray: with inline trainer and engines are one process, and "
                "nothing has to travel; remove it"
            )
        if store == "shared_memory" and isinstance(runtime, RayRuntime) and runtime.address != "local":
            raise ValueError(
                f"weights.store=shared_memory joins processes of one machine, but runtime.address is "
                f"{runtime.address}: set weights.store=auto"
            )
        if self.weights.delta and store in ("memory", "shared_memory"):
            raise ValueError(
                "weights.delta makes less travel between machines, but here trainer and engines share their memory: "
                "remove it"
            )

    def _check_layout(self) -> None:
        """Refuse what the runtime cannot start, and a job that assigns cores both in `runtime` and in `cluster`."""
        if self.training.ranks > 1 and isinstance(self.runtime, InlineRuntime):
            raise ValueError(
                f"training.ranks is {self.training.ranks}, but runtime.type=inline is one process: set "
                "runtime.type=ray, or remove training.ranks"
            )
        if self.cluster is None:
            return
        for key in {"placement", "engine_threads", "trainer_threads", "engines"} & self.runtime.model_fields_set:
            if getattr(self.runtime, key) != type(self.runtime).model_fields[key].default:
                raise ValueError(f"runtime.{key} contradicts cluster, whose pools already assign the cores: remove one")
