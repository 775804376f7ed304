"""The control plane and the command line stay light: nothing heavy is loaded by importing them."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rollweave

HEAVY = {"torch", "ray", "transformers", "gymnasium", "tensorboard"}
LIGHT_PACKAGES = ("rollout", "pipelines", "simulation", "mux", "config", "observability")
LIGHT_MODULES = ("clock", "errors", "seeds", "tasks", "trajectory", "engines.protocol", "training.protocol")


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running some code."""
    code += "\nimport json, sys\nprint('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stdout.splitlines()[-1]))


def modules_of(package: str) -> list[str]:
    folder = Path(rollweave.__path__[0]) / package
    inner = pkgutil.walk_packages([str(folder)], f"rollweave.{package}.")
    return [f"rollweave.{package}", *(module.name for module in inner)]


def test_importing_rollweave_is_light() -> None:
    assert not loaded_after("import rollweave") & (HEAVY | {"pydantic"})


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_every_module_of_a_light_package_is_light(package: str) -> None:
    imports = "\n".join(f"import {module}" for module in modules_of(package))
    assert not loaded_after(imports) & HEAVY


def test_the_other_modules_of_the_control_plane_are_light() -> None:
    imports = "\n".join(f"import rollweave.{module}" for module in LIGHT_MODULES)
    assert not loaded_after(imports) & HEAVY


def loaded_by_command(*words: str) -> set[str]:
    return loaded_after(f"from rollweave.cli.main import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass")


def test_the_first_help_is_very_light() -> None:
    assert not loaded_by_command("--help") & (HEAVY | {"pydantic", "rich", "numpy"})


@pytest.mark.parametrize("command", ["train", "eval", "env", "report", "doctor"])
def test_the_help_of_a_command_is_light(command: str) -> None:
    # typer itself brings pydantic as soon as it looks at a command's options.
    assert not loaded_by_command(command, "--help") & (HEAVY | {"rich", "numpy"})
