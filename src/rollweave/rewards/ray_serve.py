"""A reward as a deployment of Ray Serve, which starts and stops replicas by itself. It needs the extra `ray-serve`.

The application is named after the function, so runs on one cluster that name the same function share its replicas.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError
from rollweave.rewards.answering import Answerer
from rollweave.rewards.delivery import TryFailed
from rollweave.rewards.scorer import call_in_thread
from rollweave.rewards.wire import RewardAnswer, WireRequest, WrongMessage, read_answer

CALLS_PER_REPLICA = 4
"""Calls that a replica computes at once; with more, Ray Serve starts another one."""


class RewardReplica:
    """What runs in a replica."""

    def __init__(self, target: str, base: str) -> None:
        self._answerer = Answerer(target, Path(base), call_in_thread)

    async def __call__(self, body: bytes) -> str:
        return await self._answerer.answer(body)


class RayServeFunction:
    def __init__(self, target: str, config: RewardConfig, base: Path) -> None:
        _import_serve()
        self._target = target
        self._config = config
        self._base = base.resolve()
        self._handle: Any = None
        self._deploying = asyncio.Lock()

    async def send(self, request: WireRequest) -> RewardAnswer:
        from ray.exceptions import RayError

        try:
            async with self._deploying:
                if self._handle is None:
                    self._handle = await asyncio.to_thread(self._deploy)
            text = await self._handle.remote(request.body)
        except (RayError, RuntimeError) as error:
            raise TryFailed("dropped", f"Ray Serve: {type(error).__name__}: {error!s:.200}") from error
        try:
            return read_answer(text, request.key)
        except WrongMessage as wrong:
            raise TryFailed("garbled", str(wrong)) from wrong

    async def aclose(self) -> None:
        """The replicas stay: another run may share them, and idle ones stop by themselves."""

    def _deploy(self) -> Any:
        import ray

        serve = _import_serve()
        if not ray.is_initialized():
            raise ConfigError("ray-serve:// needs a Ray cluster: set runtime.type=ray")
        limits = self._config.instances
        scaling = {
            "min_replicas": limits.minimum,
            "max_replicas": limits.maximum,
            "target_ongoing_requests": CALLS_PER_REPLICA,
            "downscale_delay_s": limits.idle_seconds,
            "upscale_delay_s": 0.0,
        }
        options = {"memory": limits.memory_gb * 2**30, "num_cpus": 0}
        deployment = serve.deployment(RewardReplica).options(
            autoscaling_config=scaling, max_ongoing_requests=2 * CALLS_PER_REPLICA, ray_actor_options=options
        )
        digest = blake2b(f"{self._target} {scaling}".encode(), digest_size=4).hexdigest()
        name = f"reward-{self._config.shown_name}-{digest}"
        running = serve.status().applications.get(name)
        if running is not None and running.status == "RUNNING":
            return serve.get_app_handle(name)
        return serve.run(deployment.bind(self._target, str(self._base)), name=name, route_prefix=None)


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError(f"ray-serve:// needs Ray Serve ({error}): pip install 'rollweave[ray-serve]'") from error
    return serve
