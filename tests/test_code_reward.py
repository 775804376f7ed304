"""Code rewards: the two kinds of tests, programs that try to cheat them, timeouts that adapt, and what a user sees."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from rollweave.config.job import Job
from rollweave.config.load import parse_text
from rollweave.config.ready_rewards import CodeRewardConfig
from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.code import cgroups, launch
from rollweave.rewards.code.cases import AssertCase, OutputCase, find_program, read_cases
from rollweave.rewards.code.cgroups import CgroupMaker
from rollweave.rewards.code.launch import Launcher, SandboxLimits
from rollweave.rewards.code.reward import CodeReward
from rollweave.rewards.code.timeout import AdaptiveTimeout
from rollweave.rewards.scorer import Scorer, call_in_thread
from rollweave.runs import doctor
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory, token_ids
from sandboxes import launcher_or_skip, left_behind, open_to_others

ADD = "def add(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    return launcher_or_skip()


def passes(launcher: Launcher, program: str, code: str, seconds: float = 10.0) -> bool:
    return AssertCase(code).check(launcher, program, seconds).passed


# ------------------------------------------------------------------------------------------------------------ programs


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("Here:\n```python\nprint(1)\n```\nThat is it.", "print(1)\n"),
        ("```\nfirst\n```\nNo, better:\n```py\nsecond\n```", "second\n"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_block_or_the_whole_answer(answer: str, program: str) -> None:
    assert find_program(answer) == program


def test_tests_are_read_from_a_column() -> None:
    assert read_cases("assert True", "row") == [AssertCase("assert True")]
    both = ["assert f(1)", {"input": "1\n", "output": "2\n"}]
    assert read_cases(both, "row") == [AssertCase("assert f(1)"), OutputCase("1\n", "2\n")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "row holds no tests"),
        (None, "row holds no tests"),
        ([{"input": "1"}], r"row\[0\] is no test: expected .* got {'input': '1'}"),
        (["assert True", {"input": 1, "output": "2"}], r"row\[1\] is no test"),
    ],
)
def test_a_column_without_tests_is_named(data: Any, message: str) -> None:
    with pytest.raises(RewardFailed, match=message):
        read_cases(data, "row")


# ------------------------------------------------------------------------------------------------- standard in and out


@pytest.mark.parametrize(
    ("program", "output", "passed"),
    [
        ("print(int(input()) + int(input()))", "3", True),
        ("print(3, end='')", "3\n", True),
        ("print('3  \\n\\n')", "3", True),
        ("print(4)", "3", False),
        ("print('3\\n3')", "3", False),
        ("print(3); raise SystemExit(1)", "3", False),
        ("print(3); import os; os.abort()", "3", False),
        ("print(3); import sys; sys.exit(0)", "3", True),
        ("import sys; sys.stderr.write('3')", "3", False),
        ("import sys; sys.stdout.buffer.write(b'\\xff3')", "3", False),
        ("syntax error", "3", False),
        ("", "", True),
        ("import os; os._exit(0)", "3", False),
    ],
)
def test_what_a_program_prints_is_compared_outside(launcher: Launcher, program: str, output: str, passed: bool) -> None:
    assert OutputCase("1\n2\n", output).check(launcher, program, 10.0).passed == passed


def test_a_program_has_a_clean_interpreter(launcher: Launcher) -> None:
    look = "import sys, os; print(__name__, sys.argv, os.getcwd(), sys.stdin.read(), len(os.sched_getaffinity(0)) > 0)"
    assert launcher.run(look, b"input").stdout == b"__main__ ['/program/main.py'] /tmp input True\n"
    children = "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))"
    assert launcher.run(children).stdout == b"[1, 2]\n"


def test_a_large_input_and_a_large_output_arrive(launcher: Launcher) -> None:
    data = b"x" * (launcher.limits.output - 1)
    execution = launcher.run("import sys; sys.stdout.write(sys.stdin.read())", data)
    assert (execution.end, execution.stdout == data) == ("exited", True)


# ---------------------------------------------------------------------------------------------------------- assertions

STACK = """
class EmptyError(ValueError): pass
class Stack:
    def __init__(self, *items): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise EmptyError("empty")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, index): return self.items[index]
    def __eq__(self, other): return self.items == other.items
    def __add__(self, other): return Stack(*self.items, *other.items)
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
    def __repr__(self): return f"Stack{tuple(self.items)}"
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (ADD, "assert add(1, 2) == 3"),
        (ADD, "def check(candidate):\n    assert candidate(1, b=2) == 3\ncheck(add)"),
        (ADD, "try:\n    add(1, 'x')\nexcept TypeError: pass\nelse: assert False"),
        ("def f(): return [1, (2, 'x'), {3: {4}}, None, True, 1.5, b'y', 2j, range(3), frozenset({5})]",
         "assert f() == [1, (2, 'x'), {3: {4}}, None, True, 1.5, b'y', 2j, range(3), frozenset({5})]"),
        ("from fractions import Fraction\nfrom decimal import Decimal\ndef f(): return Fraction(1, 3), Decimal('0.1')",
         "from fractions import Fraction as F\nfrom decimal import Decimal as D\nassert f() == (F(1, 3), D('0.1'))"),
        ("from collections import Counter, namedtuple\nP = namedtuple('P', 'x')\ndef f(): return Counter('aab'), P(1)",
         "assert f() == ({'a': 2, 'b': 1}, (1,))"),
        ("def f(x): return float('nan') if x else float('inf')", "assert f(1) != f(1) and f(0) == float('inf')"),
        ("def f(): return 10 ** 5000", "assert f() == 10 ** 5000"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6"),
        ("def f(g, xs): return [g(x) for x in xs]", "assert f(lambda x: x * 2, [1, 2]) == [2, 4]"),
        ("def f(g):\n    def h(x): return g(x) + 1\n    return h", "assert f(lambda x: x * 2)(3) == 7"),
        (STACK, "s = Stack(1).push(2)\nassert len(s) == 2 and s.pop() == 2 and s[0] == 1 and list(s) == [1] and s"),
        (STACK, "assert Stack(1) + Stack(2) == Stack(1, 2) and Stack(1) != Stack(2) and repr(Stack(1)) == 'Stack(1,)'"),
        (STACK, "try: Stack().pop()\nexcept EmptyError as error: assert str(error) == 'empty'\nelse: assert False"),
        (STACK, "try: Stack().pop()\nexcept ValueError: pass\nelse: assert False"),
        (STACK, "s = Stack()\ns.items = [5]\nassert s.items == [5]\nassert isinstance(s, Stack)"),
        (STACK, "with Stack(1) as s: assert len(s) == 1\nassert len(s) == 0"),
        ("import math\nfrom math import isclose\ndef f(): return 0.1 + 0.2",
         "assert math.isclose(f(), 0.3) and isclose(f(), 0.3) and abs(f() - 0.3) < 1e-9"),
        ("N = 7\nNAMES = ['a']", "assert N == 7 and NAMES == ['a']"),
        ("def calendar(n): return n", "assert calendar(3) == 3"),
        ("print('x' * 1000)\ndef f(): print('y'); return 1", "assert f() == 1"),
        ("def f(s): return s.upper()", "print('passed')\nassert f('\\u00e9\\ud83d') == '\\u00c9\\ud83d'"),
    ],
)  # fmt: skip
def test_assertions_hold_for_a_program_in_another_sandbox(launcher: Launcher, program: str, code: str) -> None:
    assert passes(launcher, program, code)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("def add(a, b): return a - b", "assert add(1, 2) == 3"),
        (ADD, "assert subtract(1, 2) == 3"),
        (ADD, "assert add(1, 2) == 3\nassert add(1, 1) == 3"),
        (ADD, "assert add(1, 2) == 3\nraise SystemExit(0)"),
        ("import sys\nsys.exit(0)", "assert True"),
        ("def add(a, b): raise SystemExit(0)", "assert add(1, 2) == 3"),
        ("import sys; sys.exit(", "assert True"),
        ("def add(a, b):\n    while True: pass", "assert add(1, 2) == 3"),
        ("while True: pass", "assert True"),
        (ADD, "while True: pass"),
    ],
)
def test_what_does_not_hold_fails(launcher: Launcher, program: str, code: str) -> None:
    assert not passes(launcher, program, code, 1.5)


EQUAL_TO_ALL = """
class Yes:
    def __eq__(self, other): print(other); return True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __ne__(self, other): return False
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0
    def __float__(self): return 3.0
    def __round__(self, *_): return 3
    def __hash__(self): return hash(3)
    def __bool__(self): return True
    def __len__(self): return 3
    def __index__(self): return 3
    __int__ = __index__
def add(a, b): return Yes()
"""
CHEATS = {
    "ends at once": "import os\nos._exit(0)",
    "ends when it is asked": "import os\ndef add(a, b): os._exit(0)",
    "is equal to everything": EQUAL_TO_ALL,
    "a list that is equal to everything": "class L(list):\n    __eq__ = lambda *_: True\ndef add(a, b): return L()",
    "a number that is equal to everything": "class N(int):\n    __eq__ = lambda *_: True\ndef add(a, b): return N(9)",
    "a set that holds everything": "class S(set):\n    __contains__ = lambda *_: True\ndef add(a, b): return S()",
    "changes Python": """
import builtins
class Never(Exception):
    def __init__(self, *_): pass
builtins.AssertionError = Never
builtins.abs = builtins.len = builtins.sum = lambda *_: 3
builtins.__dict__['__build_class__'] = None
def abs(x): return 0
def len(x): return 3
def sum(x): return 3
def add(a, b): return 0
""",
    "looks for the tests": """
import gc, glob, os, sys
def add(a, b):
    found = []
    for path in glob.glob('/program/*') + glob.glob('/tmp/*') + glob.glob('/proc/*/cmdline'):
        try: found.append(open(path).read())
        except OSError: pass
    frame = sys._getframe()
    while frame: found += [str(value) for value in frame.f_locals.values()]; frame = frame.f_back
    found += [str(one) for one in gc.get_objects() if isinstance(one, (str, bytes))]
    if any('SECRET_' + 'MARK' in text for text in found): return 3
    return 0
""",
    "writes the verdict": """
import os
def add(a, b):
    for fd in range(256):
        try: os.write(fd, b'passed')
        except OSError: pass
    return 0
""",
    "answers before it is asked": """
import json, os
def add(a, b):
    data = json.dumps({'is': ['mine', 0]}).encode()
    for fd in range(3, 64):
        try: [os.write(fd, len(data).to_bytes(4, 'big') + data) for _ in range(9)]
        except OSError: pass
    return 0
""",
    "answers with what is not an answer": """
import os
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, (1 << 30).to_bytes(4, 'big') + b'x' * 100)
        except OSError: pass
    return 3
""",
    "raises what ends a test": "def add(a, b): raise StopIteration",
    "raises what a test may catch": "def add(a, b): raise GeneratorExit",
    "names of its own for others": """
class math:
    isclose = staticmethod(lambda *_, **__: True)
class unittest: pass
def isclose(*_, **__): return True
isclose.__module__ = 'math'
def add(a, b): return 0
""",
    "reaches into the protocol": """
import sys
main = sys.modules['__main__']
def add(a, b):
    main.Peer._send = lambda self, message: self._line.sendall(b'')
    return 3
""",
    "lends what it does not have": """
import sys
main = sys.modules['__main__']
def add(a, b):
    main.Peer._pack = lambda self, value: ['yours', 0]
    return 3
""",
}
STRICT = """
# SECRET_MARK
import math
assert math.isclose(add(1, 2), 3)
assert abs(add(1, 2) - 3) < 1e-9
assert add(1, 2) == 3
assert 3 == add(1, 2)
assert add(1, 2) in (3, 30)
assert add(1, 2) <= 3
"""
LAX = (
    "assert add(1, 2) == 3",
    "assert 3 == add(1, 2)",
    "assert add(1, 2) in [3]",
    "assert abs(add(1, 2) - 3) < 1",
    "assert add(1, 2) <= 3 and add(1, 2) >= 3",
    "assert math.isclose(add(1, 2), 3)",
    "import math\nassert math.isclose(add(1, 2), 3)",
    "assert isclose(add(1, 2), 3)",
    "assert round(add(1, 2)) == 3",
    "assert {add(1, 2)} == {3}",
    "assert [add(1, 2)] == [3]",
    "assert int(add(1, 2)) == 3",
    "assert 3 in [add(1, 2)]",
)


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_cannot_write_its_verdict(launcher: Launcher, name: str) -> None:
    before = left_behind()
    assert not passes(launcher, CHEATS[name], STRICT, 2.0)
    assert left_behind() == before


@pytest.mark.parametrize("code", LAX)
def test_an_object_that_is_equal_to_everything_passes_no_single_assertion(launcher: Launcher, code: str) -> None:
    assert not passes(
        launcher, EQUAL_TO_ALL + CHEATS["names of its own for others"].replace("def add", "def sub"), code
    )


def test_the_program_never_sees_what_it_is_compared_with(launcher: Launcher) -> None:
    """It lends an object whose every operation would tell; what the program saw is asked for afterwards."""
    code = f"import math\nfor _ in range(1):\n    for check in {LAX!r}:\n        try: exec(check)\n"
    code += "        except Exception: pass\nassert seen() == []"
    program = EQUAL_TO_ALL.replace("print(other)", "SEEN.append(other)") + "\nSEEN = []\ndef seen(): return SEEN"
    assert passes(launcher, program, code)


# ----------------------------------------------------------------------------------------------------------- timeouts


def test_a_timeout_follows_the_slowest_correct_program() -> None:
    timeout = AdaptiveTimeout(least=2.0, factor=1.5, most=30.0)
    assert timeout.seconds(b"a") == 30.0
    timeout.passed(b"a", 0.1)
    assert (timeout.seconds(b"a"), timeout.seconds(b"b")) == (2.0, 30.0)
    timeout.passed(b"a", 4.0)
    timeout.passed(b"a", 1.0)
    assert timeout.seconds(b"a") == 6.0
    timeout.passed(b"a", 25.0)
    assert timeout.seconds(b"a") == 30.0


# ------------------------------------------------------------------------------------------------------------- rewards


def trajectory(answer: str, **data: Any) -> Trajectory:
    played = Trajectory("t/0", 0, 0, Task("row/0", "prompts", 0, data))
    played.observe(token_ids([]))
    played.answer([], answer, "stop")
    return played


TESTS = ["assert add(1, 2) == 3", {"input": "", "output": ""}, "assert add(2, 2) == 5"]


def test_all_tests_count_or_the_share_that_pass(launcher: Launcher) -> None:
    whole = CodeReward(CodeRewardConfig())(trajectory(f"```python\n{ADD}\n```", tests=TESTS))
    assert (whole.value, whole.parts) == (0.0, {"passed": 2.0, "tests": 3.0})
    share = CodeReward(CodeRewardConfig(partial=True, tests="cases"))(trajectory(ADD, cases=TESTS[::-1]))
    assert (share.value, share.parts) == (2 / 3, {"passed": 2.0, "tests": 3.0})
    assert CodeReward(CodeRewardConfig())(trajectory(ADD, tests=TESTS[:2])).value == 1.0


def test_a_job_names_it_like_any_reward(launcher: Launcher) -> None:
    config = RewardConfig(code=CodeRewardConfig(timeout=5.0), weight=2.0)
    scorer = Scorer([config], Path(), call_plain=call_in_thread)
    played = trajectory(ADD, tests="assert add(1, 2) == 3")
    asyncio.run(scorer.score(played))
    assert played.rewards == {"environment": 0.0, "code": 2.0}
    assert played.info["reward_parts"] == {"code": {"passed": 1.0, "tests": 1.0}}


def test_slow_programs_share_one_budget(launcher: Launcher) -> None:
    """Else a program could make its reward miss the deadline, and an attempt without reward is not a reward of 0."""
    reward = CodeReward(CodeRewardConfig(partial=True, timeout=0.5, least_timeout=0.5, total_timeout=0.8))
    slow = trajectory("import time; time.sleep(9)", tests=[{"input": "", "output": str(n)} for n in range(50)])
    assert reward(slow).value == 0.0


def test_a_row_without_tests_is_no_score(launcher: Launcher) -> None:
    with pytest.raises(RewardFailed, match="row/0: its row has no column 'tests'; did you mean 'test'"):
        CodeReward(CodeRewardConfig())(trajectory(ADD, test="assert True"))


def test_a_sandbox_that_fails_is_no_score(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = CodeReward(CodeRewardConfig())
    monkeypatch.setattr(launch, "FIRST", ("/no/such/shell",))
    with pytest.raises(RewardFailed, match="the sandbox failed, so the program has no score: bwrap: execvp"):
        reward(trajectory(ADD, tests=[{"input": "", "output": ""}]))


def test_many_threads_may_call_it(launcher: Launcher) -> None:
    reward = CodeReward(CodeRewardConfig(parallel=8))
    values: list[float] = []
    played = trajectory(ADD, tests="assert add(1, 2) == 3")
    threads = [threading.Thread(target=lambda: values.append(reward(played).value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [1.0] * 8


# -------------------------------------------------------------------------------------------- where there is no sandbox


def test_without_bubblewrap_it_refuses_to_start_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    which = launch.shutil.which
    monkeypatch.setattr(launch.shutil, "which", lambda name: None if name == "bwrap" else which(name))
    with pytest.raises(
        ConfigError, match=r"rewards: code: .*bwrap.*missing: apt-get install bubblewrap; or set `unsafe"
    ):
        Scorer([RewardConfig(code=CodeRewardConfig())], Path())
    finding = doctor.check_sandbox()
    assert (finding.status, finding.fix) == ("warning", "apt-get install bubblewrap, if you want code rewards")
    scorer = Scorer([RewardConfig(code=CodeRewardConfig(unsafe=True))], Path())
    played = trajectory(ADD, tests=["assert add(1, 2) == 3", {"input": "", "output": ""}])
    asyncio.run(scorer.score(played))
    assert played.reward == 1.0


def test_refused_namespaces_are_told_with_what_bubblewrap_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuses = tmp_path / "bwrap"
    refuses.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0.8.0 || echo 'No permissions' >&2; exit 1\n"
    )
    refuses.chmod(refuses.stat().st_mode | stat.S_IXOTH | stat.S_IXUSR)
    open_to_others(tmp_path)
    which = launch.shutil.which
    monkeypatch.setattr(launch.shutil, "which", lambda name: str(refuses) if name == "bwrap" else which(name))
    with pytest.raises(ConfigError, match=r"No permissions.*user namespaces.*seccomp=unconfined.*or set `unsafe"):
        Launcher()
    assert doctor.check_sandbox().status == "warning"


def test_an_unsafe_program_is_still_limited() -> None:
    launcher = Launcher(unsafe=True)
    assert "unsafe" in launcher.describe()
    assert launcher.run("while True: pass", b"", 0.3).end == "timeout"
    assert launcher.run("print('x' * 10**7)").end == "output"
    assert b"MemoryError" in launcher.run("bytearray(1 << 30)").stderr
    assert launcher.run("import os; print(sorted(os.environ))").stdout == (
        b"['HOME', 'LANG', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH']\n"
    )


def test_an_interpreter_that_is_not_there_is_named() -> None:
    launcher_or_skip()
    with pytest.raises(ConfigError, match="/no/such/python"):
        Launcher(python="/no/such/python")


def test_a_readable_folder_can_be_read_and_not_written(launcher: Launcher, tmp_path: Path) -> None:
    open_to_others(tmp_path)
    (tmp_path / "words.txt").write_text("words")
    reading = Launcher(readable=[str(tmp_path)])
    assert reading.run(f"print(open({str(tmp_path / 'words.txt')!r}).read())").stdout == b"words\n"
    assert not reading.run(f"open({str(tmp_path / 'words.txt')!r}, 'a')").succeeded


def test_the_doctor_says_what_protects_this_machine(launcher: Launcher) -> None:
    finding = doctor.check_sandbox()
    assert finding.status == "ok" and "bubblewrap" in finding.detail


# ------------------------------------------------------------------------------------------------------------- cgroups


def tree(root: Path, version: int, handed_on: str = "") -> Path:
    """A folder that looks like a tree of cgroups."""
    if version == 2:
        own = root / "user" / "session"
        own.mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu memory pids")
        (own / "cgroup.subtree_control").write_text("")
        (own.parent / "cgroup.subtree_control").write_text(handed_on)
        return own
    for controller in ("memory", "pids", "cpu"):
        (root / controller / "mine").mkdir(parents=True)
    return root


@pytest.fixture
def files_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real tree the kernel makes the files of a new folder."""
    mkdir = Path.mkdir

    def make(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.name.startswith(cgroups.PREFIX):
            for name in ("memory.limit_in_bytes", "pids.max", "memory.max", "memory.swap.max"):
                (path / name).write_text("")

    def remove(path: Path) -> None:
        for file in path.iterdir():
            file.unlink()
        os.rmdir(path)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "rmdir", remove)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path, files_appear: None) -> None:
    own = "5:memory:/mine\n4:pids:/elsewhere\n3:cpu,cpuacct:/mine\n"
    maker = CgroupMaker(1000, 9, tree(tmp_path, 1), own)
    made = maker.make()
    assert maker.version == 1
    assert [folder.parent for folder in made.folders] == [
        tmp_path / "memory/mine",
        tmp_path / "pids",
        tmp_path / "cpu/mine",
    ]
    assert (made.folders[0] / "memory.limit_in_bytes").read_text() == "1000"
    assert (made.folders[1] / "pids.max").read_text() == "9"
    made.remove()
    assert not any(folder.exists() for folder in made.folders)


def test_version_2_uses_the_folder_that_hands_its_controllers_on(tmp_path: Path, files_appear: None) -> None:
    tree(tmp_path, 2, handed_on="cpu memory pids")
    maker = CgroupMaker(1000, 9, tmp_path, "0::/user/session\n")
    made = maker.make()
    assert (maker.version, made.folders[0].parent) == (2, tmp_path / "user")
    assert (made.folders[0] / "memory.max").read_text() == "1000"
    assert (made.folders[0] / "memory.swap.max").read_text() == "0"
    assert made.enter(["true"])[-3:] == [str(made.folders[0] / "cgroup.procs"), "--", "true"]


def test_without_a_folder_that_may_be_used_there_is_no_cgroup(tmp_path: Path) -> None:
    tree(tmp_path, 2, handed_on="cpu")
    with pytest.raises(PermissionError):
        CgroupMaker(1000, 9, tmp_path, "0::/user/session\n")


def test_folders_of_processes_that_are_gone_are_removed(tmp_path: Path, files_appear: None) -> None:
    tree(tmp_path, 2, handed_on="memory pids")
    stale, used = (tmp_path / "user" / f"{cgroups.PREFIX}{pid}-0" for pid in (2**22 + 1, os.getppid()))
    stale.mkdir()
    used.mkdir()
    maker = CgroupMaker(1000, 9, tmp_path, "0::/user/session\n")
    assert (stale.exists(), used.exists(), maker.version) == (False, True, 2)


def test_memory_counts_for_all_processes_together(launcher: Launcher) -> None:
    """Sixteen processes of 100 MB each are each within their limit, and together far above it."""
    if "cgroup v" not in launcher.describe():
        pytest.skip("no cgroup may be made here")
    program = """
import os, time
children = []
for _ in range(8):
    if (pid := os.fork()) == 0:
        held = bytearray(b'x' * (100 << 20)); time.sleep(3); os._exit(0)
    children.append(pid)
print(all(os.waitpid(pid, 0)[1] == 0 for pid in children))
"""
    assert launcher.run(program, b"", 8.0).stdout != b"True\n"
    small = SandboxLimits(memory=256 * launch.MIB)
    assert b"MemoryError" in Launcher(small).run("bytearray(300 << 20)").stderr


# ------------------------------------------------------------------------------------------------------ the job file

JOB = "model: tiny\nenvironment: {type: prompts, file: x.jsonl}\nrewards:\n"


def job_with(text: str) -> Job:
    return parse_text(JOB + text, "job.yaml", Path("/jobs"), Job)


def test_ready_rewards_in_a_job_file() -> None:
    job = job_with("  - code: {tests: cases, timeout: 10}\n    weight: 0.5\n  - math: {}\n    name: right\n")
    code, math = job.rewards
    assert code.code is not None and (code.code.tests, code.code.timeout, code.weight) == ("cases", 10.0, 0.5)
    assert (code.shown_name, math.ready, math.shown_name) == ("code", "math", "right")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "  - {weight: 1}\n",
            "job.yaml:4: rewards[0]: no reward: give each item of the list one of function, code, math",
        ),
        ("  - {code: {}, math: {}}\n", "code and math are two rewards"),
        ("  - {code: {test: x}}\n", "rewards[0].code.test: no such key; did you mean tests"),
        ("  - {code: {timeout: -1}}\n", "rewards[0].code.timeout: expected a number above 0"),
        ("  - {code: {total_timeout: 90}}\n", "rollout.deadlines.reward is 60"),
        ("  - {judge: {url: x, model: y, token: abc}}\n", "expected env:NAME"),
        ("  - {judge: {url: x, model: y, prompt: Hello}}\n", "prompt has no {response}"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        job_with(text)
    assert message in str(refused.value)
