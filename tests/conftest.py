"""One thread per test process: several threaded test processes on few cores crawl (and results may differ).

Hypothesis draws the same examples every time, so that a change is judged by what it changed. To look for new ones:
HYPOTHESIS_PROFILE=explore pytest tests/test_pipelines_virtual.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from contracts.ray_workers import RayWorkers

pytest.register_assert_rewrite("contracts")

INSTALL_BUBBLEWRAP = "apt-get install bubblewrap"
"""Part of the reason why a test of sandboxes is skipped (`sandboxes.launcher_or_skip`)."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run says which tests this machine could not run, and how to make it able to."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    skipped = [reason for reason in reasons if INSTALL_BUBBLEWRAP in reason]
    if skipped:
        reporter.write_line(f"{len(skipped)} tests of sandboxes were skipped; to run them: {INSTALL_BUBBLEWRAP}")


@pytest.fixture(scope="session")
def ray_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayWorkers]:
    """Ray and a tiny policy, for whatever contract wants a worker in a process of its own."""
    from contracts.ray_workers import RayWorkers, private_ray
    from training_data import tiny_policy

    policy = tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")
    with private_ray():
        yield RayWorkers(policy, tmp_path_factory.mktemp("weights"))
