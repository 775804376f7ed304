"""What every worker needs to build its part of a job. Sent to other processes, so it holds no live parts.

`start_runtime` starts the workers, in this process or on Ray.

torch and transformers are imported by the builders, in the process that needs them.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollweave.clock import Clock
from rollweave.config.cluster import Slowdown
from rollweave.config.engines import VllmEngineConfig
from rollweave.config.job import InlineRuntime, Job
from rollweave.engines.loop import Background, EngineLoop, Fetch, StepSeconds, fetch_here
from rollweave.engines.protocol import HostedEngine
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.latency import LateEnvironments, latencies
from rollweave.environments.protocol import MakeEnvironment
from rollweave.environments.registry import turn_limits
from rollweave.errors import ConfigError
from rollweave.fleet.fleet import Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import Emitter
from rollweave.rewards.scorer import NamedReward, Scorer, call_in_thread, call_on_loop
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.manager import Dialogue, Stage, TurnBarrier
from rollweave.training.protocol import Trainer
from rollweave.weights.adapter import AdapterStore
from rollweave.weights.store import WeightStore

if TYPE_CHECKING:
    from rollweave.engines.torch.engine import TorchEngine
    from rollweave.training.ranks import Ranks
    from rollweave.training.trainer import TorchTrainer

BEHIND_OTHERS = 10
"""How nice (as in nice(1)) a thread is that gets something ready which may never be needed."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    job: Job
    policy: Path
    """The Hugging Face folder the job starts from."""
    environments: MakeEnvironment
    rewards: tuple[NamedReward, ...] = ()
    """Reward functions given as Python objects, beside those the job names."""
    slowdown: Slowdown | None = None
    """Of the pool that an engine is built for."""

    def engine(self) -> TorchEngine:
        """The embedded engine, also of a job whose engines are others."""
        from rollweave.crossing import find_device
        from rollweave.engines.torch.engine import TorchEngine

        return TorchEngine.from_folder(
            self.policy,
            slots=self.job.engine.slots,
            prefill_tokens=self.job.engine.prefill_tokens,
            max_context=self.job.rollout.max_context,
            in_flight=self.job.pipeline.in_flight,
            device=find_device(self.job.device),
        )

    async def start_engine(
        self,
        store: WeightStore,
        clock: Clock,
        step_seconds: StepSeconds | None = None,
        background: Background | None = None,
        thread: Executor | None = None,
        fetch: Fetch = fetch_here,
    ) -> HostedEngine:
        """The engine that the job asks for; all but the first two concern the embedded one."""
        config, rollout = self.job.engine, self.job.rollout
        lora = self.job.training.lora
        if lora is not None and lora.sync == "adapter":
            store = AdapterStore(store, self.policy)
        if isinstance(config, VllmEngineConfig):
            from rollweave.engines.vllm.engine import VllmEngine

            return await VllmEngine.start(self.policy, config, rollout.max_context, self.job.pipeline.in_flight, store)
        return EngineLoop(self.engine(), store, clock, step_seconds, background, thread, fetch, self.slowdown)

    def warm_up_engine(self) -> None:
        """Do what takes seconds in `engine`, importing above all, at a lower priority than the processes that work."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BEHIND_OTHERS)
        from transformers import AutoTokenizer

        if isinstance(self.job.engine, VllmEngineConfig):
            import rollweave.engines.vllm.engine
            from rollweave.engines.vllm.launch import import_vllm

            import_vllm()
            return
        import rollweave.engines.torch.engine  # noqa: F401 (importing it is the point)
        from rollweave.policies.forward import load_model

        AutoTokenizer.from_pretrained(self.policy)
        load_model(self.policy)

    def trainer(self, ranks: Ranks | None = None) -> TorchTrainer:
        """The trainer, or this rank of it."""
        from rollweave.crossing import find_device
        from rollweave.training.ranks import ALONE
        from rollweave.training.trainer import TorchTrainer

        device = find_device(self.job.device, None if ranks is None else ranks.rank)
        if device.type == "cpu" and self.job.training.dtype == "bfloat16":
            raise ConfigError(
                "training.dtype=bfloat16 is for GPUs, and this trainer computes on a CPU, where it is slow and on some "
                "processors crashes: remove it"
            )
        return TorchTrainer(self.policy, self.job.training, self.job.seed, ranks or ALONE, device, self.job.sleep)

    def stage(self, proxy: LLMProxy, clock: Clock, dialogue: Dialogue | None = None) -> Stage:
        """All that a host needs; the dialogue is the policy's own, unless another is given."""
        from rollweave.policies.chat import ChatFormat

        rollout = self.job.rollout
        environments = self.environments
        if rollout.isolation == "process":
            environments = EnvironmentPool(environments, rollout.environments_per_process)
        if slow := latencies(self.job.environment):
            environments = LateEnvironments(environments, slow, clock)
        call_plain = call_on_loop if clock.is_virtual else call_in_thread
        scorer = Scorer(self.job.rewards, Path(), self.rewards, call_plain, clock, self.job.seed)
        barrier = TurnBarrier() if self.job.control.has_barrier else None
        limits = turn_limits(self.job.environment)
        dialogue = dialogue or ChatFormat.of(self.policy)
        return Stage(clock, proxy, environments, dialogue, scorer, rollout, barrier, limits)


async def close_stage(stage: Stage) -> None:
    """End the processes and connections of a stage's environments and rewards."""
    if isinstance(stage.scorer, Scorer):
        await stage.scorer.aclose()
    if isinstance(stage.environment, EnvironmentPool | LateEnvironments):
        await stage.environment.close()


def start_runtime(
    blueprint: Blueprint, fleet: Fleet, dispatcher: Dispatcher, clock: Clock, logs: Path, recorder: Emitter
) -> AbstractAsyncContextManager[Trainer]:
    """Start the workers of a job on the runtime it asks for: engines join the fleet, hosts the dispatcher. Yields the
    trainer; all of them are gone with the block."""
    runtime = blueprint.job.runtime
    if isinstance(runtime, InlineRuntime):
        from rollweave.runtimes.inline import start_inline, use_threads

        use_threads(runtime)
        return start_inline(blueprint, fleet, dispatcher, clock)
    from rollweave.runtimes.ray import start_ray

    return start_ray(blueprint, runtime, fleet, dispatcher, clock, logs, recorder)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
