"""How a program is shut in on this machine: the command line of bubblewrap, and whether it works here.

A program sees a read-only system, a small temporary directory and itself; no network, no other process, no variable of
this process. If this process is root, `setpriv` becomes an unprivileged user before bubblewrap starts: a limit on the
number of processes does not bind root, not even root of a namespace. The limits of a process are set inside, by
`prlimit`: outside, the other processes of the same user would count.

Nothing of a sandbox is ever on the disk: the program, its input and the filter of system calls are files in memory
that bubblewrap copies or that the program inherits, sealed against changes.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.code.cgroups import CgroupMaker
from rollweave.rewards.code.sandbox import Execution, Launch, Sandbox, watch
from rollweave.rewards.code.seccomp import filter_program

INSTALL = "apt-get install bubblewrap"
UNSAFE = "or set `unsafe: true` for this reward, to run programs that a model wrote with all rights of this user"
NOBODY = "65534"
MIB = 2**20
FOLDER = "/program"
"""Where the files of a program lie in its sandbox."""
MAIN = "main.py"
"""The file that is run."""
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Links into /usr, on most systems."""
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
FIRST = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
"""Process 1 of a sandbox. It is not the program itself, because the kernel keeps most signals from process 1."""
SHARED_MEMORY = 16 * MIB
OPEN_FILES = 64
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    memory: int = 512 * MIB
    """Bytes: of every process, and of all together where a cgroup can be made."""
    processes: int = 16
    scratch: int = 64 * MIB
    """Bytes of the temporary directory."""
    output: int = MIB
    """Bytes to each of stdout and stderr."""


DEFAULT_LIMITS = SandboxLimits()


@dataclass(frozen=True, slots=True)
class Contents:
    """What a sandbox is given."""

    files: Mapping[str, bytes]
    """In `FOLDER`, by name; `MAIN` is among them."""
    arguments: Sequence[str] = ()
    stdin: bytes = b""
    seconds: float = 10.0
    """Of CPU time, for each process."""
    inherited: Sequence[int] = ()
    """Descriptors of this process that the program gets, under the same numbers."""


class Launcher:
    """Starts sandboxes with equal limits. Raises ConfigError if that is not possible here."""

    def __init__(
        self,
        limits: SandboxLimits = DEFAULT_LIMITS,
        python: str = "",
        readable: Sequence[str] = (),
        unsafe: bool = False,
    ) -> None:
        """`python`: the interpreter; default: the system's. `readable`: folders that programs may read, beside /usr.
        `unsafe`: without a sandbox."""
        self.limits = limits
        self._scratch = {"/dev/shm": SHARED_MEMORY, "/tmp": limits.scratch}
        self._unsafe = unsafe
        self.python = python or _find_python()
        self._prlimit = _find("prlimit", "apt-get install util-linux")
        self._cgroups: CgroupMaker | None = None
        if not unsafe:
            self._bwrap = _find("bwrap", f"{INSTALL}; {UNSAFE}")
            self._version = _version_of(self._bwrap)
            self._command = [*_unprivileged(), self._bwrap, *self._walls(readable)]
            self._filter = filter_program()
            with suppress(OSError):  # without it, the limits of each process remain
                self._cgroups = CgroupMaker(limits.memory, limits.processes + 2)  # the monitor and process 1
        self._check()

    def describe(self) -> str:
        """What protects this machine, in a few words."""
        if self._unsafe:
            return "unsafe: programs run without a sandbox, as this user"
        user = "as nobody" if os.geteuid() == 0 else "as this user"
        calls = "with a filter of system calls" if self._filter else "without a filter of system calls (libseccomp2)"
        cgroup = f"cgroup v{self._cgroups.version}" if self._cgroups else "no cgroup, so limits hold for each process"
        return f"bubblewrap {'.'.join(map(str, self._version))} {user}, {calls}, {cgroup}"

    def run(self, program: str, stdin: bytes = b"", seconds: float = 10.0) -> Execution:
        """Run a Python program to its end, or to the end of its time."""
        with self.started(Contents({MAIN: program.encode(errors="replace")}, (), stdin, seconds)) as sandbox:
            sandbox.begin()
            watch([sandbox], sandbox, seconds)
        return sandbox.execution()

    @contextmanager
    def started(self, contents: Contents) -> Iterator[Sandbox]:
        """A sandbox whose program runs once it is told to begin. Nothing of it is left after the block."""
        with ExitStack() as ours:
            with ExitStack() as theirs:  # descriptors that are of no use here once the command has inherited them
                stdin = _in_memory("stdin", contents.stdin, theirs)
                launch = (self._plain_launch if self._unsafe else self._launch)(contents, stdin, ours, theirs)
                sandbox = Sandbox(launch, self.limits.output)
                ours.callback(sandbox.close)
            yield sandbox

    # ------------------------------------------------------------------------------------------------- the command line

    def _launch(self, contents: Contents, stdin: int, ours: ExitStack, theirs: ExitStack) -> Launch:
        (status, their_status), (their_gate, gate) = os.pipe(), os.pipe()
        for stack, descriptors in ((ours, (status, gate)), (theirs, (their_status, their_gate))):
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
        files = {name: _in_memory(name, data, theirs) for name, data in contents.files.items()}
        options = [option for name, fd in files.items() for option in ("--file", str(fd), f"{FOLDER}/{name}")]
        inherited = [*contents.inherited, their_status, their_gate, *files.values()]
        options += ["--remount-ro", "/", "--json-status-fd", str(their_status), "--block-fd", str(their_gate)]
        if self._filter is not None:
            inherited.append(_in_memory("seccomp", self._filter, theirs))
            options += ["--seccomp", str(inherited[-1])]
        program = self._interpreter(FOLDER, contents, f"--nproc={self.limits.processes + 1}")
        command = [*self._command, *options, "--", *FIRST, *program]
        if self._cgroups is not None:
            cgroup = self._cgroups.make()
            ours.callback(cgroup.remove)
            command = cgroup.enter(command)
        return Launch(command, stdin, inherited, status, gate, self._scratch)

    def _plain_launch(self, contents: Contents, stdin: int, ours: ExitStack, theirs: ExitStack) -> Launch:
        folder = ours.enter_context(tempfile.TemporaryDirectory(prefix="rollweave-unsafe-", ignore_cleanup_errors=True))
        for name, data in contents.files.items():
            Path(folder, name).write_bytes(data)
        command = self._interpreter(folder, contents)
        return Launch(command, stdin, contents.inherited, folder=folder, environment=ENVIRONMENT)

    def _interpreter(self, folder: str, contents: Contents, *more_limits: str) -> list[str]:
        limits = {
            "cpu": math.ceil(contents.seconds) + 1,
            "as": self.limits.memory,
            "fsize": self.limits.scratch,
            "nofile": OPEN_FILES,
            "core": 1,  # with 0 the kernel would still start a program that collects cores
            "memlock": 0,
            "msgqueue": 0,
        }
        options = [f"--{name}={value}" for name, value in limits.items()]
        return [self._prlimit, *options, *more_limits, self.python, "-IB", f"{folder}/{MAIN}", *contents.arguments]

    def _walls(self, readable: Sequence[str]) -> list[str]:
        """What every sandbox of this launcher has in common. Every place that can be written to has a size."""
        nested = ["--disable-userns"] if self._version >= (0, 8) else []  # else the filter refuses new namespaces
        environment = [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
        folders = [word for folder in ("/usr", *readable) for word in ("--ro-bind", folder, folder)]
        for name in SYSTEM:
            if os.path.islink(name):
                folders += ["--symlink", os.readlink(name), name]
            elif os.path.isdir(name):
                folders += ["--ro-bind", name, name]
        for name in ("/etc/ld.so.cache", "/etc/alternatives"):  # where libraries and programs of /usr are
            folders += ["--ro-bind-try", name, name]
        scratch = [word for path, size in self._scratch.items() for word in ("--size", str(size), "--tmpfs", path)]
        return [
            *("--unshare-all", "--unshare-user", *nested, "--as-pid-1", "--die-with-parent", "--new-session"),
            *("--hostname", "sandbox", "--clearenv", *environment),
            *("--proc", "/proc", "--dev", "/dev", *scratch, "--remount-ro", "/dev", "--chdir", "/tmp"),
            *folders,  # after the temporary directory, in which one of them may lie
        ]

    def _check(self) -> None:
        try:
            execution = self.run("print('inside')")
        except (RewardFailed, OSError) as error:
            raise ConfigError(f"code rewards cannot run programs here: {error}; {self._cure()}") from error
        if execution.stdout != b"inside\n":
            said = execution.stderr.decode(errors="replace").strip()[-300:]
            raise ConfigError(f"code rewards cannot run {self.python} here: {said or execution.end}; {self._cure()}")

    def _cure(self) -> str:
        if self._unsafe:
            return "name another interpreter with `python`"
        return (
            "bubblewrap is installed; it needs user namespaces (in a container: allow them, for example docker run "
            "--security-opt seccomp=unconfined --security-opt systempaths=unconfined) and an interpreter in /usr or "
            f"in a folder that `readable` names; {UNSAFE}"
        )


def _in_memory(name: str, data: bytes, stack: ExitStack) -> int:
    """A file in memory that can be read from its beginning and never changed."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def _unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv = _find("setpriv", "apt-get install util-linux")
    return [setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps=-all"]


def _find(program: str, cure: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ConfigError(f"code rewards run programs in a sandbox, which needs {program}, and it is missing: {cure}")
    return found


def _find_python() -> str:
    for python in PYTHONS:
        if os.access(python, os.X_OK):
            return python
    raise ConfigError(
        f"code rewards need a Python in /usr, and there is none of {', '.join(PYTHONS)}: apt-get install python3, "
        "or name another one with `python`, and its folders with `readable`"
    )


def _version_of(bwrap: str) -> tuple[int, ...]:
    said = subprocess.run([bwrap, "--version"], capture_output=True, text=True, env={}).stdout.split()
    return tuple(int(part) for part in said[-1].split(".") if part.isdecimal()) if said else ()
