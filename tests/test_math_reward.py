"""Math rewards: what is equal, and what a hostile expression can do."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollweave.config.ready_rewards import MathRewardConfig
from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.math import MathReward
from rollweave.rewards.scorer import Scorer
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory, token_ids

SECONDS = 1.0

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="pip install 'rollweave[math]'"
)


def trajectory(said: str, **data: Any) -> Trajectory:
    played = Trajectory("t/0", 0, 0, Task("row/0", "prompts", 0, data))
    played.observe(token_ids([]))
    played.answer([], said, "stop")
    return played


@pytest.fixture(scope="module")
def reward() -> MathReward:
    return MathReward(MathRewardConfig(parallel=1, timeout=SECONDS))


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "wanted", "score"),
    [
        ("So the answer is $\\frac{1}{2}$.", "1/2", 1.0),
        ("\\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("\\boxed{x^2 + 2x + 1}", "(x+1)^2", 1.0),
        ("The result: 42", "42", 1.0),
        ("The result: 42", 42, 1.0),
        ("$\\{1, 2\\}$", "\\{2, 1\\}", 1.0),
        ("I do not know", "42", 0.0),
        ("", "42", 0.0),
        ("\\boxed{43}", "42", 0.0),
        ("\\boxed{\\frac{1}{0}}", "42", 0.0),
    ],
)
def test_answers_are_compared_as_mathematics(reward: MathReward, answer: str, wanted: Any, score: float) -> None:
    assert reward(trajectory(answer, answer=wanted)) == score


HOSTILE = {
    "a tower of powers": "\\boxed{9^{9^{9^{9}}}}",
    "a factorial": "\\boxed{(10^{10})!}",
    "a factorial of a factorial": "\\boxed{((99!)!)!}",
    "deep parentheses": "\\boxed{" + "(" * 20000 + "1" + ")" * 20000 + "}",
    "deep braces": "\\boxed{" + "{" * 5000 + "1" + "}" * 5000 + "}",
    "deep fractions": "\\boxed{" + "\\frac{1}{" * 500 + "1" + "}" * 500 + "}",
    "a long sum": "\\boxed{" + "+".join(f"x^{{{n}}}" for n in range(5000)) + "}",
    "a long number": "\\boxed{" + "9" * 90000 + "}",
    "an endless series": "\\boxed{\\sum_{n=1}^{10^{12}} \\sin(n)^{n}}",
    "an integral": "\\boxed{\\int_0^1 \\sin(\\sin(\\sin(\\sin(x^{x^x})))) dx}",
    "a product": "\\boxed{\\prod_{k=1}^{1000000} (1 + x^k)}",
    "code": "\\boxed{__import__('os').system('touch /tmp/rollweave-escaped')}",
    "code in an expression": "$exec('import os; os._exit(0)')$",
    "no text at all": "\0\ud800\x1b[2J" * 1000,
    "many expressions": "$1$ " * 30000,
}


@needs_math_verify
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_expression_scores_nothing_within_its_time(reward: MathReward, name: str) -> None:
    reward(trajectory("1", answer="1"))  # the process that compares may have to start first
    began = time.monotonic()
    assert reward(trajectory(HOSTILE[name], answer="42")) == 0.0
    assert time.monotonic() - began <= 2 * SECONDS + 1.0
    assert not Path("/tmp/rollweave-escaped").exists()
    assert reward(trajectory("$42$", answer="42")) == 1.0, "the next answer is scored as ever"


@needs_math_verify
def test_an_expected_answer_that_is_none_is_no_score(reward: MathReward) -> None:
    with pytest.raises(RewardFailed, match="row/0: column 'answer' holds '', and math-verify cannot read that"):
        reward(trajectory("1", answer=""))


@needs_math_verify
def test_threads_share_its_processes(reward: MathReward) -> None:
    """math-verify by itself works in the main thread only."""
    shared = MathReward(MathRewardConfig(parallel=2))
    scores: list[float] = []
    threads = [
        threading.Thread(target=lambda n=n: scores.append(shared(trajectory(f"${n}$", answer="3"))))  # type: ignore[misc]
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(scores) == [0.0] * 5 + [1.0]


@needs_math_verify
def test_the_variables_of_the_run_are_not_in_its_process(reward: MathReward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "secret")
    shared = MathReward(MathRewardConfig(parallel=1, timeout=SECONDS))
    shared(trajectory("1", answer="1"))
    (comparer,) = shared._idle
    environment = Path(f"/proc/{comparer._process.pid}/environ").read_bytes()
    assert b"SECRET" not in environment and b"PYTHONPATH" in environment
    comparer.end()
    assert not os.path.exists(f"/proc/{comparer._process.pid}")


def test_without_the_package_its_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rewards: math: .*pip install 'rollweave\[math\]'"):
        Scorer([RewardConfig(math=MathRewardConfig())], Path())
