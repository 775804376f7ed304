"""What the methods of a `Worker` declare about their calls. The decorators only write it down; `Cluster` reads it.

class Generator(Worker):
    @hw_mapping(hw_affinity={"frozen_lake": "H800", "default": "H20"})
    def generate(self, tokens): ...            # to one worker, by the tag of the call

    @register(mode="execute_all")
    def update(self, version): ...             # to every worker

    @register_serverless(attribute="judge", serverless_url="local://rewards.py:score")
    def reward(self, text): return self.judge(text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from rollweave.errors import ConfigError
from rollweave.targets import nearest

CallMode = Literal["execute_all", "rank_zero", "scatter"]
"""`execute_all`: every worker gets the same call; the results are a list by rank. `rank_zero`: only the first worker
gets it. `scatter`: every argument is a list, of which each worker gets its part; the results are joined to one list."""

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_rollweave_declared"


class ServerlessFunction(NamedTuple):
    """A function behind a URL that a worker calls."""

    attribute: str
    """Of the worker."""
    url: str
    token: str | None = None
    """`env:NAME` or `file:PATH`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What decorators say of one method. Without a mode, a call goes to one worker."""

    mode: CallMode | None = None
    hw_affinity: Mapping[str, str] = field(default_factory=dict)
    """Tag of a call -> the device class that suits it; `default`: for every other tag."""
    serverless: ServerlessFunction | None = None


def register(mode: CallMode = "execute_all") -> Callable[[F], F]:
    """The method is called on several workers at once."""
    if mode not in get_args(CallMode):
        raise ConfigError(f"register: there is no mode {mode!r}{nearest(mode, get_args(CallMode))}")
    return _declaring(mode=mode)


def hw_mapping(hw_affinity: Mapping[str, str]) -> Callable[[F], F]:
    """A call of the method goes to one worker, on the device class that suits its tag (`tag_name` of the call)."""
    if "default" not in hw_affinity:
        raise ConfigError("hw_mapping: hw_affinity needs an entry 'default', for tags that it does not name")
    return _declaring(hw_affinity=dict(hw_affinity))


def register_serverless(attribute: str, serverless_url: str, token: str | None = None) -> Callable[[F], F]:
    """The method calls `self.<attribute>`, which is a function behind a URL. `token`: `env:NAME` or `file:PATH`, sent
    to an `http(s)://` function."""
    return _declaring(serverless=ServerlessFunction(attribute, serverless_url, token))


def declared_by(method: object) -> Declared | None:
    """None: no decorator is on it, and it is no method of the cluster."""
    found = getattr(method, _MARK, None)
    return found if isinstance(found, Declared) else None


def _declaring(**what: Any) -> Callable[[F], F]:
    def decorate(method: F) -> F:
        declared = replace(declared_by(method) or Declared(), **what)
        if declared.mode is not None and declared.hw_affinity:
            raise ConfigError(
                f"{method.__qualname__}: register(mode={declared.mode!r}) calls several workers and hw_mapping one: "
                "remove one of the two"
            )
        setattr(method, _MARK, declared)
        return method

    return decorate
