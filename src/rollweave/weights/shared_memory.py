"""A folder in shared memory for as long as this process lives, however it ends.

Memory that a killed run left behind would be missing until the machine restarts. So the owner holds a lock, which
dies with it, and the next run sweeps up the folders whose lock is not held.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "rollweave-"
LOCK = "owner.lock"

YOUNG_SECONDS = 60.0
"""A folder this young may be about to be locked."""


@contextmanager
def shared_folder(place: Path | None = None) -> Iterator[Path]:
    """A new folder in `place`: by default in shared memory, where there is such a thing."""
    place = place or (Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir()))
    sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in place.glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < YOUNG_SECONDS:
                continue
            with (folder / LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another user's, in use, or gone by now
            continue
