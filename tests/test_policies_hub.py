"""Models of the hub, through the commands, against a small hub of our own on this machine (`HF_ENDPOINT`)."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import rollweave
from rollweave.cli.main import main
from training_data import tiny_policy

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "acme/tiny-chat"
TOKEN = "hf_secret"

JOB = """\
model: acme/tiny-chat
environment: frozen_lake
rollout: {groups_per_step: 2, group_size: 2, environments: 4, max_turns: 2, sampling: {max_tokens: 2}}
training: {steps: 1}
runtime: {type: inline, threads: 1}
evaluation: {every: 0}
logging: {tensorboard: false}
"""


@dataclass
class Hub:
    """Answers as the hub does for one model: what it holds, and its files."""

    folder: Path
    gated: bool = False
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        if f"/{NAME}/" not in f"{path}/":
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        if self.gated and token != f"Bearer {TOKEN}":
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
        if path.startswith("/api/models/"):
            return self._about(path)
        file = self.folder / path.rpartition("/")[2]
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        data = file.read_bytes()
        return 200, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, data

    def _about(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if not path.endswith(("/revision/main", NAME)):
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b""
        files = [{"rfilename": file.name} for file in sorted(self.folder.iterdir())]
        about = {"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": files, "tags": [], "private": False}
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def do_GET(self) -> None:
            self._send(with_body=True)

        def _send(self, with_body: bool) -> None:
            status, headers, data = hub.answer(self.path.partition("?")[0], self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(tiny_policy(tmp_path / "served"))
    (hub.folder / "pytorch_model.bin").write_bytes(b"the same weights in another format")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


def train(folder: Path, *overrides: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", str(folder / "job.yaml"), *overrides, "--out", str(folder / "run")])
    return ended.value.code if isinstance(ended.value.code, int) else 0


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """What the command says; nothing may have been written for a run."""
    assert train(folder, *overrides) == 2
    assert not (folder / "run").exists()
    return capsys.readouterr().err


def test_a_job_trains_a_model_of_the_hub(tmp_path: Path, cache: Path, hub: Hub) -> None:
    assert train(tmp_path) == 0
    resolved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert resolved["model"] == {"type": "hub", "name": NAME, "revision": "main"}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 1
    (fetched,) = (cache / "rollweave" / "hub").iterdir()
    assert (fetched / "model.safetensors").read_bytes() == (hub.folder / "model.safetensors").read_bytes()
    assert not any("pytorch_model" in path for path in hub.asked) and not (fetched / ".cache").exists()


def test_a_fetched_model_needs_no_hub(tmp_path: Path, hub: Hub) -> None:
    first = rollweave.evaluate(NAME, env="frozen_lake", tasks=2, rollout={"max_turns": 2})
    asked = len(hub.asked)
    again = rollweave.evaluate(NAME, env="frozen_lake", tasks=2, rollout={"max_turns": 2})
    assert len(hub.asked) == asked > 0
    assert first == again and first["tasks"] == 2


def test_a_machine_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with socket.socket() as taken:  # a port that is ours and that does not listen
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        said = refused(tmp_path, capsys)
    for part in (f"model {NAME} could not be fetched", f"the hub at {endpoint}", str(tmp_path / "cache")):
        assert part in said
    assert "HF_ENDPOINT" in said and "model: ./tiny-chat" in said


def test_a_name_that_the_hub_does_not_know(tmp_path: Path, hub: Hub, capsys: Any) -> None:
    said = refused(tmp_path, capsys, "model=acme/tiny-chatt")
    assert "model acme/tiny-chatt was not found, or is private: check its name" in said and "HF_TOKEN" in said
    assert "model: ./tiny-chatt" in said


def test_a_revision_that_the_model_does_not_have(tmp_path: Path, hub: Hub, capsys: Any) -> None:
    assert f"model {NAME} has no revision 'v9': change or remove model.revision" in refused(
        tmp_path, capsys, "model.revision=v9"
    )


def test_a_gated_model_opens_with_a_token(
    tmp_path: Path, hub: Hub, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = True
    said = refused(tmp_path, capsys)
    assert f"model {NAME} is gated: accept its conditions at" in said and "HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert train(tmp_path, "--dry-run") == 0


def test_an_unsupported_kind_is_refused_before_its_weights_are_fetched(tmp_path: Path, hub: Hub, capsys: Any) -> None:
    config = hub.folder / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"mamba"'))
    said = refused(tmp_path, capsys)
    assert f"model {NAME}: " in said and "is a 'mamba' model; supported are llama" in said
    assert not any(path.endswith(".safetensors") for path in hub.asked)


def test_a_model_without_safetensors(tmp_path: Path, hub: Hub, capsys: Any) -> None:
    (hub.folder / "model.safetensors").unlink()
    assert "has no config.json with *.safetensors weights" in refused(tmp_path, capsys)


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path, hub: Hub, capsys: Any) -> None:
    cache.write_text("a file where the folder should be")
    assert "XDG_CACHE_HOME" in refused(tmp_path, capsys)
