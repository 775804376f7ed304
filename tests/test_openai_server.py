"""Evaluation of a model behind a server with OpenAI's chat interface; the server is a small one of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollweave.chat_client import ChatClient, Reply
from rollweave.cli.main import main
from rollweave.clock import Clock, run_wall
from rollweave.engines.openai import MessageBook, ServerEngine
from rollweave.engines.protocol import Completion, Sampling
from rollweave.errors import ConfigError
from rollweave.runs.evaluate import evaluate_server
from rollweave.trajectory import token_ids
from spans import request_of

LAKE = ["environment.type=frozen_lake"]


class ChatServer(ThreadingHTTPServer):
    """Answers each request with the next of `answers` (the last one again and again): a text, or a status code."""

    def __init__(self, answers: list[str | int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, ChatServer) and self.path == "/v1/chat/completions"
        server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        server.keys.append(self.headers["Authorization"])
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode()
        self.send_response(answer if isinstance(answer, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(*answers: str | int) -> Iterator[ChatServer]:
    server = ChatServer(list(answers))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_episodes_are_played_with_the_whole_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving("left") as server:
        result = evaluate_server(f"{server.url}/v1/", "some/model", [*LAKE, "rollout.max_turns=3"], tasks=2)
    assert (result["policy"], result["tasks"], result["turns"], result["tokens"]) == ("some/model", 2, 3.0, 9.0)
    longest = max(server.asked, key=lambda body: len(body["messages"]))
    assert [message["role"] for message in longest["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert longest["messages"][1]["content"] == "left"
    assert (longest["model"], longest["temperature"], set(server.keys)) == ("some/model", 0.0, {"Bearer secret"})


def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollweave.chat_client.RETRY_SECONDS", 0.0)
    with serving(503, 429, "fine") as server:
        assert ask(server.url) == Reply("fine", "stop", 3)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("code", "message"), [(404, "refuses the request .code 404.*name of the model"), (503, "after 5 tries")]
)
def test_a_server_that_refuses_is_named(code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollweave.chat_client.RETRY_SECONDS", 0.0)
    with serving(code) as server, pytest.raises(ConfigError, match=message):
        evaluate_server(server.url, "m", LAKE, tasks=1)


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollweave.chat_client.RETRY_SECONDS", 0.0)
    with serving("gone soon") as server:
        url = server.url
    with pytest.raises(ConfigError, match=f"{url}/v1 does not answer after 5 tries .*is the server running"):
        ask(url)


def ask(url: str) -> Reply:
    async def main(clock: Clock) -> Reply:
        return await ChatClient(url, "m").ask([{"role": "user", "content": "hello"}], max_tokens=16)

    return run_wall(main)


def test_an_aborted_request_ends_without_an_answer() -> None:
    class Silent(ChatClient):
        async def ask(self, *arguments: Any, **options: Any) -> Reply:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    import asyncio

    asked = asyncio.Event()

    async def main(clock: Clock) -> Completion:
        book = MessageBook()
        engine = ServerEngine(Silent("http://nowhere", "m"), book)
        request = request_of("a#1", "a", book.open("hello").tolist(), 0, Sampling())
        answer = asyncio.ensure_future(engine.generate(request))
        await asked.wait()
        engine.abort("unknown")
        engine.abort("a#1")
        return await answer

    assert run_wall(main) == Completion("a#1", [], "aborted")


def test_a_conversation_is_read_back_from_its_numbers() -> None:
    book = MessageBook()
    tokens = [*book.open("one"), *book.note_answer(Reply("two", "stop", 4)), *book.reply("three", True)]
    assert [message["content"] for message in book.read(token_ids(tokens))] == ["one", "two", "three"]
    assert len(tokens) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", "http://x"], "wants --model NAME too"),
        ([], "say what to evaluate"),
        (["--server", "http://x", "--model", "m"], "--env frozen_lake"),
    ],
)
def test_what_is_missing_on_the_command_line_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["eval", *words])
    assert message in " ".join(capsys.readouterr().err.split())
