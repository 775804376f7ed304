"""What travels to machines that share no disk with the driver's: the policy, and the Python files that a job names.

A file that a job names may import the files beside it, so its folder travels: Python files and packages, nothing else.
Data that an environment opens by itself cannot be known here: it has to lie where every machine finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollweave.config.environments import PythonEnvironmentConfig
from rollweave.config.job import Job
from rollweave.environments.registry import members
from rollweave.errors import ConfigError
from rollweave.targets import split_scheme

MOST_CODE_MB = 32.0
"""Of Python files in the folder of one that the job names. More of them is not a job's code but a mistake."""

POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Luggage:
    """A folder of the driver's machine, and what of it travels."""

    name: str
    """Of the folder on the other machine."""
    folder: Path
    files: tuple[Path, ...]
    """Relative to the folder."""


def pack_luggage(job: Job, policy: Path) -> list[Luggage]:
    """Everything that workers of this job read from disk. Raises ConfigError if something cannot travel."""
    code = [Luggage(f"code-{number}", folder, _code(folder)) for number, folder in enumerate(_code_folders(job))]
    return [Luggage(POLICY, policy, tuple(_files(policy))), *code]


def _code_folders(job: Job) -> list[Path]:
    targets = [split_scheme(reward.function)[1] for reward in job.rewards]
    for environment in members(job.environment).values():
        if isinstance(environment, PythonEnvironmentConfig):
            targets.append(environment.target)
    files = [Path(target.rpartition(":")[0]) for target in targets if ".py:" in target]
    return sorted({file.resolve().parent for file in files})


def _code(folder: Path) -> tuple[Path, ...]:
    files = tuple(_python_files(folder, folder))
    megabytes = sum((folder / file).stat().st_size for file in files) / 1e6
    if megabytes > MOST_CODE_MB:
        raise ConfigError(
            f"{folder} holds {megabytes:.0f} MB of Python files, and at most {MOST_CODE_MB:.0f} MB travel to other "
            "machines: put the file that the job names into a folder of its own, or install its package on every node "
            "and name it as package.module:name"
        )
    return files


def _python_files(folder: Path, root: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.is_file():
            yield path.relative_to(root)
        elif path.is_dir() and (path / "__init__.py").is_file():
            yield from _python_files(path, root)


def _files(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
