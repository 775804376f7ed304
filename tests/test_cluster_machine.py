"""Processes as the daemon sees them: real ones, short ones."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rollweave.runtimes import machine

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
FAMILY = [sys.executable, "-S", "-c", "import subprocess, sys; subprocess.run(['sleep', '600'])"]


def test_the_end_of_a_process_is_noticed_and_its_children_go_with_it(tmp_path: Path) -> None:
    process = machine.start(FAMILY, {}, tmp_path / "log")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (found := children.read_text().split()):
        pass

    async def watch() -> None:
        os.kill(process.pid, 9)
        await machine.gone(process)

    asyncio.run(asyncio.wait_for(watch(), 20))
    assert not machine.alive(process)
    command = Path(f"/proc/{found[0]}/cmdline")
    while command.exists() and command.read_bytes():  # it was told to go, and does
        pass


def test_who_stops_watching_harms_nobody(tmp_path: Path) -> None:
    """A daemon that leaves cancels its watchers; the jobs go on."""
    process = machine.start(SLEEPS, {}, tmp_path / "log")

    async def watch() -> None:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(machine.gone(process))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            watching.cancel()

    asyncio.run(watch())
    try:
        assert machine.alive(process)
    finally:
        machine.kill(process)
    asyncio.run(machine.gone(process))
    assert not machine.alive(process)


def test_a_process_has_a_session_of_its_own_and_its_words_go_to_its_log(tmp_path: Path) -> None:
    """It outlives the terminal, and the daemon, that started it."""
    words = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.environ['ROLLWEAVE_TEST'])"
    process = machine.start([sys.executable, "-S", "-c", words], {"ROLLWEAVE_TEST": "yes"}, tmp_path / "log")
    asyncio.run(asyncio.wait_for(machine.gone(process), 20))
    assert (tmp_path / "log").read_text() == "True yes\n"


def test_cores_are_those_of_every_thread() -> None:
    before = os.sched_getaffinity(0)
    try:
        machine.use_cores([min(before)])
        masks = [os.sched_getaffinity(int(thread.name)) for thread in Path("/proc/self/task").iterdir()]
        assert all(mask == {min(before)} for mask in masks)
    finally:
        machine.use_cores(sorted(before))


def test_the_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    token = machine.read_or_make_token(tmp_path / "token")
    assert len(token) >= 32 and machine.read_or_make_token(tmp_path / "token") == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
