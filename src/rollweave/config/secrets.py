"""Secrets are named, never written: a file says in which environment variable or file a token is.

So the token itself is in no job file, `config.yaml`, event, log, report or message. `Secret` is the type of such a key,
`read_secret` reads it where it is needed, and `without` takes it out of text that comes from elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, ValidationInfo

from rollweave.errors import ConfigError

VARIABLE, FILE = "env:", "file:"

_EXPECTED = (
    "expected env:NAME (an environment variable) or file:PATH, and got something else, which is not shown here in case "
    "it is the secret itself: put that into a variable or a file, and name it"
)


def _check_secret(name: Any, info: ValidationInfo) -> str:
    """Before the check of the type, whose message would show the value."""
    if not isinstance(name, str) or not name.startswith((VARIABLE, FILE)):
        raise ValueError(_EXPECTED)
    kind, _, place = name.partition(":")
    if not place or (kind == "env" and not place.isidentifier()):
        raise ValueError(_EXPECTED)
    base: Path | None = (info.context or {}).get("base")
    if kind == "file" and base is not None:
        return f"{FILE}{(base / Path(place).expanduser()).resolve()}"
    return name


Secret = Annotated[str, BeforeValidator(_check_secret)]
"""`env:NAME` or `file:PATH`, relative to the file that names it."""


def check_secret(name: str, key: str) -> str:
    """The name of a secret that was given as a flag. `key`: the flag, for the message."""
    try:
        return TypeAdapter(Secret).validate_python(name)
    except ValidationError:
        raise ConfigError(f"{key}: {_EXPECTED}") from None


def read_secret(name: str | None, key: str) -> str | None:
    """The secret behind a name. `key`: which setting names it, for the message. None: none is named."""
    if name is None:
        return None
    kind, _, place = name.partition(":")
    if kind == "env":
        found = os.environ.get(place, "").strip()
        missing = f"the environment variable {place} is not set: export it where this process starts"
    else:
        path = Path(place)
        found = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
        missing = f"the file {place} does not exist, or is empty: put the secret there"
    if not found:
        raise ConfigError(f"{key}: {missing}")
    return found


def without(secret: str | None, text: str) -> str:
    """The text, with the secret taken out in case another program repeats it."""
    return text if secret is None else text.replace(secret, "[secret]")
