"""Programs that try to get out of their sandbox, to stay, or to take the machine with them.

Each prints ESCAPED if it did what it must not be able to do. Whatever it does, its sandbox ends within its timeout and
a second, and leaves nothing behind.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rollweave.rewards.code.launch import Launcher
from rollweave.rewards.code.sandbox import Execution
from sandboxes import launcher_or_skip, left_behind, open_to_others

SECONDS = 1.0
SLACK = 1.0

CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def escaped(result):
    if result is not None and result >= 0:
        print("ESCAPED", result, flush=True)
def call(*arguments):
    escaped(libc.syscall(*arguments))
"""
TRY = """
def write(path, data):
    with open(path, 'r+b', buffering=0) as file: file.write(data)
def attempt(function, *arguments):
    try:
        function(*arguments)
    except (OSError, ValueError, PermissionError) as error:
        return error
    print("ESCAPED", function, arguments, flush=True)
"""

HOSTILE = {
    # ---- too many
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb of sessions": "import os\nwhile True:\n    if os.fork() == 0: os.setsid()",
    "fork bomb that survives errors": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "thread bomb": """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(99,)).start()
    except RuntimeError: pass
""",
    "program that starts itself again": "import os, sys\nos.execv(sys.executable, [sys.executable, *sys.argv])",
    "shell bomb": "import os\nos.system(': & while :; do ( while :; do :; done ) & done')",
    "descriptor bomb": """
import os
held = []
try:
    while len(held) < 1000: held.append(os.open('/dev/null', os.O_RDONLY))
    print('ESCAPED')
except OSError: pass
""",
    "pipe bomb": """
import os, fcntl
while True:
    try:
        r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.set_blocking(w, False); os.write(w, b'x' * (1 << 20))
    except OSError: pass
""",
    # ---- too much memory
    "memory bomb": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "memory bomb of many processes": """
import os
for _ in range(12): os.fork()
held = []
while True:
    try: held.append(bytearray(b'x' * (1 << 22)))
    except MemoryError: pass
""",
    "memory bomb in shared pages": """
import mmap
held = []
while True: held.append(mmap.mmap(-1, 1 << 24)); held[-1].write(b'x' * (1 << 24))
""",
    "memory that no process owns": CALLS
    + """
for name in range(1000):
    fd = libc.memfd_create(b'x', 0)
    escaped(fd)
    if fd >= 0: os.write(fd, b'x' * (1 << 24))
""",
    "System V memory": CALLS + "call(29, 0, 1 << 28, 0o1666)",
    "message queue": CALLS + "call(240, b'/queue', 0o102, 0o666, None)",
    "bomb of zeros, packed": """
import zlib
data = zlib.compress(b'0' * (1 << 26))
for _ in range(3): data = zlib.decompress(data) * 64
""",
    "locked memory": CALLS + "escaped(libc.mlockall(3))",
    # ---- too much disk
    "full temporary directory": """
with open('/tmp/big', 'wb') as file:
    try:
        while file.tell() < 1 << 30: file.write(b'x' * (1 << 20))
        print('ESCAPED')
    except OSError: pass
""",
    "full temporary directory, in many files": """
import os
try:
    for number in range(2000):
        with open(f'/tmp/{number}', 'wb') as file: file.write(b'x' * (1 << 20))
    print('ESCAPED')
except OSError: pass
""",
    "full shared memory": """
try:
    for number in range(256):
        with open(f'/dev/shm/{number}', 'wb') as file: file.write(b'x' * (1 << 20))
    print('ESCAPED')
except OSError: pass
""",
    "endless empty files": """
number = 0
while True:
    open(f'/tmp/{number}', 'w').close(); number += 1
""",
    "endless empty files in shared memory": """
number = 0
while True:
    open(f'/dev/shm/{number}', 'w').close(); number += 1
""",
    "endless folders": "import os\nwhile True: os.mkdir('x'); os.chdir('x')",
    "a sparse file of a terabyte": """
try:
    with open('/tmp/sparse', 'wb') as file: file.truncate(1 << 40)
    print('ESCAPED')
except OSError: pass
""",
    # ---- too much output, too much time
    "endless output": "while True: print('x' * 4096)",
    "endless errors": "import sys\nwhile True: print('x' * 4096, file=sys.stderr)",
    "endless line": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "sleeps": "import time\ntime.sleep(1000)",
    "loops": "while True: pass",
    "one endless instruction": "9 ** 9 ** 9",
    "catastrophic pattern": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "hears no signal": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "says nothing more": "import os, time\nos.close(1); os.close(2); time.sleep(1000)",
    "more CPU time than it may": """
import resource, signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
try: resource.setrlimit(resource.RLIMIT_CPU, (999, 999))
except ValueError: pass
while True: pass
""",
    # ---- survivors
    "survivor of two forks": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
""",
    "survivor that holds the output": """
import os, time
if os.fork() == 0:
    for number in range(5): print('still here', flush=True); time.sleep(1000)
print('done')
""",
    "survivor without a parent's death": CALLS
    + """
import time
libc.prctl(1, 0)
if os.fork() == 0:
    libc.prctl(1, 0); os.setsid()
    if os.fork() == 0:
        for fd in range(64):
            try: os.close(fd)
            except OSError: pass
        time.sleep(1000)
    os._exit(0)
""",
    "kills all it can reach, then stays": """
import os, signal, time
for pid in (-1, 1, os.getppid(), *range(2, 5000)):
    if pid != os.getpid():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
time.sleep(1000)
""",
    # ---- other processes
    "signals to the parent": """
import os, signal
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try: os.kill(os.getppid(), number)
    except OSError: pass
print('alive')
""",
    "signals to pids outside": """
import os
for pid in OUTSIDE:
    try: os.kill(pid, 9); print('ESCAPED', pid)
    except OSError: pass
""",
    "traces another process": CALLS + "\nfor pid in (1, os.getppid()): call(101, 16, pid, 0, 0)",
    "traces itself": CALLS + "escaped(libc.ptrace(0, 0, 0, 0))",
    "reads another process's memory": CALLS
    + """
try: open('/proc/1/mem', 'rb').read(1); print('ESCAPED')
except OSError: pass
call(310, 1, None, 0, None, 0, 0)
""",
    "variables of the parent": """
import glob, os
texts = [str(os.environ)]
for path in glob.glob('/proc/*/environ'):
    try: texts.append(open(path, 'rb').read().decode(errors='replace'))
    except OSError: pass
if any('SECRET_OF_THE_PARENT' in text for text in texts): print('ESCAPED')
if any(text.strip('\\0') for text in texts[1:] if 'HOME=/tmp' not in text): print('ESCAPED', texts)
""",
    "descriptors of the parent": """
import os
for fd in range(3, 256):
    try: os.write(fd, b'{"exit-code": 0}\\n'); print('ESCAPED', fd)
    except OSError: pass
    try: os.read(fd, 1); print('ESCAPED', fd)
    except OSError: pass
""",
    "changes its own input": TRY
    + """
import os
attempt(os.write, 0, b'x'); attempt(os.ftruncate, 0, 0); attempt(write, '/proc/self/fd/0', b'x')
""",
    # ---- files
    "files of the machine": """
import os
for path in ('/etc/passwd', '/etc/shadow', '/root', '/home', '/work', '/var', '/sys', '/run', '/boot', SECRET):
    if os.path.exists(path): print('ESCAPED', path)
""",
    "path escapes": """
import os
for path in ('/../..' + SECRET, '/proc/self/root' + SECRET, '/proc/1/root' + SECRET, '/proc/self/cwd/../..' + SECRET,
             '/tmp/../../../..' + SECRET, '/proc/1/cwd' + SECRET, '/usr/..' + SECRET):
    try: open(path); print('ESCAPED', path)
    except OSError: pass
""",
    "symbolic link escapes": """
import os
for number, target in enumerate((SECRET, '/proc/1/root' + SECRET, '../..' + SECRET)):
    os.symlink(target, f'/tmp/link{number}')
    try: open(f'/tmp/link{number}'); print('ESCAPED', target)
    except OSError: pass
""",
    "hard link to the system": TRY + "import os\nattempt(os.link, '/usr/bin/env', '/tmp/env')",
    "writes to the system": TRY
    + """
import os
for folder in ('/', '/usr', '/usr/bin', '/usr/lib', '/etc', '/dev', '/proc', '/program', '/bin', '/lib'):
    attempt(open, folder + '/new', 'w'); attempt(os.mkdir, folder + '/newer')
attempt(open, '/program/main.py', 'a'); attempt(os.unlink, '/usr/bin/env'); attempt(os.chmod, '/usr', 0o777)
""",
    "settings of the kernel": TRY
    + """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/overcommit_memory', '/proc/sysrq-trigger',
             '/proc/sys/kernel/hostname', '/proc/sys/user/max_user_namespaces'):
    attempt(write, path, b'1')
attempt(write, '/proc/self/oom_score_adj', b'-1000')
""",
    "devices": TRY
    + """
import os, stat
for name in ('mem', 'kmem', 'kmsg', 'sda', 'vda', 'vda1', 'nvme0n1', 'kvm', 'fuse', 'vsock', 'loop-control', 'net/tun'):
    attempt(open, '/dev/' + name, 'rb')
attempt(os.mknod, '/tmp/mem', stat.S_IFCHR | 0o666, os.makedev(1, 1))
""",
    "types into a terminal": CALLS + "call(16, 0, 0x5412, b'x'); call(16, 1, 0x5412, b'x')",
    "file handles": CALLS + "call(303, -100, b'/usr', None, None, 0); call(304, -100, None, 0)",
    # ---- network
    "services of the machine": """
import socket
for host in ('127.0.0.1', '::1', 'localhost', '0.0.0.0'):
    try: socket.create_connection((host, PORT), 0.2); print('ESCAPED', host)
    except OSError: pass
""",
    "the internet": """
import socket
for host in ('1.1.1.1', '8.8.8.8', '169.254.169.254', 'example.com'):
    try: socket.create_connection((host, 80), 0.2); print('ESCAPED', host)
    except OSError: pass
sent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: sent.sendto(b'x', ('8.8.8.8', 53)); print('ESCAPED')
except OSError: pass
""",
    "abstract sockets": """
import socket
try: socket.socket(socket.AF_UNIX).connect(ABSTRACT); print('ESCAPED')
except OSError: pass
""",
    "sockets in files": """
import socket
for path in (SOCKET, '/var/run/docker.sock', '/run/dbus/system_bus_socket'):
    try: socket.socket(socket.AF_UNIX).connect(path); print('ESCAPED', path)
    except OSError: pass
""",
    "raw and strange sockets": TRY
    + """
import socket
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1); attempt(socket.socket, 17, socket.SOCK_RAW, 0)
for family in (38, 40, 44, 31, 21): attempt(socket.socket, family, socket.SOCK_STREAM, 0)
""",
    # ---- rights
    "becomes root": TRY + "import os\nattempt(os.setuid, 0); attempt(os.setgid, 0); attempt(os.setgroups, [0])",
    "set-uid programs": """
import subprocess
for command in (['su', '-c', 'id'], ['mount', '-t', 'tmpfs', 'x', '/tmp'], ['newgrp']):
    try: done = subprocess.run(command, capture_output=True, timeout=1, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired): continue
    if b'uid=0' in done.stdout or (command[0] == 'mount' and done.returncode == 0): print('ESCAPED', command)
""",
    "nested namespaces": CALLS
    + """
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000): escaped(libc.unshare(flag))
call(56, 0x10000000 | 17, 0, 0, 0, 0); call(435, b'\\0' * 88, 88)
if os.system('unshare -Ur true 2>/dev/null') == 0: print('ESCAPED')
if os.system('bwrap --ro-bind / / true 2>/dev/null') == 0: print('ESCAPED')
""",
    "other namespaces": CALLS
    + """
for name in ('net', 'mnt', 'pid', 'user', 'ipc'):
    try: fd = os.open(f'/proc/1/ns/{name}', os.O_RDONLY)
    except OSError: continue
    escaped(libc.setns(fd, 0))
""",
    "mounts": CALLS
    + """
escaped(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)); escaped(libc.mount(b'/usr', b'/usr', None, 32 | 4096, None))
escaped(libc.umount2(b'/usr', 2)); escaped(libc.mount(b'none', b'/tmp', b'cgroup2', 0, None))
escaped(libc.mount(b'proc', b'/tmp', b'proc', 0, None)); escaped(libc.chroot(b'/tmp')); call(155, b'/tmp', b'/tmp')
call(430, b'tmpfs', 0); call(428, -100, b'/usr', 1); call(442, -100, b'/usr', 0, None, 0)
""",
    "calls that a program never needs": CALLS
    + """
for number in (321, 298, 323, 250, 425, 248, 249, 246, 175, 169, 170, 171, 164, 227, 103, 163, 167, 172, 173, 312, 438):
    call(number, 0, 0, 0, 0, 0)
""",
    "higher limits": TRY
    + """
import resource
for name in ('AS', 'NPROC', 'NOFILE', 'FSIZE', 'CPU', 'CORE', 'MEMLOCK', 'MSGQUEUE'):
    limit = getattr(resource, 'RLIMIT_' + name)
    attempt(resource.setrlimit, limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    "higher priority": TRY
    + """
import os
attempt(os.nice, -1); attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))
""",
    "the clock and the name of the machine": TRY
    + """
import socket, time
attempt(time.clock_settime, time.CLOCK_REALTIME, 0.0); attempt(socket.sethostname, 'x')
""",
    # ---- ends of its own
    "core dump": "import os\nos.chdir('/tmp'); os.abort()",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "endless recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
    "ends at once": "import os\nos._exit(0)",
    "no program at all": "\0\xff)(",
}


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    return launcher_or_skip()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Things of the machine that a program must not reach, by the names that the programs above use."""
    folder = tmp_path_factory.mktemp("outside")
    open_to_others(folder)
    (folder / "secret").write_text("secret")
    with ExitStack() as stack:
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract, in_file = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        abstract.bind(f"\0rollweave-test-{os.getpid()}")
        in_file.bind(str(folder / "socket"))
        for one in (abstract, in_file):
            one.listen()
        yield {
            "SECRET": str(folder / "secret"),
            "SOCKET": str(folder / "socket"),
            "ABSTRACT": abstract.getsockname().decode(),
            "PORT": service.getsockname()[1],
            "OUTSIDE": [os.getpid(), os.getppid()],
        }


def run(launcher: Launcher, program: str, names: dict[str, object]) -> Execution:
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return launcher.run(given + program, b"input", SECONDS)


def test_there_are_at_least_forty() -> None:
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_contained(
    name: str, launcher: Launcher, names: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "secret")
    before, began = left_behind(), time.monotonic()
    execution = run(launcher, HOSTILE[name], names)
    assert time.monotonic() - began <= SECONDS + SLACK
    assert b"ESCAPED" not in execution.stdout
    assert left_behind() == before


def test_the_traps_would_be_sprung_outside(names: dict[str, object], tmp_path: Path) -> None:
    """A trap that nothing springs proves nothing: without a sandbox, as this user, these programs do escape."""
    launcher = Launcher(unsafe=True)
    for name in (
        "services of the machine",
        "abstract sockets",
        "sockets in files",
        "files of the machine",
        "path escapes",
    ):
        assert b"ESCAPED" in run(launcher, HOSTILE[name], names).stdout, name


def test_eight_at_once_do_not_disturb_each_other(launcher: Launcher, names: dict[str, object]) -> None:
    """Seven hostile programs run beside one that computes."""
    hostile = (
        "fork bomb",
        "memory bomb of many processes",
        "endless output",
        "full temporary directory",
        "thread bomb",
    )
    before = left_behind()
    with ThreadPoolExecutor(8) as threads:
        began = time.monotonic()
        others = [threads.submit(run, launcher, HOSTILE[name], names) for name in (*hostile, "loops", "sleeps")]
        computing = threads.submit(launcher.run, "print(sum(range(10**5)))", b"", 5.0)
        for other in others:
            other.result()
            assert time.monotonic() - began <= SECONDS + SLACK
        assert computing.result().stdout == b"4999950000\n"
    assert left_behind()["processes"] == before["processes"]
    assert left_behind()["cgroups"] == before["cgroups"]


def test_nothing_of_one_program_is_there_for_the_next(launcher: Launcher) -> None:
    write = "for folder in ('/tmp', '/dev/shm'): open(folder + '/note', 'w').write('x')"
    assert launcher.run(write).succeeded
    look = "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))"
    assert launcher.run(look).stdout == b"[] []\n"
