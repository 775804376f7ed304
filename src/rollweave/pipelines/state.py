"""RunState: how far a run has come. The pipeline writes it; what runs beside it reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RunState:
    version: int = 0
    """Train steps completed."""
    saved: int | None = None
    """The version of the newest checkpoint of this history."""
    stopping: bool = False
    """The user asked for the end: no further step."""
    done: bool = False
    """The last step is trained, earlier than planned: nothing is begun any more."""
    trainer_busy: bool = False
    """It trains, and is ahead of `version`, or it saves."""

    def stop(self) -> bool:
        """Ask for the end. Returns whether the loop may be cancelled where it stands.

        If not, it ends by itself, soon: a step that is being trained is booked first, or its weights would be
        saved under the name of the step before.
        """
        self.stopping = True
        return not self.trainer_busy
