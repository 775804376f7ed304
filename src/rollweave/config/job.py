"""One file describes a job. Every key is here, with its default and what it means.

Sections that come in kinds are unions told apart by `type`. Values are checked before anything starts;
pairs that contradict each other are refused with the fix (`Job` at the end).
"""

from __future__ import annotations

import re
from math import ceil
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import PlainText, Section
from rollweave.config.cluster import ClusterConfig
from rollweave.config.environments import EnvironmentConfig
from rollweave.config.overrides import FileName, Target
from rollweave.config.training import TrainingConfig

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""`organisation/name`; a folder begins with `./`, `/` or `~`."""

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


# ----------------------------------------------------------------------------------- the loop and where it runs


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
    def _no_contradictions(self) -> Job:
        pipeline = self.pipeline
        if isinstance(pipeline, RollArtPipeline) and pipeline.alpha < 1 and pipeline.sync_point == "after_batch":
            raise ValueError(
                f"pipeline.sync_point=after_batch needs a staleness bound (alpha) of 1 or more, not "
                f"{pipeline.alpha:g}: the batch of a step would have to come from weights that the engines only get "
                "after it; raise pipeline.alpha or use before_batch"
            )
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
