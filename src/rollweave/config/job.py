"""One file describes a job. Every key is here, with its default and what it means.

Sections that come in kinds are unions told apart by `type`. Values are checked before anything starts;
pairs that contradict each other are refused with the fix (`Job` at the end).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import PlainText, Section
from rollweave.config.cluster import ClusterConfig
from rollweave.config.control import (
    CheckpointConfig,
    ControlConfig,
    EvaluationConfig,
    InFlight,
    PipelineConfig,
    RollArtPipeline,
    RolloutConfig,
    WeightsConfig,
    check_sync_point,
    in_flight,
    staleness_bound,
)
from rollweave.config.environments import EnvironmentConfig, PythonEnvironmentConfig
from rollweave.config.overrides import FileName, Target
from rollweave.config.training import TrainingConfig

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""`organisation/name`; a folder begins with `./`, `/` or `~`."""


# ------------------------------------------------------------------------------------------------ the policy


class WarmStart(Section):
    """Supervised steps on scripted episodes of random legal actions: teaches the format, not the game."""

    steps: Annotated[int, Field(ge=0)] = 100
    """Optimiser steps; 0 turns it off."""
    episodes: PositiveInt = 1600
    """Scripted episodes to play for it."""
    batch_tokens: PositiveInt = 2048
    """Tokens per optimiser step."""
    learning_rate: PositiveFloat = 5e-3
    observations: bool = False
    """Also predict the observations' tokens, which teaches a model made from nothing to read the screen."""


class TinyModel(Section):
    """A small Qwen3 made from a config, with a byte-level tokenizer. Learns on a laptop. In short: `model: tiny`."""

    type: Literal["tiny"]
    hidden: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    head_dim: PositiveInt = 16
    intermediate: PositiveInt = 192
    max_positions: PositiveInt = 2048
    rope_theta: PositiveFloat = 100.0
    """Wavelength base of the rotary positions: small, because what a tiny policy reads lies close by."""
    warm_start: WarmStart = WarmStart()


class LocalModel(Section):
    """Any Hugging Face folder of a Llama, Qwen2 or Qwen3 kind on this machine. In short: `model: ./folder`."""

    type: Literal["local"]
    path: FileName
    """The folder with config.json, the weights and a tokenizer that has a chat template."""


def _check_hub_name(name: str) -> str:
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"expected organisation/name, as in Qwen/Qwen3-0.6B, got {name!r}")
    return name


class HubModel(Section):
    """A Llama, Qwen2 or Qwen3 kind of model from the Hugging Face hub. In short: `model: org/name`."""

    type: Literal["hub"]
    name: Annotated[str, AfterValidator(_check_hub_name)]
    """`organisation/name`, as on the hub. HF_ENDPOINT names another hub, HF_TOKEN opens private and gated models."""
    revision: str = "main"
    """A branch, a tag or a commit of the model."""


class SmolLM2(Section):
    """SmolLM2-135M-Instruct out of its PyPI package, de-quantised once and cached. In short: `model: smollm2`."""

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


# --------------------------------------------------------------------------------------- engine and rewards


class EngineConfig(Section):
    """The embedded torch engine."""

    type: Literal["torch"] = "torch"
    slots: PositiveInt = 64
    """Trajectories whose KV cache fits at once; also the largest decode batch."""
    prefill_tokens: PositiveInt = 2048
    """Context tokens computed per step at most, so that long prompts do not stall running answers."""


class RewardConfig(Section):
    """A reward function of your own, added to the environment's step rewards."""

    function: Target
    """`file.py:name`: takes a Trajectory, returns a float or a RewardResult."""
    name: str = ""
    """Shown in metrics as reward/<name>; default: the function's name."""
    weight: float = 1.0


# ----------------------------------------------------------------------------------- where it runs


class InlineRuntime(Section):
    """Everything cooperatively in one process: deterministic, stops in a debugger, no overlap."""

    type: Literal["inline"]
    threads: Annotated[int, Field(ge=0)] = 0
    """Torch threads; 0: all cores, divided among the engines."""
    engines: PositiveInt = 1
    """More than one: each steps in a thread of its own. In a cluster (`rollweave submit`) one per rollout node."""


class RayRuntime(Section):
    """Engine, trainer and environment hosts in processes of their own: real overlap."""

    type: Literal["ray"]
    address: str = "local"
    """`local` starts a private Ray; anything else is the address of a running cluster."""
    hosts: PositiveInt = 1
    """Environment hosts."""
    placement: Literal["disaggregated", "colocated"] = "disaggregated"
    """Disaggregated: engine and trainer have cores of their own. Colocated: they take turns on all of them."""
    engine_threads: Annotated[int, Field(ge=0)] = 0
    """0: half of the cores when disaggregated, all of them when colocated."""
    trainer_threads: Annotated[int, Field(ge=0)] = 0


RuntimeConfig = Annotated[InlineRuntime | RayRuntime, Field(discriminator="type")]


class LoggingConfig(Section):
    tensorboard: bool = True
    transcripts_per_step: Annotated[int, Field(ge=0)] = 2
    """Trajectories written out in full each step, to trajectories.jsonl and the report."""


class Job(Section):
    """A training job."""

    name: str = "job"
    seed: int = 0
    """Fixes tasks, environments and, per (trajectory, turn), what is sampled."""
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
    """Which pools the job runs on, or the name of a cluster file (`rollweave plan` writes one); none: half of this
    machine's cores generate, half train."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

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
            evaluation=self.evaluation,
            checkpoint=self.checkpoint,
            try_alone=self._check_command(),
        )

    @property
    def alpha(self) -> float:
        """The staleness bound: how many versions old a batch may be."""
        return staleness_bound(self.pipeline)

    @property
    def in_flight(self) -> InFlight:
        return in_flight(self.pipeline)

    def _check_command(self) -> str:
        config = self.environment
        name = config.target if isinstance(config, PythonEnvironmentConfig) else config.type
        return " ".join(["rollweave env check", name, *(f"--reward {reward.function}" for reward in self.rewards)])

    @model_validator(mode="after")
    def _no_contradictions(self) -> Job:
        check_sync_point(self.pipeline)
        self._one_layout()
        if self.alpha > 0 and self.training.ignores_staleness:
            raise ValueError(
                f"training.loss.denominator=proximal ignores staleness, but {self.pipeline.type} trains stale data "
                f"(staleness bound (alpha) {self.alpha:g}): remove it (the default is behaviour), or keep it and set "
                "training.mismatch.type=weight, or use training.loss.type=decoupled_ppo"
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

    def _one_layout(self) -> None:
        """Who gets which cores is said in one place."""
        if self.cluster is None:
            return
        if isinstance(self.runtime, InlineRuntime):
            raise ValueError("cluster needs runtime.type=ray: inline is one process, whatever the pools say")
        for key in ("placement", "engine_threads", "trainer_threads"):
            if key in self.runtime.model_fields_set and getattr(self.runtime, key) not in (0, "disaggregated"):
                raise ValueError(f"runtime.{key} contradicts cluster, whose pools say who gets which cores: remove one")
