"""The commands' side of the cluster: asks the daemon, and says what to do when it cannot."""

from __future__ import annotations

from typing import Any

import httpx2

from rollweave.errors import RollweaveError
from rollweave.mux.daemon.files import NoDaemon, StateFolder

TIMEOUT = 10.0


class ClusterError(RollweaveError):
    """The daemon said no, and why."""


class Client:
    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body or {})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        address = self._folder.address()
        # Plain HTTP: there are no certificates, and loading some takes a tenth of a second.
        options: dict[str, Any] = {"timeout": TIMEOUT, "trust_env": False, "verify": False}
        headers = {"Authorization": f"Bearer {self._token()}"}
        try:
            with httpx2.Client(base_url=address["url"], headers=headers, **options) as client:
                answer = client.request(method, path, json=body)
        except httpx2.TransportError as error:
            raise NoDaemon(
                f"the daemon of {self._folder.path} does not answer at {address['url']} ({type(error).__name__}): "
                f"start it again with `rollweave cluster start --state {self._folder.path}` (its jobs are not lost); "
                f"what it said last is in {self._folder.log}"
            ) from None
        if answer.status_code >= 400:
            raise ClusterError(_words(answer))
        return answer.json()

    def _token(self) -> str:
        try:
            return self._folder.token.read_text().strip()
        except OSError as error:
            raise NoDaemon(
                f"{self._folder.token}: cannot be read ({error.strerror}); name the daemon's --state"
            ) from None


def _words(answer: httpx2.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError):
        return f"the daemon failed with code {answer.status_code}; see its log"
    return detail if isinstance(detail, str) else "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in detail)
