"""The rules of the control plane: they catch what they should, let pass what they should, and the code keeps them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.lint_control_plane import check, control_plane_files, lint

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import time as t",
        "from time import monotonic",
        "def f():\n    import time",
        "import random\nrandom.random()",
        "import random\nrandom.seed(0)",
        "import random\nr = random.Random(3)",
        "import random as r\nr.choice([1])",
        "from random import choice",
        "from random import Random\nr = Random(3)",
        "import numpy as np\nnp.random.rand()",
        "from numpy import random",
        "import os\nos.urandom(8)",
        "import uuid",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()",
        "import asyncio\nasyncio.create_task(f())",
        "import asyncio\nt = asyncio.create_task",
        "import asyncio as aio\naio.ensure_future(f())",
        "from asyncio import create_task",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
        "loop.create_task(f())",
        "self._loop.create_task(f())",
        "loop.run_in_executor(None, f)",
        "import asyncio\nasyncio.to_thread(f)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)",
        "import threading",
        "from threading import Lock",
        "import concurrent.futures",
        "from concurrent.futures import ThreadPoolExecutor",
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
        "def f():\n    import ray",
        "from transformers import AutoModel",
        "import typing\nif not typing.TYPE_CHECKING:\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import torch",
        "hash('group/3')",
    ],
)
def test_what_the_control_plane_may_not_do(source: str) -> None:
    assert check(source, "x.py")


@pytest.mark.parametrize(
    "source",
    [
        "async def f(clock):\n    await clock.sleep(1)\n    return clock.time()",
        "from rollweave.seeds import generator\nr = generator(0, 'group').random()",
        "import random\ndef f(r: random.Random) -> None:\n    r.choice([1])",
        "from random import Random\ndef f(r: Random) -> None: ...",
        "import asyncio\nasync def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(g())",
        "import asyncio\nloop = asyncio.get_running_loop()\nloop.time()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "from rollweave.engines.torch import time",
        "import timeit_like_name",
        "seconds = {'time': 3}\nseconds['time']",
        "from . import ray",
        "class A:\n    def __hash__(self) -> int:\n        return 3",
    ],
)
def test_what_it_may_do(source: str) -> None:
    assert check(source, "x.py") == []


def test_a_message_names_the_file_the_line_and_the_fix() -> None:
    (violation,) = check("x = 1\nimport asyncio\nasyncio.create_task(f())", "rollout/x.py")
    assert str(violation) == (
        "rollout/x.py:3: asyncio.create_task is not allowed in the control plane: "
        "start it in an asyncio.TaskGroup, so that its failure is seen"
    )


def test_the_program_fails_on_a_violation_and_passes_without(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    for source, code in (("import time\n", 1), ("x = 1\n", 0)):
        file.write_text(source)
        command = [sys.executable, "-m", "tools.lint_control_plane", str(file)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (child.returncode, f"{file}:1" in child.stdout) == (code, code == 1)


def test_the_control_plane_keeps_the_rules() -> None:
    files = list(control_plane_files())
    assert {path.parent.name for path in files} >= {"rollout", "pipelines", "simulation", "mux", "rewards"}
    assert [str(violation) for violation in lint(files)] == []
