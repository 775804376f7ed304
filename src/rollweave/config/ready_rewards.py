"""The ready rewards of a job file: code that is run against tests, mathematics that is compared, a judge."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import FileName, NonNegative, Section
from rollweave.config.secrets import Secret


class CodeRewardConfig(Section):
    """Takes the program out of the last answer (its last block of code, or all of it) and runs it against the tests in
    the task's row, each time in a new sandbox."""

    tests: str = "tests"
    """The column of the tests: Python code with assertions about the program's functions, or a list of such texts and
    of `{input: ..., output: ...}`, what the program reads from standard input and what it must print."""
    partial: bool = False
    """Score the share of the tests that pass. Off: 1 if all pass, else 0."""
    timeout: PositiveFloat = 30.0
    """Seconds that a test may take at most; a program that takes longer fails the test."""
    least_timeout: NonNegative = 2.0
    """Once a program has passed a test, the test's timeout falls, but not below this."""
    timeout_factor: PositiveFloat = 1.5
    """It falls to this factor times the longest that a program has taken to pass the test."""
    total_timeout: PositiveFloat = 45.0
    """Seconds that all tests of one answer may take together; what is left then has failed."""
    memory_mb: PositiveInt = 512
    """Memory of a sandbox; where no cgroup can be made, of each of its processes."""
    processes: PositiveInt = 16
    """Processes and threads of a sandbox."""
    parallel: Annotated[int, Field(ge=0)] = 0
    """Tests that run at once on each host; 0: as many as it has cores."""
    python: str = ""
    """The interpreter of the sandbox; default: the system's, such as /usr/bin/python3. Programs can import what is
    installed for it."""
    readable: tuple[FileName, ...] = ()
    """Folders that programs may read, beside /usr."""
    unsafe: bool = False
    """Run programs without a sandbox, with all rights of this user, where bubblewrap cannot be used."""


class MathRewardConfig(Section):
    """1 if the last answer is mathematically equal to the expected one, else 0, as `math-verify` finds; it reads LaTeX
    and plain expressions."""

    column: str = "answer"
    """The column of the expected answer."""
    timeout: PositiveFloat = 2.0
    """Seconds for one answer; an answer that takes longer scores 0."""
    memory_mb: PositiveInt = 2048
    """Memory of the process that compares; an answer that needs more scores 0."""
    parallel: Annotated[int, Field(ge=0)] = 0
    """Processes that compare, on each host; 0: as many as it has cores."""


class JudgeRewardConfig(Section):
    """Asks a language model behind any server with OpenAI's chat interface for a number."""

    url: str
    """Of the server, as in http://localhost:8000/v1."""
    model: str
    prompt: str = ""
    """What the judge is asked. `{response}` stands for the last answer of the episode, any other name in braces for the
    column of that name in the task's row. Default: how good the response to the column `prompt` is."""
    highest: PositiveFloat = 10.0
    """The number that is a reward of 1; 0 is a reward of 0. Other numbers are no reward."""
    token: Secret | None = None
    """Of the server: `env:NAME` or `file:PATH`, never the token itself."""
    batch: PositiveInt = 1
    """Responses that one request may contain. More than one costs fewer requests and tokens, but the judge sees the
    responses side by side, also those to other questions."""
    batch_seconds: NonNegative = 0.05
    """How long a response waits for others to fill its batch."""
    parallel: PositiveInt = 32
    """Requests at once, on each host."""
    cache: Annotated[int, Field(ge=0)] = 10_000
    """Scores that are kept, so that what has been asked is not asked again."""
    max_tokens: PositiveInt = 512
    """Of the judge's own answer; its last number counts."""
    temperature: NonNegative = 0.0

    @model_validator(mode="after")
    def _check_prompt(self) -> JudgeRewardConfig:
        if self.prompt and "{response}" not in self.prompt:
            raise ValueError("prompt has no {response}: the judge would not see what it judges")
        return self
