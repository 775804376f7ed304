"""The boundary to users' classes: what is accepted, what is refused and with which words."""

from __future__ import annotations

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Any

import pytest

from rollweave.environments.adapt import adapt
from rollweave.environments.protocol import Observation, StepResult
from rollweave.errors import ConfigError, EnvironmentFailed


def episode(thing: Any, action: str = "1", data: dict[str, Any] | None = None) -> tuple[Observation, StepResult]:
    async def play() -> tuple[Observation, StepResult]:
        environment = adapt(thing)
        return await environment.reset(7, data or {}), await environment.step(action)

    return asyncio.run(play())


class Returns:
    """Gives back what it was made with."""

    def __init__(self, step: Any, reset: Any = "start") -> None:
        self.values = step, reset

    def reset(self, seed: int) -> Any:
        return self.values[1]

    def step(self, action: str) -> Any:
        return self.values[0]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (("o", 1, True), StepResult("o", 1.0, True)),
        (("o", True, 0), StepResult("o", 1.0, False)),
        (("o", 0.5, False, {"k": 1}), StepResult("o", 0.5, info={"k": 1})),
        (("o", 0.5, False, True, {}), StepResult("o", 0.5, False, True)),
        (StepResult("o", 2.0), StepResult("o", 2.0)),
        (
            ([{"role": "user", "content": "x"}], 0, False),
            StepResult([{"role": "user", "content": "x"}]),
        ),
    ],
)
def test_every_form_of_a_step_is_understood(value: Any, wanted: StepResult) -> None:
    assert episode(Returns(value))[1] == wanted


def test_numpy_values_are_numbers_and_flags() -> None:
    numpy = pytest.importorskip("numpy")
    result = episode(Returns(("o", numpy.float32(0.5), numpy.bool_(True))))[1]
    assert result == StepResult("o", 0.5, True) and type(result.reward) is float and result.done is True


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("o", math.nan, False), r"Returns\.step returned the reward nan: .*finite"),
        (("o", math.inf, False), "the reward inf"),
        (("o", None, False), "the reward None"),
        (("o", "1.0", False), r"the reward '1\.0'"),
        (("o", 0.0, "no"), "done 'no': done must be True or False"),
        (("o", 0.0), r"\(2 values\): return \(observation, reward, done\)"),
        (None, "Returns.step returned None: return"),
        ((3, 0.0, False), "Returns.step returned 3: an observation is a string"),
        (([{"role": "user"}], 0.0, False), "an observation is a string or a list"),
        (("o", 0.0, False, "info"), "info must be a dict"),
    ],
)
def test_nonsense_is_refused_with_the_class_the_value_and_the_fix(value: Any, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        episode(Returns(value))


def test_a_bad_first_observation_is_refused() -> None:
    with pytest.raises(EnvironmentFailed, match=r"Returns\.reset returned None"):
        episode(Returns(("o", 0, True), reset=None))


def test_async_methods_and_gymnasium_style_reset_work() -> None:
    class Async:
        async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            await asyncio.sleep(0)
            return f"{seed} {options}", {"info": 1}

        async def step(self, action: str) -> Any:
            await asyncio.sleep(0)
            return action, 1.0, True

    assert episode(Async(), data={"a": 1}) == ("7 {'a': 1}", StepResult("1", 1.0, True))


def test_reset_gets_the_data_if_it_wants_it() -> None:
    class WithData(Returns):
        def reset(self, seed: int, data: Any) -> str:
            return f"{seed} {data['x']}"

    assert episode(WithData(("o", 0, True)), data={"x": "row"})[0] == "7 row"


def test_a_reset_without_seed_and_a_class_without_step_are_refused() -> None:
    class Seedless(Returns):
        def reset(self) -> str:
            return ""

    with pytest.raises(ConfigError, match=r"Seedless\.reset takes no seed: write"):
        adapt(Seedless(None))
    with pytest.raises(ConfigError, match="no method `reset`"):
        adapt(object())


@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(3)])
def test_what_the_class_raises_is_wrapped_with_its_line(error: BaseException) -> None:
    class Raises(Returns):
        def step(self, action: str) -> Any:
            raise error

    with pytest.raises(EnvironmentFailed) as caught:
        episode(Raises(None))
    line = Raises.step.__code__.co_firstlineno + 1
    assert f"({__file__}:{line})" in str(caught.value)
    assert "Raises.step raised " + type(error).__name__ in str(caught.value)
    assert caught.value.__cause__ is error


def test_an_episode_is_over_after_its_end_and_after_an_error() -> None:
    async def run() -> None:
        for value in (("o", 0.0, True), ("o", math.nan, False), ("o", 0.0, False, True, {})):
            environment = adapt(Returns(value))
            with pytest.raises(EnvironmentFailed, match=r"Returns\.step: no episode is running: call reset first"):
                await environment.step("before the first reset")
            await environment.reset(0, {})
            with contextlib.suppress(EnvironmentFailed):
                await environment.step("the last one")
            with pytest.raises(EnvironmentFailed, match="no episode is running"):
                await environment.step("one too many")

    asyncio.run(run())


def test_the_users_line_is_named_when_a_library_raised() -> None:
    class Raises(Returns):
        def step(self, action: str) -> Any:
            Path("/nonexistent/file").read_text()

    with pytest.raises(EnvironmentFailed, match=rf"{__file__}:{Raises.step.__code__.co_firstlineno + 1}"):
        episode(Raises(None))


def test_close_is_called_once() -> None:
    class Closes(Returns):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closes(None)
    environment = adapt(inner)
    asyncio.run(environment.close())
    asyncio.run(environment.close())
    assert inner.closed == 1


def test_no_script_says_how_to_write_one() -> None:
    with pytest.raises(ConfigError, match=r"scripted_action\(self, rng\)"):
        asyncio.run(adapt(Returns(None)).scripted_action(0))


def test_a_gymnasium_environment_is_played_in_words() -> None:
    import gymnasium

    async def play() -> None:
        environment = adapt(gymnasium.make("Taxi-v4", render_mode="ansi"))
        first = await environment.reset(0, {})
        assert isinstance(first, str) and "R: |" in first  # what it draws, not the number of the state
        confused = await environment.step("hello 99")
        assert confused.observation == f"Not an action. Answer with one of: 0, 1, 2, 3, 4, 5.\n{first}"
        assert confused.reward == 0.0 and not confused.done
        moved = await environment.step("I take action 4.")
        assert moved.reward == -10.0  # an illegal pick-up
        assert await environment.scripted_action(1) in "012345"
        await environment.close()

    asyncio.run(play())


def test_gymnasium_labels_time_limits_and_actions_that_are_no_words() -> None:
    import gymnasium

    class Labelled(gymnasium.Env[int, int]):
        action_space = gymnasium.spaces.Discrete(2, start=5)
        observation_space = gymnasium.spaces.Discrete(9)
        action_labels = ("Stay", "Go")

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: int) -> Any:
            return action, 0.0, False, False, {}

    limited = gymnasium.wrappers.TimeLimit(Labelled(), 1)
    assert episode(limited, "please GO now") == ("0", StepResult("6", 0.0, False, True))
    assert episode(Labelled(), "5")[1].observation == "5"
    with pytest.raises(ConfigError, match="Box cannot be written as text"):
        adapt(gymnasium.make("Pendulum-v1"))
