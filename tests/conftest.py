"""One thread per test process: several threaded test processes on few cores crawl (and results may differ).

Hypothesis draws the same examples every time, so that a change is judged by what it changed. To look for new ones:
HYPOTHESIS_PROFILE=explore pytest tests/test_pipelines_virtual.py
"""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
