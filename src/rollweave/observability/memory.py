"""Measures how much memory this process uses."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path


def resident_mb() -> float:
    """The resident memory in MB: the present value if the system reports it, else the peak so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
