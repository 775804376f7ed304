"""Loads the Python objects that a job file names: `file.py:name` or `package.module:name`.

A file name is relative to the folder of the job file. The file is loaded once per process, and again when it has
changed. Its folder is added to the end of `sys.path`, so that it can import files beside it but cannot hide an
installed package. In a worker on another machine the folder has travelled, and lies elsewhere (`MOVED_FOLDERS`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from rollweave.errors import ConfigError

MOVED_FOLDERS = "ROLLWEAVE_MOVED_FOLDERS"
"""The variable that says, as JSON, where the folders of the driver's machine lie on this one. A variable, because the
processes that a worker starts need it too."""


def load_target(target: str, base: Path) -> object:
    """Load the object that `file.py:name` (relative to `base`) or `package.module:name` names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{target!r}: expected `file.py:name` or `package.module:name`")
    module = _load_file(base / place, target) if place.endswith(".py") else _load_module(place, base, target)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{target}: {place} defines no {name!r}{nearest(name, public)}")
    return getattr(module, name)


def split_scheme(target: str) -> tuple[str, str]:
    """`pool://file.py:name` is `pool` and `file.py:name`; without a scheme it is empty."""
    scheme, mark, rest = target.partition("://")
    return (scheme, rest) if mark else ("", target)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one is most like, if any is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'x'?`, or the first known names, or nothing."""
    names = list(known)
    if close := closest(name, names):
        return f"; did you mean {close!r}?"
    return f"; there is {', '.join(sorted(names)[:8])}" if names else ""


def blame(error: BaseException, file: str | None = None) -> str:
    """Describe an error as `TypeError: message (file.py:12)`, with the innermost line of the user's file, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
    else:
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return "".join(traceback.format_exception_only(error)[-1:]).strip() + where


def _load_file(path: Path, target: str) -> ModuleType:
    path = _here(path.resolve())
    if not path.is_file():
        files = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"{target}: no such file: {path}{nearest(path.name, files)}")
    digest = hashlib.blake2b(f"{path}:{path.stat().st_mtime_ns}".encode(), digest_size=6).hexdigest()
    name = f"_rollweave_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    _see(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before the module runs, because dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the boundary to a user's file, which may raise anything
        del sys.modules[name]
        raise ConfigError(f"{target}: the file cannot be loaded: {blame(error, str(path))}") from error
    return module


def _load_module(name: str, base: Path, target: str) -> ModuleType:
    _see(base.resolve())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the boundary to a user's module
        if isinstance(error, ModuleNotFoundError) and error.name and name.startswith(error.name):
            fix = f"no module {error.name!r}; install it, or name a file: `{name.split('.')[-1]}.py:...`"
            raise ConfigError(f"{target}: {fix}") from error
        raise ConfigError(f"{target}: the module cannot be imported: {blame(error)}") from error


def _here(path: Path) -> Path:
    """Where a file of the driver's machine lies on this one."""
    moved = json.loads(os.environ.get(MOVED_FOLDERS, "{}")).get(str(path.parent))
    return path if moved is None else Path(moved) / path.name


def _see(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
