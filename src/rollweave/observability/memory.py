"""Measures how much memory a process uses."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path


def resident_mb(children: Iterable[int] = ()) -> float:
    """The resident memory of this process and these others in MB: the present value if the system reports it, else this
    process's peak so far."""
    if Path("/proc/self/statm").exists():
        pages = _resident_pages(os.getpid()) + sum(map(_resident_pages, children))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def _resident_pages(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # it has just ended
        return 0
