"""The sections of a reward that say how its function is called, and how many instances compute it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section, Target
from rollweave.config.ready_rewards import CodeRewardConfig, JudgeRewardConfig, MathRewardConfig
from rollweave.config.secrets import Secret
from rollweave.targets import nearest, split_scheme

SCHEMES = ("local", "pool", "ray-serve", "http", "https")
REMOTE = ("http", "https")
"""Functions that are started and stopped elsewhere."""
ELASTIC = ("pool", "ray-serve")
"""Functions whose instances a run starts and stops."""


class CallConfig(Section):
    """How a function that is not local is called."""

    timeout: PositiveFloat = 30.0
    """Seconds of one try. All tries together have `rollout.deadlines.reward`."""
    tries: PositiveInt = 4
    """A call fails after so many tries, unless the function has not answered any other call meanwhile either: then the
    calls wait until it answers again, up to `rollout.deadlines.reward`."""
    backoff: PositiveFloat = 0.5
    """Seconds before the second try; the time doubles with each further one. A random part of up to half is taken off,
    so that calls which failed together do not come back together."""
    backoff_max: PositiveFloat = 10.0
    """Seconds between two tries at most."""
    hedge_after: PositiveFloat | None = None
    """After so many seconds without an answer a second try is sent beside the first one, and the first answer counts.
    none: never."""
    concurrency: PositiveInt = 256
    """Tries under way at once, in each host; a tenth as many more may be hedges."""
    breaker_failures: PositiveInt = 10
    """The circuit breaker opens after so many failed tries without one that was answered, ..."""
    breaker_seconds: PositiveFloat = 2.0
    """... if they were spread over so many seconds. While it is open only probes are sent. For `http(s)://` and
    `ray-serve://`."""
    probe_seconds: PositiveFloat = 1.0
    """Seconds between two probes, each of which is the try of one call; the first that is answered closes the
    breaker."""
    token: Secret | None = None
    """Sent as `Authorization: Bearer ...`: `env:NAME` or `file:PATH`, never the token itself. For `http(s)://`."""
    max_request_mb: PositiveFloat = 8.0
    """A larger trajectory is not sent, and its reward has failed."""
    max_answer_mb: PositiveFloat = 1.0
    """A larger answer is not read to its end, and the reward has failed."""


class InstancesConfig(Section):
    """The instances that compute a reward: processes of `pool://`, replicas of `ray-serve://`, or those of a function
    platform, of which only memory and price are known here."""

    minimum: Annotated[int, Field(ge=0)] = 0
    """Instances that stay; 0: the first call starts one."""
    maximum: PositiveInt = 4
    """Instances at most, in each host for `pool://`."""
    idle_seconds: NonNegative = 60.0
    """An instance that had no call for so long stops."""
    memory_gb: PositiveFloat = 2.0
    """Memory of an instance. In a `pool://` a call that needs more fails, and a process that holds more than half of it
    after a call is replaced."""
    price_per_gb_second: NonNegative = 0.0
    """What the platform charges, in any currency; `function/<reward>/cost` counts in it."""

    @model_validator(mode="after")
    def _check_order(self) -> InstancesConfig:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum is {self.minimum}, more than maximum ({self.maximum}): lower it")
        return self


READY_REWARDS = {
    "code": "rollweave.rewards.code.reward:CodeReward",
    "math": "rollweave.rewards.math:MathReward",
    "judge": "rollweave.rewards.judge:JudgeReward",
}
"""The class that makes each ready reward from its section."""


class RewardConfig(Section):
    """A reward, added to the environment's step rewards: a function of your own, or a ready one (`code`, `math`,
    `judge`). Each item has exactly one of these four keys."""

    function: Target = ""
    """`file.py:name`: takes a Trajectory, returns a float or a RewardResult. `pool://file.py:name` calls it in
    processes of its own, `ray-serve://file.py:name` in a deployment of Ray Serve, and `http(s)://...` is a function
    anywhere."""
    code: CodeRewardConfig | None = None
    math: MathRewardConfig | None = None
    judge: JudgeRewardConfig | None = None
    name: str = ""
    """Shown in metrics as reward/<name>; default: the function's name, or that of the ready reward."""
    weight: float = 1.0
    tasks: tuple[str, ...] = ()
    """Names of the tasks that it scores; none: all."""
    call: CallConfig = CallConfig()
    instances: InstancesConfig = InstancesConfig()

    @property
    def ready(self) -> str | None:
        """Which ready reward it is, if it is one."""
        return next((name for name in READY_REWARDS if getattr(self, name) is not None), None)

    @property
    def scheme(self) -> str:
        return split_scheme(self.function)[0] or "local"

    @property
    def shown_name(self) -> str:
        """In metrics, events and messages."""
        if self.name or self.ready:
            return self.name or str(self.ready)
        if self.scheme in REMOTE:
            url = urlsplit(self.function)
            return url.path.rstrip("/").rpartition("/")[2] or url.hostname or "function"
        return self.function.rpartition(":")[2]

    @model_validator(mode="after")
    def _check_one_kind(self) -> RewardConfig:
        given = [name for name in ("function", *READY_REWARDS) if getattr(self, name)]
        if len(given) != 1:
            found = f"{' and '.join(given)} are two rewards" if given else "no reward"
            raise ValueError(f"{found}: give each item of the list one of function, {', '.join(READY_REWARDS)}")
        return self

    @model_validator(mode="after")
    def _check_scheme(self) -> RewardConfig:
        scheme = self.scheme
        if scheme not in SCHEMES:
            raise ValueError(
                f"function begins with {scheme}://, which is no kind of function{nearest(scheme, SCHEMES)}"
            )
        if scheme in REMOTE and urlsplit(self.function).username is not None:
            raise ValueError("function holds a user name or a password: name a secret in call.token instead")
        if scheme in REMOTE and not urlsplit(self.function).hostname:
            raise ValueError(f"function is {self.function!r}, which names no host: write http://HOST:PORT/PATH")
        self._refuse(CallConfig, self.call, "call", set(CallConfig.model_fields) if scheme == "local" else set())
        self._refuse(CallConfig, self.call, "call", {"token"} if scheme not in REMOTE else set())
        unused = set() if scheme in ELASTIC else {"minimum", "maximum", "idle_seconds"}
        self._refuse(InstancesConfig, self.instances, "instances", unused)
        return self

    def _refuse(self, kind: type[Section], section: Section, name: str, unused: set[str]) -> None:
        """Refuse a setting that this kind of function does not heed."""
        for key in sorted(unused & section.model_fields_set):
            if getattr(section, key) != kind.model_fields[key].default:
                raise ValueError(f"{name}.{key} has no effect on a {self.scheme}:// function: remove it")
