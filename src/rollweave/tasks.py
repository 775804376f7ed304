"""Tasks and their sources: a Task describes where an episode starts, a TaskSource gives tasks in a fixed order.

A source is a pure function of its seed and a position: `task(i)` is always the i-th task. So a checkpoint saves
only the position, and a crash can neither skip nor repeat a task. The held-out split has no task in common with
training, and has an order of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from rollweave.errors import ConfigError
from rollweave.seeds import derive, generator


@dataclass(frozen=True, slots=True)
class Task:
    """Where an episode starts: its environment, its seed, and its row of the data file, if there is one."""

    id: str
    environment: str
    seed: int
    data: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0


class TaskSource(Protocol):
    """Gives tasks by position. An implementation has no state beside what its seed and the position determine."""

    def task(self, index: int) -> Task:
        """The training task at this position. The order has no end: after an epoch the next one begins."""
        ...

    def held_out(self, count: int) -> list[Task]:
        """The first `count` tasks of the evaluation split; fewer if the split is smaller."""
        ...


@dataclass(slots=True)
class Cursor:
    """Reads a source from one position to the next. Only `position` has to be saved."""

    source: TaskSource
    position: int = 0

    def next(self) -> Task:
        task = self.source.task(self.position)
        self.position += 1
        return task


@dataclass(frozen=True, slots=True)
class SeedSource:
    """Tasks for environments that generate their levels from a seed: maps, puzzles and the like.

    `size` levels make an epoch (None: every task is new). Training seeds are below 2**30 and held-out seeds are not,
    so no seed is in both. `data["split"]` tells the environment its split: an environment that generates the same level
    from many seeds must itself keep the levels of the two splits apart.
    """

    environment: str
    seed: int
    size: int | None = None

    def task(self, index: int) -> Task:
        if self.size is None:
            return self._make("train", index, epoch=0)
        epoch, place = divmod(index, self.size)
        return self._make("train", _shuffled(self.size, self.seed, epoch)[place], epoch)

    def held_out(self, count: int) -> list[Task]:
        return [self._make("heldout", index, epoch=0) for index in range(count)]

    def _make(self, split: str, index: int, epoch: int) -> Task:
        # The split is in the highest of 31 bits, because environments use the low ones (`seed % 10`).
        level = derive(self.seed, self.environment, split, index) % 2**30 + 2**30 * (split == "heldout")
        return Task(f"{self.environment}/{split}/{index}", self.environment, level, {"split": split}, epoch)


class RowSource:
    """Tasks from the rows of a file. The last `held_out_share` of a seeded shuffle is kept for evaluation."""

    def __init__(
        self, environment: str, rows: Sequence[dict[str, Any]], seed: int, held_out_share: float = 0.1
    ) -> None:
        if not rows:
            raise ConfigError(f"{environment}: no rows; add at least one task")
        self.environment = environment
        self.rows = rows
        self.seed = seed
        order = _shuffled(len(rows), seed, -1)
        kept = min(max(1, round(len(rows) * held_out_share)), len(rows) - 1) if held_out_share > 0 else 0
        self.train_rows = order[: len(rows) - kept]
        self.held_out_rows = order[len(rows) - kept :]

    def task(self, index: int) -> Task:
        epoch, place = divmod(index, len(self.train_rows))
        row = self.train_rows[_shuffled(len(self.train_rows), self.seed, epoch)[place]]
        return self._make(row, epoch)

    def held_out(self, count: int) -> list[Task]:
        return [self._make(row, 0) for row in self.held_out_rows[:count]]

    def _make(self, row: int, epoch: int) -> Task:
        seed = derive(self.seed, self.environment, "row", row, epoch) & 0x7FFF_FFFF
        return Task(f"{self.environment}/row/{row}", self.environment, seed, self.rows[row], epoch)


class Mixture:
    """A weighted mixture of sources. A draw from the seed determines the source of each position."""

    def __init__(self, sources: Sequence[TaskSource], weights: Sequence[float], seed: int) -> None:
        if len(sources) != len(weights) or any(w <= 0 for w in weights):
            raise ConfigError("a mixture needs one positive weight per source")
        self.sources = list(sources)
        self.weights = list(weights)
        self.seed = seed
        self._choices: list[int] = []
        self._places: list[int] = []  # position i is the _places[i]-th task of its source
        self._handed_out = [0] * len(sources)

    def task(self, index: int) -> Task:
        while len(self._choices) <= index:
            draw = generator(self.seed, "mixture", len(self._choices))
            choice = draw.choices(range(len(self.sources)), self.weights)[0]
            self._choices.append(choice)
            self._places.append(self._handed_out[choice])
            self._handed_out[choice] += 1
        return self.sources[self._choices[index]].task(self._places[index])

    def held_out(self, count: int) -> list[Task]:
        """Divide the tasks among the sources by weight, with at least one for each source if `count` allows. If a split
        is too small, the other sources get its rest."""
        splits = [source.held_out(count) for source in self.sources]
        shares = [0] * len(splits)
        for _ in range(min(count, sum(map(len, splits)))):
            open_splits = [i for i, split in enumerate(splits) if shares[i] < len(split)]
            # The next task goes to the source with the fewest tasks for its weight; one without tasks comes first.
            shares[min(open_splits, key=lambda i: (shares[i] / self.weights[i], -self.weights[i]))] += 1
        return [task for split, share in zip(splits, shares, strict=True) for task in split[:share]]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a `.jsonl` or `.parquet` file as dictionaries."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; name a .jsonl or .parquet file with one task per row")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix != ".jsonl":
        raise ConfigError(f"{path}: rows are read from .jsonl or .parquet files, not {path.suffix or 'others'}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    # Not splitlines(), which would also split at separators inside JSON strings, such as U+2028.
    lines = enumerate(text.split("\n"), 1)
    return [_parse_row(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _parse_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not valid JSON ({error.msg}); write one object per line") from None
    if not isinstance(row, dict):
        raise ConfigError(f'{where}: expected an object like {{"prompt": ...}}, got {type(row).__name__}')
    return row


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError(f"{path}: reading parquet needs pyarrow: pip install 'rollweave[parquet]'") from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise ConfigError(f"{path}: not a readable parquet file ({error})") from error
    return rows


@lru_cache(maxsize=8)
def _shuffled(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    generator(seed, "order", epoch).shuffle(order)
    return order
