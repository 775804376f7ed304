"""The errors that a user can see, named after the boundary at which they occur.

Programming errors (TypeError, AssertionError, ...) are not wrapped and always show a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping


class RollweaveError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and how to fix it.

    It is shown without a traceback (unless --debug). `DeadlineExceeded` in clock.py is one too.
    """


class ConfigError(RollweaveError):
    """A job or cluster file, an override or a flag is wrong."""


class ModelError(RollweaveError):
    """A policy cannot be loaded or used."""


class EnvironmentFailed(RollweaveError):
    """The user's environment raised, returned a wrong value or hung."""


class RewardFailed(RollweaveError):
    """The user's reward raised or returned a wrong value."""


class RunFolderError(RollweaveError):
    """A run folder exists, is incomplete or cannot be written."""


class UntrainableBatch(RollweaveError):
    """Data without log-probs, versions or transforms reached the trainer."""


class EngineGone(RollweaveError):
    """An engine died or left the run. What it was asked can be asked of another one."""


class WorkerDied(RollweaveError):
    """A process of the run has died; `worker` is its name: `engine`, `trainer`, `host-0` ..."""

    def __init__(self, message: str, worker: str = "", out_of_reach: bool = False) -> None:
        """`out_of_reach`: its machine does not answer; the process itself may have done nothing wrong."""
        super().__init__(message)
        self.worker = worker
        self.out_of_reach = out_of_reach


class PeerLost(RollweaveError):
    """A rank of a sharded trainer lost contact with another one: that one died, or does not answer in time."""


class RanksDisagree(RollweaveError):
    """The ranks of a sharded trainer do not stand at the same version."""


class WorkersFailed(RollweaveError):
    """A call of several workers of a `Cluster` failed on some of them, or could not be made."""

    def __init__(self, message: str, results: Mapping[int, object], failures: Mapping[int, BaseException]) -> None:
        super().__init__(message)
        self.results = results
        """By rank: what the others have done."""
        self.failures = failures


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group that a user can act on: the first `RollweaveError`, else the first error of all."""
    error: BaseException = group.subgroup(RollweaveError) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
