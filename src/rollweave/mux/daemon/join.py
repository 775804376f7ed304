"""How a training process finds out that it shares its pools. Light: a job alone loads nothing of it."""

from __future__ import annotations

import os

from rollweave.pipelines.turns import MakeTurns, alone

FOLDER, JOB, ATTEMPT = "ROLLWEAVE_CLUSTER", "ROLLWEAVE_CLUSTER_JOB", "ROLLWEAVE_CLUSTER_ATTEMPT"
"""What the daemon tells a process that it starts: its state folder, the job's name, and which process of it this is."""


def join_cluster() -> MakeTurns:
    """Wait for leave to start, if a daemon started us; then how to ask for turns on a clock."""
    if not os.environ.get(FOLDER):
        return alone
    from rollweave.mux.daemon.member import Member

    member = Member.of(os.environ[FOLDER], os.environ[JOB], int(os.environ[ATTEMPT]))
    member.start()
    return member.on
