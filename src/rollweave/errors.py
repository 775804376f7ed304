"""The errors a person meets, named after the boundary they crossed.

    RollweaveError            shown without a traceback (unless --debug); the message names the fix
    ├── ConfigError           a job or cluster file, an override, a flag
    ├── ModelError            a policy that cannot be loaded or used
    ├── EnvironmentFailed     the user's environment raised, returned nonsense or hung
    ├── RewardFailed          the user's reward raised or returned nonsense
    ├── RunFolderError        a run folder that exists, is incomplete or cannot be written
    ├── UntrainableBatch      data without log-probs, versions or transforms reached the trainer
    ├── DeadlineExceeded      something was waited for too long (defined in clock.py)
    ├── EngineGone            an engine died or left; requests go to another one
    └── WorkerDied            a worker process of the run was killed or crashed

Programming errors stay what they are (TypeError, AssertionError, ...) and always show a traceback.
"""

from __future__ import annotations


class RollweaveError(Exception):
    """Something the user can fix. The message says what, where and how."""


class ConfigError(RollweaveError):
    pass


class ModelError(RollweaveError):
    pass


class EnvironmentFailed(RollweaveError):
    pass


class RewardFailed(RollweaveError):
    pass


class RunFolderError(RollweaveError):
    pass


class UntrainableBatch(RollweaveError):
    pass


class EngineGone(RollweaveError):
    """An engine died or left the run. What it was asked can be asked of another one."""


class WorkerDied(RollweaveError):
    """A process of the run is gone; `worker` is its name: `engine`, `trainer`, `host-0` ..."""

    def __init__(self, message: str, worker: str = "") -> None:
        super().__init__(message)
        self.worker = worker


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of everything that went wrong at once, what a person can act on: one of ours if there is one, else the first."""
    leaves = _leaves(group)
    return next((leaf for leaf in leaves if isinstance(leaf, RollweaveError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
