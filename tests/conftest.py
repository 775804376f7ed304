"""One thread per test process: several threaded test processes on few cores crawl (and results may differ)."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
