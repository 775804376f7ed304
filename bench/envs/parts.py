"""Workers of the Ray runtime around parts that do nothing, whose requests carry contexts of a real length.

The processes, the links between them and all that is sent over those are the product's. Only what would compute, in
engine, trainer and environments, is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from bench.control.null import ANSWER, LOGPROBS, TRANSFORM, NullDialogue, NullEnvironment, NullScorer
from rollweave.clock import Clock
from rollweave.engines.protocol import Completion, EngineStats, Pull, Request
from rollweave.environments.protocol import HasScriptedAction, Observation
from rollweave.fleet.proxy import LLMProxy
from rollweave.rollout.manager import Dialogue, Stage
from rollweave.runtimes.blueprint import Blueprint
from rollweave.tasks import Task
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Group, Span, TokenIds, token_ids
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import WeightStore

if TYPE_CHECKING:
    from rollweave.engines.torch.engine import TorchEngine
    from rollweave.training.ranks import Ranks
    from rollweave.training.trainer import TorchTrainer

CONTEXT = 512
"""Tokens that every request carries at least."""

FIRST_OBSERVATION = token_ids(range(CONTEXT))


class NullCore:
    """An engine that answers in its next step all that it was asked."""

    def __init__(self) -> None:
        self._asked: dict[str, Request] = {}
        self._stats = EngineStats()
        self._staged = Fingerprint(0, "")

    @property
    def has_work(self) -> bool:
        return bool(self._asked)

    def add(self, request: Request) -> None:
        assert len(request.tokens) >= CONTEXT
        self._asked[request.id] = request

    def abort(self, request_id: str) -> Completion | None:
        return Completion(request_id, [], "aborted") if self._asked.pop(request_id, None) else None

    def release(self, trajectory: str) -> None:
        pass

    def step(self) -> list[Completion]:
        asked, self._asked = self._asked, {}
        self._stats.steps += 1
        self._stats.sampled_tokens += len(asked) * len(ANSWER)
        return [Completion(id, [self._span()], "stop", "left") for id in asked]

    def _span(self) -> Span:
        """With arrays of its own, as a real answer has: what is shared is sent once."""
        return Span(ANSWER.copy(), LOGPROBS.copy(), LOGPROBS.copy(), self._stats.version, TRANSFORM)

    def prepare(self, pull: Pull) -> Fingerprint:
        self._staged = pull(lambda name, tensor: None)
        return self._staged

    def commit(self, version: int) -> None:
        self._stats.version, self._stats.checksum = version, self._staged.checksum

    def stats(self) -> EngineStats:
        return self._stats


class NullTrainerCore:
    """A trainer that looks at no token."""

    def begin(self, step: int, stream: bool = False) -> None:
        pass

    def accumulate(self, groups: Sequence[Group]) -> None:
        pass

    def finish(self) -> Metrics:
        return {}

    def publish(self, version: int, store: WeightStore) -> Fingerprint:
        return store.push(version, {"weight": np.zeros(1, np.float32)})

    def save(self, folder: Path, driver: DriverFiles) -> None:
        pass

    def load(self, folder: Path) -> None:
        pass


class LongDialogue(NullDialogue):
    """The first observation fills the context; those after it are short."""

    def open(self, observation: Observation) -> TokenIds:
        return FIRST_OBSERVATION


class ScriptedNullEnvironment(NullEnvironment):
    """As the environments of a job, which can also play by themselves."""

    async def scripted_action(self, seed: int) -> str:
        return "left"


def null_environment(task: Task) -> HasScriptedAction:
    return ScriptedNullEnvironment()


@dataclass(frozen=True, slots=True)
class NullBlueprint(Blueprint):
    """Builds the parts above where `Blueprint` builds real ones."""

    def engine(self) -> TorchEngine:
        return cast("TorchEngine", NullCore())

    def warm_up_engine(self) -> None:
        pass

    def trainer(self, ranks: Ranks | None = None) -> TorchTrainer:
        return cast("TorchTrainer", NullTrainerCore())

    def stage(self, proxy: LLMProxy, clock: Clock, dialogue: Dialogue | None = None) -> Stage:
        return Stage(clock, proxy, self.environments, dialogue or LongDialogue(), NullScorer(), self.job.rollout)
