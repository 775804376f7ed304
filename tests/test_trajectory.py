"""What flows: a context that grows while requests hold views of it, spans, and their way into a checkpoint and back."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.engines.protocol import Request, Sampling
from rollweave.errors import RunFolderError
from rollweave.rollout.state import FORMAT, OpenGroup, SchedulerState, adapter, pack, unpack
from rollweave.tasks import Task
from rollweave.training import checkpoint
from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import (
    Group,
    Outcome,
    Span,
    TokenBuffer,
    TokenIds,
    Trajectory,
    Transform,
    repeat_item,
    token_ids,
)
from spans import assert_same_files, span_of

TASK = Task("t/1", "t", 7, {"question": "?"})
KNOWN = adapter(SchedulerState)

# ------------------------------------------------------------------------------------------------------- contexts

ids = st.integers(0, 3)
listed = st.builds(lambda some, times: np.tile(token_ids(some), times), st.lists(ids, max_size=5), st.integers(0, 300))
counted = st.builds(lambda token, count: repeat_item(np.array([token], np.int32), count), ids, st.integers(0, 90))


@given(st.lists(st.one_of(ids, listed, counted), max_size=12))
def test_what_a_context_handed_out_never_changes(steps: list[int | TokenIds]) -> None:
    context, expected = TokenBuffer(), []
    handed_out: list[tuple[TokenIds, list[int]]] = []
    for step in steps:
        handed_out.append((context.view(), list(expected)))
        if isinstance(step, int):
            context.append(step)
            expected.append(step)
        else:
            context.extend(step)
            expected += step.tolist()
        assert (len(context), context.view().tolist()) == (len(expected), expected)
        for view, at_that_time in handed_out:
            assert view.tolist() == at_that_time
            with pytest.raises(ValueError, match="read-only"):
                view[:] = 9


def test_a_request_does_not_copy_the_context_of_the_turn_before() -> None:
    context = TokenBuffer(token_ids(range(100)))
    before = context.view()
    context.extend(token_ids([5, 6]))
    assert np.shares_memory(before, context.view())


def test_a_context_of_one_repeated_token_only_counts() -> None:
    token = np.array([7], np.int32)
    context = TokenBuffer(repeat_item(token, 10**9))
    context.extend(repeat_item(token, 5))
    assert (len(context), context.view().strides) == (10**9 + 5, (0,))


# ---------------------------------------------------------------------------------------------------------- spans


def test_a_span_says_why_it_must_not_be_trained() -> None:
    assert span_of([1, 2]).problem() is None
    assert span_of([1], [-1.0], [-1.0], 0, Transform()).problem() is None
    assert span_of([], [], [], 0, Transform()).problem() is None
    assert span_of([1, 2], [-1.0, float("nan")], [-1.0, -1.0], 0, Transform()).problem() is not None
    endless = repeat_item(np.array([np.inf], np.float32), 10**9)
    assert Span(repeat_item(np.array([1], np.int32), 10**9), endless, endless, 0, Transform()).problem() is not None


def test_a_view_is_pickled_without_the_memory_behind_it() -> None:
    context = TokenBuffer(token_ids(range(10_000)))
    assert len(pickle.dumps(context.view()[:10])) < 400


def test_a_request_reaches_another_process_with_every_field_and_without_the_memory_behind_it() -> None:
    context = TokenBuffer(token_ids(range(10_000)))
    begun = span_of([1], [-1.0], [-2.0], 3, Transform(0.5), 2)
    sent = Request(
        "1.0.0#2", "1.0.0", context.view()[:10], 7, Sampling(9), "maze", (begun,), "engine-1/1", "an address"
    )
    defaults = [one.name for one in fields(Request) if np.array_equal(getattr(sent, one.name), one.default)]
    assert not defaults, "give every field a value of its own here"
    pickled = pickle.dumps(sent)
    got = pickle.loads(pickled)
    assert len(pickled) < 1000
    assert all(np.array_equal(getattr(got, one.name), getattr(sent, one.name)) for one in fields(Request))
    assert (got.tokens.dtype, got.begun[0]) == (np.int32, begun)


# ---------------------------------------------------------------------------------------------------- checkpoints

logprobs = st.floats(-100, 0, width=32)
transforms = st.builds(Transform, st.floats(0, 2), st.floats(0.1, 1), st.integers(0, 50))


@st.composite
def spans(draw: st.DrawFn) -> Span:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
    if draw(st.booleans()):
        return span_of(tokens)
    values = [draw(st.lists(logprobs, min_size=len(tokens), max_size=len(tokens))) for _ in range(2)]
    older = draw(st.none() | st.integers(0, 3))
    return span_of(tokens, *values, draw(st.integers(0, 9)), draw(transforms), older)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    made = Trajectory(draw(st.text(max_size=3)), draw(st.integers(0, 5)), 1, TASK, outcome=Outcome.FINISHED)
    made.rewards = {"environment": draw(st.floats(allow_nan=False))}
    made.info = {"score": draw(st.floats(allow_nan=False)), "nested": [{"$tokens": "not a place"}]}
    for _ in range(draw(st.integers(0, 3))):
        made.observe(draw(st.lists(st.integers(0, 300), max_size=4).map(token_ids)))
        made.answer(draw(st.lists(spans(), max_size=3)), "text", "stop")
    return made


@given(trajectories())
@settings(deadline=None)
def test_a_trajectory_reaches_another_process_to_the_last_bit(made: Trajectory) -> None:
    made.cause = "a word"
    if made.turns:
        made.length  # noqa: B018 (it is measured before it is sent)
    got = pickle.loads(pickle.dumps(made))
    assert got == made
    types = [[None if a is None else a.dtype for a in (s.tokens, s.logprobs, s.raw_logprobs)] for s in got.spans()]
    assert all(a in (np.int32, np.float32, None) for some in types for a in some)
    assert got.length == made.length and got.oldest_version == made.oldest_version


@st.composite
def states(draw: st.DrawFn) -> SchedulerState:
    groups = draw(st.lists(trajectories(), max_size=3))
    finished = draw(st.lists(trajectories(), max_size=2))
    open_group = OpenGroup(9, 1, 0, {0: 2, 1: 1}, {0: 1}, finished, [1])
    return SchedulerState(3, 7, buffered=[Group(n, TASK, [one]) for n, one in enumerate(groups)], open=[open_group])


@given(states())
@settings(deadline=None)
def test_a_state_survives_its_files_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, state: SchedulerState
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints") / "step-3"
    checkpoint.write(folder, lambda partial: None, pack(KNOWN, state))
    assert checkpoint.damage(folder) is None
    read = checkpoint.read_driver(folder)
    again = unpack(KNOWN, read)
    assert again == state
    for one, other in zip(_spans(again), _spans(state), strict=True):
        assert one.tokens.dtype == np.int32
        assert (one.logprobs is None) == (other.logprobs is None)
        assert one.logprobs is None or one.logprobs.dtype == np.float32
    assert_same_files(pack(KNOWN, again), read)


def test_the_json_does_not_grow_with_the_tokens() -> None:
    def size(tokens: int) -> int:
        made = Trajectory("a", 0, 0, TASK, outcome=Outcome.FINISHED)
        made.observe(token_ids(range(tokens)))
        return len(pack(KNOWN, SchedulerState(buffered=[Group(0, TASK, [made])])).text)

    assert size(100_000) < size(10) + 20


def test_what_json_has_no_word_for_in_a_users_data_becomes_text() -> None:
    made = Trajectory("a", 0, 0, TASK, info={"when": Path("x"), "grid": np.eye(2)})
    state = unpack(KNOWN, pack(KNOWN, SchedulerState(buffered=[Group(0, TASK, [made])])))
    assert state.buffered[0].members[0].info == {"when": "x", "grid": str(np.eye(2))}


@pytest.mark.parametrize("written", [{}, {"format": 1}, {"format": FORMAT + 1}])
def test_another_format_is_refused_with_what_to_do(written: dict[str, Any]) -> None:
    with pytest.raises(RunFolderError, match="continue it with the version that began it, or start a new run"):
        unpack(KNOWN, DriverFiles(json.dumps({"version": 0, **written})))


def _spans(state: SchedulerState) -> list[Span]:
    members = [member for group in state.buffered for member in group.members]
    members += [member for group in state.open for member in group.finished]
    return [span for member in members for span in member.spans()]
