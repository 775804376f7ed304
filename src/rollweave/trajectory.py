"""What flows through the system: spans make turns, turns a trajectory, trajectories a group, groups a batch.

Tokens are the source of truth. A trajectory is an append-only sequence of token ids in which every id was
either *given* (rendered from an observation) or *sampled* by an engine. Sampled ids carry what off-policy
training needs to be honest: the log-prob under the distribution they were really drawn from, the policy
version that drew them and the transform (temperature, top-p, top-k) between the two.

Tokens and log-probs are NumPy arrays, and an array that has been handed on is never written to: episodes, requests and
checkpoints share one array instead of copying it. A simulation hands in arrays of stride 0, which have a length and
items like any other, but own no memory.

    Span         a run of tokens with one origin: given, or sampled by one policy version
    Turn         the given tokens of one observation, then the spans of the answer to it
    Trajectory   one attempt of a member: its turns, rewards and typed outcome
    Group        the members that share one task (same environment seed); the unit of admission
    Batch        the groups one train step consumes, in canonical order
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollweave.errors import UntrainableBatch
from rollweave.tasks import Task
from rollweave.versions import Version

Number = TypeVar("Number", bound=np.generic)
TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]

ENDLESS = 1 << 40
"""The length of an array of stride 0 from which shorter ones are cut."""


class Outcome(StrEnum):
    """How an episode ended. The first two are trained, the others never are."""

    FINISHED = "finished"  # the environment said so
    TRUNCATED = "truncated"  # the turn or token limit: a real episode, only cut short
    ENV_FAILED = "env_failed"  # infrastructure: the environment raised or returned nonsense
    TIMED_OUT = "timed_out"  # infrastructure: the environment missed its deadline
    ABORTED = "aborted"  # we stopped it ourselves

    @property
    def trainable(self) -> bool:
        return self in (Outcome.FINISHED, Outcome.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Transform:
    """What was done to the logits before drawing. The identity is temperature 1 and nothing cut."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def token_ids(tokens: Iterable[int]) -> TokenIds:
    """Tokens from wherever they come as the array that a span holds."""
    return np.array(list(tokens), np.int32)


def logprob_array(values: Iterable[float]) -> Logprobs:
    return np.array(list(values), np.float32)


def repeat_item(item: NDArray[Number], count: int) -> NDArray[Number]:
    """`count` times the one item of an array, in an array of stride 0 that owns no memory."""
    return np.ndarray((count,), item.dtype, item, 0, (0,))


NO_MEMORY = np.empty(0, np.int32)
NO_TOKENS = NO_MEMORY.view()
NO_TOKENS.flags.writeable = False

NOTHING = object()
"""Stands for the base of no array: a `TokenBuffer` that repeats no token compares with it."""

FIRST_ROOM = 512
"""Tokens that a context has room for before it moves for the first time."""


class TokenBuffer:
    """A context that grows at its end.

    What `view` hands out never changes: tokens are only written beyond the end of every view, and a buffer that is
    full moves to larger memory and leaves the old one to its views. So a request carries a context without copying it.
    A buffer that has only seen one repeated token of a simulation owns no memory either: it counts.
    """

    __slots__ = ("_memory", "_readable", "_repeated", "_room", "_size")

    def __init__(self, tokens: TokenIds | None = None) -> None:
        self._memory, self._readable = NO_MEMORY, NO_TOKENS
        self._room = self._size = 0
        self._repeated: object = NOTHING
        if tokens is not None:
            self.extend(tokens)

    def __len__(self) -> int:
        return self._size

    def append(self, token: int) -> None:
        if self._size >= self._room:
            self._make_room(self._size + 1)
        self._memory[self._size] = token
        self._size += 1

    def extend(self, tokens: TokenIds) -> None:
        end = self._size + len(tokens)
        if tokens.base is not self._repeated and not self._only_counts(tokens):
            if end > self._room:
                self._make_room(end)
            self._memory[self._size : end] = tokens
        self._size = end

    def view(self) -> TokenIds:
        """All tokens so far, read-only."""
        return self._readable[: self._size]

    def _only_counts(self, tokens: TokenIds) -> bool:
        """Whether nothing has to be written: for one repeated token in a buffer that is empty or repeats it too."""
        if tokens.strides != (0,) or not len(tokens):
            return not len(tokens)
        if self._size == 0:
            self._use(repeat_item(tokens[:1], ENDLESS), 0)
            if isinstance(tokens.base, np.ndarray) and tokens.base.size == 1:
                self._repeated = tokens.base
        return self._memory.strides == (0,) and self._memory.item(0) == tokens.item(0)

    def _make_room(self, size: int) -> None:
        room = max(FIRST_ROOM, 2 * size)
        memory = np.empty(room, np.int32)
        memory[: self._size] = self.view()
        self._use(memory, room)

    def _use(self, memory: TokenIds, room: int) -> None:
        self._repeated = NOTHING
        self._memory = memory
        self._room = room  # none where tokens are only counted
        self._readable = memory.view()
        self._readable.flags.writeable = False


@dataclass(slots=True, eq=False)
class Span:
    """A run of tokens with one origin."""

    tokens: TokenIds
    logprobs: Logprobs | None = None
    """Behaviour log-probs: of the transformed distribution the tokens were drawn from. None: given."""
    raw_logprobs: Logprobs | None = None
    """Log-probs of the policy itself, before temperature, top-p and top-k."""
    version: int | None = None
    """The policy version that drew these tokens, as `Version` names it. None: given."""
    transform: Transform | None = None
    kv_version: int | None = None
    """The weights an older cache was computed with, if these tokens were drawn on one (`in_flight: keep`)."""

    @property
    def sampled(self) -> bool:
        return self.version is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Its arrays travel as bytes. They are small and many: as arrays they would cost most of what it costs to send
        an answer or a trajectory to another process (bench/envs)."""
        tokens, logprobs, raw_logprobs, *others = _span_fields(self)
        return _span_of_bytes, (tokens.tobytes(), _bytes_of(logprobs), _bytes_of(raw_logprobs), *others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Span):
            return NotImplemented
        return all(np.array_equal(getattr(self, one.name), getattr(other, one.name)) for one in fields(self))

    def problem(self) -> str | None:
        """Why this span must not be trained, or None."""
        if not self.sampled:
            return None if self.logprobs is None else "given tokens carry log-probs"
        if self.logprobs is None or self.raw_logprobs is None or self.transform is None:
            return "sampled tokens lack log-probs or their sampling transform"
        if len(self.logprobs) != len(self.tokens) or len(self.raw_logprobs) != len(self.tokens):
            return f"{len(self.tokens)} sampled tokens carry {len(self.logprobs)} log-probs"
        return None if _finite(self.logprobs) else "a behaviour log-prob is not finite"


_span_fields = attrgetter(*(one.name for one in fields(Span)))


def _bytes_of(values: Logprobs | None) -> bytes | None:
    return None if values is None else values.tobytes()


def _span_of_bytes(tokens: bytes, logprobs: bytes | None, raw_logprobs: bytes | None, *others: Any) -> Span:
    return Span(
        np.frombuffer(tokens, np.int32),
        None if logprobs is None else np.frombuffer(logprobs, np.float32),
        None if raw_logprobs is None else np.frombuffer(raw_logprobs, np.float32),
        *others,
    )


def _finite(values: Logprobs) -> bool:
    if values.strides == (0,):  # of a simulation: as many as there are, they are one number
        return not len(values) or math.isfinite(values.item(0))
    return bool(np.isfinite(values).all())


@dataclass(slots=True)
class Turn:
    """One observation and the answer to it."""

    observation: Span
    answer: list[Span] = field(default_factory=list)
    text: str = ""
    """The answer as text, as the environment saw it."""
    finish: str = ""
    """Why generation stopped: `stop`, `length`."""
    reward: float = 0.0
    generate_seconds: float = 0.0
    environment_seconds: float = 0.0


class _Measured:
    """Holds what is derived from the tokens of a trajectory, and so is not a field of it."""

    __slots__ = ("_sizes",)
    _sizes: tuple[int, int, int] | None
    """Length, sampled tokens, oldest version: asked for again and again once the episode has ended, and counting them
    anew each time was a seventh of the control plane's work. None: not known."""

    def _note_sizes(self, sizes: tuple[int, int, int] | None) -> None:
        self._sizes = sizes


@dataclass(slots=True)
class Trajectory(_Measured):
    """The data of one attempt (`id`, as in `17.3.0`: group, member, try). Tokens are only appended."""

    id: str
    group: int
    member: int
    task: Task
    turns: list[Turn] = field(default_factory=list)
    outcome: Outcome | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward, already weighted. `environment` is the sum of the step rewards."""
    admitted_version: int = 0
    cause: str = ""
    """What went wrong, for outcomes that are not trainable."""
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._note_sizes(None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Its turns travel as one string of bytes. Ray's own pickler looks at each object in Python, because it may be
        one that only Ray can send; what a user has put beside the turns may be, the turns are not."""
        id, group, member, task, turns, *others = _trajectory_fields(self)
        sent = pickle.dumps(turns, pickle.HIGHEST_PROTOCOL)
        return _trajectory_of_bytes, (sent, self._sizes, id, group, member, task, *others)

    def observe(self, tokens: TokenIds) -> None:
        """Append the tokens of an observation and open a turn."""
        self.turns.append(Turn(Span(tokens)))
        self._note_sizes(None)

    def answer(self, spans: list[Span], text: str, finish: str) -> None:
        """Append what the engine sampled for the open turn."""
        turn = self.turns[-1]
        turn.answer.extend(spans)
        turn.text = text
        turn.finish = finish
        self._note_sizes(None)

    def spans(self) -> Iterator[Span]:
        for turn in self.turns:
            yield turn.observation
            yield from turn.answer

    def tokens(self) -> TokenIds:
        """All of them, in a new array."""
        return np.concatenate([np.empty(0, np.int32), *(span.tokens for span in self.spans())])

    @property
    def length(self) -> int:
        return (self._sizes or self._measure())[0]

    @property
    def sampled_tokens(self) -> int:
        return (self._sizes or self._measure())[1]

    @property
    def oldest_version(self) -> int:
        """The number that its staleness is counted from: of its oldest sampled token, else of its admission."""
        return (self._sizes or self._measure())[2]

    @property
    def reward(self) -> float:
        return sum(self.rewards.values())

    def _measure(self) -> tuple[int, int, int]:
        given = sum(len(turn.observation.tokens) for turn in self.turns)
        answers = [span for turn in self.turns for span in turn.answer if span.version is not None]
        sampled = sum(len(span.tokens) for span in answers)
        versions = {span.version for span in answers if span.version is not None}
        oldest = min((Version(version).number for version in versions), default=self.admitted_version)
        sizes = (given + sampled, sampled, oldest)
        self._note_sizes(sizes)
        return sizes


_trajectory_fields = attrgetter(*(one.name for one in fields(Trajectory)))


def _trajectory_of_bytes(
    turns: bytes, sizes: tuple[int, int, int] | None, id: str, group: int, member: int, task: Task, *others: Any
) -> Trajectory:
    made = Trajectory(id, group, member, task, pickle.loads(turns), *others)
    made._note_sizes(sizes)
    return made


@dataclass(slots=True)
class Group:
    """The finished members of one task."""

    id: int
    task: Task
    members: list[Trajectory] = field(default_factory=list)

    @property
    def oldest_version(self) -> int:
        return min(member.oldest_version for member in self.members)


@dataclass(slots=True)
class Batch:
    """What train step `step` consumes: groups by id, members by index, whatever order they finished in."""

    step: int
    groups: list[Group]

    def __post_init__(self) -> None:
        self.groups.sort(key=lambda group: group.id)
        for group in self.groups:
            group.members.sort(key=lambda member: member.member)

    def trajectories(self) -> Iterator[Trajectory]:
        for group in self.groups:
            yield from group.members

    @property
    def sampled_tokens(self) -> int:
        return sum(t.sampled_tokens for t in self.trajectories())

    def staleness(self) -> list[int]:
        return [self.step - t.oldest_version for t in self.trajectories()]

    def check(self) -> None:
        """Refuse anything that was not honestly sampled. The trainer calls this before every step."""
        if not self.groups:
            raise UntrainableBatch(f"step {self.step}: the batch has no groups")
        for trajectory in self.trajectories():
            if problem := _problem(trajectory):
                raise UntrainableBatch(f"step {self.step}: trajectory {trajectory.id} cannot be trained: {problem}")


def _problem(trajectory: Trajectory) -> str | None:
    if trajectory.outcome is None or not trajectory.outcome.trainable:
        return f"its outcome is {trajectory.outcome}"
    if not math.isfinite(trajectory.reward):
        return f"its reward is {trajectory.reward}"
    if trajectory.sampled_tokens == 0:
        return "it holds no sampled token"
    return next((p for span in trajectory.spans() if (p := span.problem())), None)
