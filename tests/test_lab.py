"""The lab: what its commands would be; and, where namespaces can be made, what its hosts share and what they do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tools.lab import Lab, LabError, LabHost, LoopbackLab, why_no_lab
from tools.lab.hosts import ROOT, Finished, RayHost, host_environment
from tools.lab.lab import check_names, enter, link_commands
from tools.lab.loopback import marked_processes, sweep
from tools.lab.namespaces import HOME, OWN_FOLDERS, RUN_FOLDER, covered_folders, disks, host_script, mounted_folders

PYTHON = (sys.executable, "-I", "-S", "-c")

# ----------------------------------------------------------------------------------------------------- what it would do


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="run it as root"), Lab(["head"]):
        pass


def test_a_machine_that_refuses_namespaces_is_pointed_to_the_other_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    refusal = subprocess.CompletedProcess([], 1, "", "unshare: Operation not permitted\n")
    monkeypatch.setattr("subprocess.run", lambda *command, **options: refusal)
    assert "refuses namespaces" in (why_no_lab() or "") and "LoopbackLab" in (why_no_lab() or "")


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    assert why_no_lab() == "the lab needs tc: install iproute2 and util-linux"


@pytest.mark.parametrize("names", [[], ["head", "head"], ["Head"], ["a b"], ["$(reboot)"]])
def test_names_that_would_not_do_are_refused(names: list[str]) -> None:
    with pytest.raises(LabError):
        check_names(names)


def test_only_folders_that_a_tmpfs_would_hide_are_put_back() -> None:
    keep = ["/tmp/wt/.venv", "/home/me/code", "/tmp/wt", "/tmpfiles", "/run/x"]
    assert covered_folders(keep) == ["/run/x", "/tmp/wt", "/tmp/wt/.venv"]


def test_every_disk_becomes_read_only_and_devices_do_not_matter() -> None:
    table = (
        "proc /proc proc rw 0 0\n/dev/vda / ext4 rw 0 0\n/dev/vdb /my\\040data ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0"
    )
    assert disks(mounted_folders(table)) == ["/", "/my data"]


def test_a_host_has_its_own_folders_and_its_home_is_not_mounted_over() -> None:
    script = host_script("h20", {"head": "10.88.0.1", "h20": "10.88.0.2"}, ["/", "/my data"], ["/tmp/a b", "/home/me"])
    lines = script.splitlines()
    assert {f"mount -t tmpfs tmpfs {folder}" for folder in OWN_FOLDERS} <= set(lines)
    assert "mount -o remount,bind,ro '/my data'" in lines
    assert "mkdir -p '/tmp/a b' && mount --rbind /mnt'/tmp/a b' '/tmp/a b'" in lines
    assert "mount -o remount,bind,ro '/tmp/a b'" in lines
    assert "/home" not in script.replace(HOME, "") and str(Path.home()) not in script
    assert "'10.88.0.1 head' '10.88.0.2 h20'" in script


def test_a_cable_joins_a_port_and_a_host() -> None:
    first, second, *_ = link_commands("port2", "10.88.0.2", 77)
    assert " ".join(first) == "ip link add port2 type veth peer name eth0 netns 77"
    assert " ".join(second) == "ip link set port2 master bridge up"


def test_no_proxy_and_no_other_token_reaches_a_host() -> None:
    outside = {"PATH": "/bin", "HTTPS_PROXY": "x", "no_proxy": "y", "TMPDIR": "/t", "RAY_ADDRESS": "z", "HOME": "/root"}
    inside = host_environment(outside, "secret", HOME)
    assert inside == {
        "PATH": f"{Path(sys.executable).parent}:/bin",
        "HOME": HOME,
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "secret",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Rehearsal(RayHost):
    """Notes what it would run."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address, 6379, {})
        self.ran: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def ray_options(self, is_head: bool) -> list[str]:
        return []

    def kill_all(self) -> None: ...

    def stop_ray(self) -> None: ...

    def run(self, command: Sequence[str], *arguments: Any, **options: Any) -> Finished:
        self.ran = list(command)
        return Finished(self.ran, 0, "", "")


def test_a_node_joins_its_head_with_labels_and_resources() -> None:
    head, node = Rehearsal("head", "10.88.0.1"), Rehearsal("h20", "10.88.0.2")
    assert head.start_ray() == "10.88.0.1:6379"
    assert {"--head", "--port=6379", "--node-ip-address=10.88.0.1"} <= set(head.ran)
    assert not any(word.startswith(("--labels", "--address")) for word in head.ran)
    node.start_ray(head, num_cpus=2, labels={"pool": "h20", "zone": "b"}, resources={"gpu_like": 1})
    wanted = {"--address=10.88.0.1:6379", "--num-cpus=2", "--labels=pool=h20,zone=b", '--resources={"gpu_like": 1}'}
    assert wanted <= set(node.ran) and "--head" not in node.ran


def test_a_command_runs_inside_all_namespaces_of_its_host() -> None:
    assert enter(77)[:3] == ["nsenter", "--target", "77"]
    assert {"--net", "--mount", "--pid", "--ipc", "--uts"} <= set(enter(77))


# ------------------------------------------------------------------------------------------------------ what it does


@pytest.fixture
def may_build() -> None:
    if reason := why_no_lab():
        pytest.skip(reason)


@pytest.fixture
def lab(may_build: None) -> Iterator[Lab]:
    with Lab(["head", "h20"]) as lab:
        yield lab


real = pytest.mark.slow


def processes(host: LabHost) -> list[str]:
    """Their names."""
    return host.run(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout.split("\n")


@real
@pytest.mark.parametrize("folder", [*OWN_FOLDERS, HOME, RUN_FOLDER])
def test_hosts_do_not_see_each_others_files(lab: Lab, folder: str) -> None:
    lab["head"].run(["sh", "-c", f"echo hello > {folder}/note"])
    assert lab["head"].run(["cat", f"{folder}/note"]).stdout == "hello\n"
    assert lab["head"].path(f"{folder}/note").read_text() == "hello\n"
    assert lab["h20"].run(["test", "-e", f"{folder}/note"], check=False).returncode == 1
    assert not Path(folder, "note").exists()


@real
def test_home_and_hostname_are_the_hosts_own(lab: Lab) -> None:
    shown = (
        lab["h20"]
        .run(["sh", "-c", "echo $HOME; cat /proc/sys/kernel/hostname; cd; pwd; getent hosts head"])
        .stdout.split()
    )
    assert shown == [HOME, "h20", HOME, lab["head"].address, "head"]


@real
def test_the_checkout_can_be_read_and_not_written(lab: Lab) -> None:
    host = lab["h20"]
    assert host.run(["cat", str(ROOT / "pyproject.toml")]).stdout == (ROOT / "pyproject.toml").read_text()
    host.run([sys.executable, "-c", "import tools.lab"])
    for folder in (ROOT, Path(sys.prefix), Path.home()):
        refused = host.run(["touch", str(folder / "note")], check=False)
        assert refused.returncode and "Read-only file system" in refused.stderr


@real
def test_a_folder_below_tmp_can_be_kept_visible(may_build: None, tmp_path: Path) -> None:
    """As a checkout is that lies there."""
    kept = tmp_path / "check out"
    kept.mkdir()
    (kept / "note").write_text("hello")
    (tmp_path / "other").write_text("not for hosts")
    with Lab(["head"], keep=[kept]) as lab:
        assert lab["head"].run(["cat", str(kept / "note")]).stdout == "hello"
        refused = lab["head"].run(["touch", str(kept / "more")], check=False)
        assert refused.returncode and "Read-only file system" in refused.stderr
        assert lab["head"].run(["cat", str(tmp_path / "other")], check=False).returncode


@real
def test_a_host_can_be_given_cores(may_build: None) -> None:
    core = min(os.sched_getaffinity(0))
    with Lab(["head"], cores={"head": [core]}) as lab:
        assert lab["head"].run([*PYTHON, "import os; print(os.sched_getaffinity(0))"]).stdout.strip() == f"{{{core}}}"


@real
def test_a_command_that_fails_or_takes_too_long_says_so(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"h20: `sh -c .*` ended with code 3\n  oh"):
        lab["h20"].run(["sh", "-c", "echo oh; exit 3"])
    with pytest.raises(LabError, match=r"took longer than 0.2 s"):
        lab["h20"].run(["sleep", "1000"], timeout=0.2)
    wait_until(lambda: "sleep" not in processes(lab["h20"]))


SERVE = """
import socket, sys
server = socket.create_server(("", 5000))
there, _ = server.accept()
total = 0
while part := there.recv(1 << 16):
    total += len(part)
there.sendall(str(total).encode())
"""

SEND = """
import socket, sys, time
for _ in range(100):
    try:
        there = socket.create_connection((sys.argv[1], 5000))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
started = time.perf_counter()
there.sendall(bytes(int(sys.argv[2])))
there.shutdown(socket.SHUT_WR)
assert int(there.recv(100)) == int(sys.argv[2])
print(time.perf_counter() - started)
"""


def send(there: LabHost, here: LabHost, size: int) -> float:
    """Seconds that it took."""
    server = there.start([*PYTHON, SERVE])
    seconds = float(here.run([*PYTHON, SEND, there.address, str(size)], timeout=60).stdout)
    server.wait(10)
    return seconds


@real
@pytest.mark.parametrize("limited", ["head", "h20"])
def test_a_limited_link_has_the_rate_it_was_given_in_both_directions(lab: Lab, limited: str) -> None:
    size = 10_000_000
    lab[limited].limit("50mbit")
    sent, received = lab["head"].bytes_sent(), lab["h20"].bytes_received()
    seconds = send(lab["h20"], lab["head"], size)
    crossed = min(lab["head"].bytes_sent() - sent, lab["h20"].bytes_received() - received)
    assert size <= crossed < 1.2 * size
    assert 25 < crossed * 8 / seconds / 1e6 < 53
    lab[limited].unlimit()
    assert send(lab["h20"], lab["head"], size) < seconds / 3


ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 5000))
while True:
    server.sendto(*server.recvfrom(100))
"""

ASK = """
import socket, sys
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.settimeout(0.1)
for _ in range(int(sys.argv[2])):
    try:
        there.sendto(b"?", (sys.argv[1], 5000))
        sys.exit(0 if there.recv(100) == b"?" else 2)
    except (TimeoutError, ConnectionRefusedError):
        pass
sys.exit(1)
"""


@real
def test_a_cut_link_stops_traffic_and_a_healed_one_resumes(lab: Lab) -> None:
    head, h20 = lab["head"], lab["h20"]
    h20.start([*PYTHON, ECHO])

    def is_answered(tries: int) -> bool:
        return head.run([*PYTHON, ASK, h20.address, str(tries)], check=False, timeout=30).returncode == 0

    assert is_answered(100)
    h20.cut()
    before = h20.bytes_received()
    assert not is_answered(5)
    assert h20.bytes_received() == before
    h20.heal()
    assert is_answered(100)


@real
def test_all_processes_of_one_host_die_together_and_none_of_another(lab: Lab) -> None:
    mine = [lab["head"].start(["sh", "-c", "sleep 1000 & sleep 1000 & wait"]) for _ in range(3)]
    others = lab["h20"].start(["sleep", "1000"])
    lab["head"].kill_all()
    assert [process.wait(10) for process in mine] == [-signal.SIGKILL] * 3
    wait_until(lambda: "sleep" not in processes(lab["head"]))  # and the host is there for more
    assert others.poll() is None


NAMESPACES = ("net", "mnt", "pid", "ipc", "uts")


def namespaces(pids: Sequence[int | str]) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in NAMESPACES}


def held_namespaces() -> set[str]:
    """All that some process of the machine is in."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        for kind in NAMESPACES:
            with suppress(OSError):  # it has just ended
                found.add(os.readlink(folder / "ns" / kind))
    return found


def furniture() -> tuple[str, list[str], set[str]]:
    """What a lab could leave behind besides namespaces and processes."""
    names = Path("/run/netns")
    return (
        Path("/proc/self/mounts").read_text(),
        sorted(os.listdir("/sys/class/net")),
        set(os.listdir(names)) if names.exists() else set(),
    )


@real
@pytest.mark.parametrize("ending", [None, ZeroDivisionError, KeyboardInterrupt])
def test_nothing_is_left_behind(may_build: None, ending: type[BaseException] | None) -> None:
    before = furniture()
    made: set[str] = set()
    process = None
    try:
        with Lab(["head", "h20"]) as lab:
            process = lab["h20"].start(["setsid", "sleep", "1000"])
            made = namespaces([host.pid for host in lab]) - namespaces(["self"])
            assert len(made) == 2 * len(NAMESPACES)
            if ending is not None:
                raise ending
    except (ZeroDivisionError, KeyboardInterrupt) as error:
        assert type(error) is ending
    assert process is not None and process.wait(10) != 0
    assert not made & held_namespaces()
    assert furniture() == before


KILLED = """
import os, signal, sys
from tools.lab import Lab
with Lab(["head", "h20"]) as lab:
    lab["h20"].start(["setsid", "sleep", "1000"])
    print(*(os.readlink(f"/proc/{host.pid}/ns/{kind}") for host in lab for kind in sys.argv[1:]), flush=True)
    signal.pause()
"""


@real
def test_nothing_is_left_behind_by_a_lab_that_was_killed(may_build: None) -> None:
    before = furniture()
    command = [sys.executable, "-c", KILLED, *NAMESPACES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        made = set(owner.stdout.readline().split())
        assert made and made <= held_namespaces()
        owner.kill()
    wait_until(lambda: not made & held_namespaces())
    assert furniture() == before


def wait_until(happened: Any) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ----------------------------------------------------------------------------------------------------------- with Ray

PLACE = """
import json, ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
where = ray.remote(lambda: (ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()))
print(json.dumps([ray.get(where.options(label_selector={"pool": pool}).remote()) for pool in sys.argv[2:]]))
"""


@real
def test_a_cluster_over_hosts_that_demands_its_token(lab: Lab) -> None:
    head, h20 = lab["head"], lab["h20"]
    cluster = head.start_ray(labels={"pool": "head"})
    with pytest.raises(LabError, match=r"ray\.scripts\.scripts start"):
        h20.start_ray(head, env={"RAY_AUTH_TOKEN": "0" * 64})
    h20.kill_all()
    h20.start_ray(head, labels={"pool": "h20"})
    shown = head.run([sys.executable, "-c", PLACE, cluster, "h20", "head"], timeout=60).stdout
    assert [address for address, _ in json.loads(shown)] == [h20.address, head.address]
    h20.stop_ray()
    assert "raylet" not in processes(h20)
    assert "raylet" in processes(head)


@real
def test_ray_nodes_without_namespaces() -> None:
    with LoopbackLab(["head", "h20"]) as lab:
        head, h20 = lab["head"], lab["h20"]
        cluster = head.start_ray(labels={"pool": "head"})
        h20.start_ray(head, labels={"pool": "h20"})
        shown = head.run([sys.executable, "-c", PLACE, cluster, "h20", "head"], timeout=60).stdout
        (_, first), (_, second) = json.loads(shown)
        assert first != second
        h20.kill_all()
        marks = set(marked_processes().values())
        assert f"{os.getpid()}/head" in marks and f"{os.getpid()}/h20" not in marks
    assert not [mark for mark in marked_processes().values() if mark.startswith(f"{os.getpid()}/")]


def test_a_dead_labs_processes_are_swept() -> None:
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, "ROLLWEAVE_LAB_HOST": f"{gone}/head"})
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, "ROLLWEAVE_LAB_HOST": f"{os.getpid()}/head"})
    try:
        wait_until(lambda: {left.pid, mine.pid} <= marked_processes().keys())
        sweep()
        assert left.wait(10) == -signal.SIGKILL
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()
        left.kill()
        left.wait()
