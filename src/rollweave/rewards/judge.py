"""The judge: a language model behind a server with OpenAI's chat interface, which is asked how good a response is.

Questions that wait at the same time go into one request, if the job wants that, and requests go side by side. The same
question is asked once: while it is open, all who ask wait for the one answer, and afterwards its score is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence

from rollweave.chat_client import ChatClient
from rollweave.config.ready_rewards import JudgeRewardConfig
from rollweave.config.secrets import read_secret
from rollweave.errors import RewardFailed
from rollweave.rewards.rules import expected, last_answer, last_number
from rollweave.trajectory import Trajectory

DEFAULT_PROMPT = """\
Below are a question and a response to it. How good is the response? Say a number from 0 (useless) to 10 (could not be \
better).

Question:
{prompt}

Response:
{response}"""

BRACES = re.compile(r"\{(\w+)\}")
SEVERAL = """\
Below are {count} questions, each after a line of dashes with its number. Answer each by itself. End with one line for \
each: its number, a colon and the number that it asks for, such as `1: 5`.
"""
LINE = re.compile(r"^\W*(\d+)\W*:\W*(-?\d+(?:\.\d+)?)", re.MULTILINE)


class JudgeReward:
    def __init__(self, config: JudgeRewardConfig) -> None:
        self._config = config
        self._key = read_secret(config.token, "rewards: judge: token")
        self._client: ChatClient | None = None
        self._seats = asyncio.Semaphore(config.parallel)
        self._scores: OrderedDict[str, asyncio.Future[float]] = OrderedDict()
        """By question, the one that was asked for last at the end. Open ones are among them."""
        self._waiting: list[str] = []
        """Questions that are in no request yet."""
        self._requests: set[asyncio.Task[None]] = set()

    async def __call__(self, trajectory: Trajectory) -> float:
        question = self.question(trajectory)
        score = self._scores.get(question)
        if score is None:
            score = self._scores[question] = asyncio.get_running_loop().create_future()
            self._wait(question)
        self._scores.move_to_end(question)
        while len(self._scores) > self._config.cache + len(self._waiting) + self._config.batch * len(self._requests):
            self._scores.popitem(last=False)
        return await asyncio.shield(score)  # a caller that gives up does not take the answer from the others

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def question(self, trajectory: Trajectory) -> str:
        """The prompt, with what the names in braces stand for."""

        def fill(match: re.Match[str]) -> str:
            name = match.group(1)
            return last_answer(trajectory) if name == "response" else str(expected(trajectory, name))

        return BRACES.sub(fill, self._config.prompt or DEFAULT_PROMPT)

    # -------------------------------------------------------------------------------------------------------- requests

    def _wait(self, question: str) -> None:
        """Until the batch is full, or its first question has waited long enough."""
        self._waiting.append(question)
        if len(self._waiting) >= self._config.batch:
            self._send()
        elif len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(self._config.batch_seconds, self._send)

    def _send(self) -> None:
        questions, self._waiting = self._waiting, []
        if questions:
            request = asyncio.get_running_loop().create_task(self._answer(questions))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _answer(self, questions: Sequence[str]) -> None:
        """Settle every question, with a score or an error."""
        scores: dict[str, float] = {}
        async with self._seats:
            for question in questions:
                try:
                    if len(questions) > 1 and question is questions[0]:
                        scores = await self._ask_together(questions)
                    if question not in scores:  # a batch whose answer lacks it
                        scores[question] = await self._ask_alone(question)
                    self._settle(question, scores[question])
                except Exception as error:  # the boundary: whatever a server does, all who wait are told
                    self._settle(question, RewardFailed(f"the judge gives no score: {error}"))

    def _settle(self, question: str, result: float | Exception) -> None:
        waits = self._scores.get(question)
        if waits is None or waits.done():
            return
        if isinstance(result, Exception):
            waits.set_exception(result)
            waits.exception()  # its caller may have given up, which is no error of its own
            del self._scores[question]  # it may be asked again
        else:
            waits.set_result(result)

    async def _ask_alone(self, question: str) -> float:
        said = await self._ask(question)
        number = last_number(said)
        if number is None:
            raise RewardFailed(f"it was asked for a number and said {said[-200:]!r}")
        return self._reward(number)

    async def _ask_together(self, questions: Sequence[str]) -> dict[str, float]:
        """The scores that it gave in the form it was asked for."""
        parts = [f"---------- {number}\n{question}" for number, question in enumerate(questions, 1)]
        said = await self._ask("\n".join([SEVERAL.format(count=len(questions)), *parts]))
        given = {int(number): float(score) for number, score in LINE.findall(said)}
        numbered = enumerate(questions, 1)
        return {question: self._reward(given[number]) for number, question in numbered if number in given}

    async def _ask(self, text: str) -> str:
        if self._client is None:  # made here, because it belongs to the loop that it is used on
            self._client = ChatClient(self._config.url, self._config.model, self._key)
        messages, config = [{"role": "user", "content": text}], self._config
        reply = await self._client.ask(messages, max_tokens=config.max_tokens, temperature=config.temperature)
        return reply.text

    def _reward(self, number: float) -> float:
        if not 0.0 <= number <= self._config.highest:
            raise RewardFailed(f"it said {number:g}, which is not from 0 to {self._config.highest:g}")
        return number / self._config.highest
