"""A reward as a deployment of Ray Serve, on a real Ray of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from reward_functions import config, outcomes, reward_file, scoring
from rollweave.config.rewards import CallConfig, InstancesConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def serve() -> Any:
    """Ray Serve of a private Ray; skipped where the extra is not installed."""
    try:
        from ray import serve
    except ImportError:
        pytest.skip("pip install 'rollweave[ray-serve]'")
    import ray

    ray.init("local", include_dashboard=False, num_cpus=2, log_to_driver=False)
    yield serve
    serve.shutdown()
    ray.shutdown()


def test_replicas_answer_and_a_failing_call_is_its_own(serve: Any, tmp_path: Path) -> None:
    file = reward_file(tmp_path)
    call = CallConfig(tries=2, timeout=100.0)
    function = config(f"ray-serve://{file}:score", call, InstancesConfig(maximum=2, memory_gb=0.2))

    async def main() -> list[float | str]:
        async with scoring(function) as scorer:
            return await outcomes(scorer, ["a", "bb", "raise", "ccc"])

    first, second, failed, third = asyncio.run(main())
    assert (first, second, third) == (1.0, 2.0, 3.0)
    assert "KeyError: 'no such column'" in str(failed)
    (name,) = serve.status().applications
    assert name.startswith("reward-score-")
