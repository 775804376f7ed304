"""Tests that assert something about a program which runs in another sandbox. This file runs inside of both.

    sandbox of the tests                              sandbox of the program
    assert add(1, 2) == 3  ── call add with 1, 2 ──▶  its own add
                           ◀──────── 3 ────────────

The tests see the program's names as stand-ins. A call goes over, and what comes back is plain data, so the comparison
is made where the program has no say: the program never sees what is expected of it, and cannot write the verdict,
whatever it does to its own interpreter. Anything that is not plain data stays where it is and is asked by its number.
A stand-in is equal to another stand-in if the program says so, and never to plain data; it has no order and no
arithmetic with plain data, because those would show the program what it is compared with.

Names of Python's own (`abs`, `len`, ...) are never the program's, and what the program has imported from the standard
library is imported again on the side of the tests.
"""

from __future__ import annotations

import builtins
import importlib
import json
import operator
import os
import socket
import sys
from types import ModuleType
from typing import Any, ClassVar

FOLDER = os.path.dirname(os.path.abspath(__file__))
PROGRAM, TESTS = "program.py", "tests.py"
PASSED = b"passed"
MOST_BYTES = 16 * 2**20
"""Of one message."""

COLLECTIONS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
AS_TEXT = {"decimal.Decimal", "fractions.Fraction"}
"""Numbers that are sent as they are written."""
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class ProgramError(Exception):
    """The program raised what is no ordinary exception, or has ended, or does not keep to the protocol."""


class StandIn:
    """Stands for an object on the other side."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.__dict__.update(_peer=peer, _number=number)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._peer.ask("call", self, values, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle and the like look for hooks
            raise AttributeError(name)
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("setitem", self, key, value)

    def __len__(self) -> Any:
        return self._peer.ask("len", self)

    def __bool__(self) -> bool:
        return self._peer.ask("bool", self) is True

    def __str__(self) -> str:
        return str(self._peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self._peer.ask("repr", self))

    def __iter__(self) -> Any:
        return self._peer.ask("iter", self)

    def __next__(self) -> Any:
        return self._peer.ask("next", self)

    def __enter__(self) -> Any:
        return self._peer.ask("enter", self)

    def __exit__(self, *error: object) -> None:
        self._peer.ask("exit", self)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, StandIn) and self._peer.ask("isinstance", value, self) is True

    def __hash__(self) -> int:
        return hash(self._number)


def _between_stand_ins(name: str) -> Any:
    def compute(left: StandIn, right: Any) -> Any:
        return left._peer.ask(name, left, right) if isinstance(right, StandIn) else NotImplemented

    return compute


for _name in OPERATORS:
    setattr(StandIn, f"__{_name}__", _between_stand_ins(_name))


class Peer:
    """One end of the line between the two sandboxes."""

    operations: ClassVar[dict[str, Any]] = {
        "call": lambda function, values, named: function(*values, **named),
        "getattr": getattr,
        "setattr": setattr,
        "getitem": operator.getitem,
        "setitem": operator.setitem,
        "len": len,
        "bool": bool,
        "str": str,
        "repr": repr,
        "iter": iter,
        "next": next,
        "enter": lambda context: context.__enter__(),
        "exit": lambda context: context.__exit__(None, None, None),
        "isinstance": isinstance,
        **{name: getattr(operator, name) for name in OPERATORS},
    }

    def __init__(self, line: socket.socket, may_ask: Any = operations) -> None:
        """`may_ask`: what the other side may ask of the objects that it stands in for."""
        self._line = line
        self._may_ask = dict(may_ask)
        self._lent: list[Any] = []
        self.errors: dict[str, type[Exception]] = {}
        """Exceptions of the program's own, by name."""

    def ask(self, name: str, *operands: Any) -> Any:
        """Ask the other side, which may ask back before it answers."""
        self._send({"ask": name, "of": [self._pack(operand) for operand in operands]})
        while "ask" in (message := self._receive()):
            self._answer(message)
        if "raised" in message:
            raise self._error(*message["raised"])
        return self._unpack(message["is"])

    def serve(self) -> None:
        """Answer until the other side has gone."""
        while True:
            self._answer(self._receive())

    def _answer(self, message: Any) -> None:
        try:
            operands = [self._unpack(operand) for operand in message["of"]]
            reply = {"is": self._pack(self._may_ask[message["ask"]](*operands))}
        except BaseException as error:  # the boundary: it is raised again on the other side
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            reply = {"raised": [type(error).__name__, kinds[0], str(error)[:1000]]}
        self._send(reply)

    def _error(self, name: str, builtin: str, text: str) -> Exception:
        kind = self.errors.get(name) or getattr(builtins, builtin, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
        return ProgramError(f"{name}: {text}")

    # ---------------------------------------------------------------------------------------------------------- data

    def _pack(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return value if type(value) is kind else kind(value)
        if isinstance(value, StandIn):
            return ["yours", value._number]
        for name, collection in COLLECTIONS.items():
            if isinstance(value, collection):
                return [name, [self._pack(item) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self._pack(key), self._pack(item)] for key, item in value.items()]]
        return self._pack_rare(value)

    def _pack_rare(self, value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            return ["bytes", value.hex()]
        if isinstance(value, complex):
            return ["complex", [value.real, value.imag]]
        if isinstance(value, range):
            return ["range", [value.start, value.stop, value.step]]
        if (name := f"{type(value).__module__}.{type(value).__name__}") in AS_TEXT:
            return [name, str(value)]
        self._lent.append(value)
        return ["mine", len(self._lent) - 1]

    def _unpack(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        name, content = value
        if name in COLLECTIONS:
            return COLLECTIONS[name](self._unpack(item) for item in content)
        if name == "dict":
            return {self._unpack(key): self._unpack(item) for key, item in content}
        if name == "mine":
            return StandIn(self, int(content))
        if name == "yours":
            return self._lent[content]
        if name in AS_TEXT:
            module, _, kind = name.partition(".")
            return getattr(importlib.import_module(module), kind)(content)
        if name == "bytes":
            return bytes.fromhex(content)
        return {"complex": complex, "range": range}[name](*content)

    # ------------------------------------------------------------------------------------------------------ messages

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self._line.sendall(len(data).to_bytes(4, "big") + data)

    def _receive(self) -> Any:
        size = int.from_bytes(self._read(4), "big")
        if size > MOST_BYTES:
            raise ProgramError(f"a message of {size} bytes")
        message = json.loads(self._read(size))
        if not isinstance(message, dict):
            raise ProgramError("a message of another kind")
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._line.recv(size - len(data))
            if not part:
                raise ProgramError("the other side has gone")
            data += part
        return bytes(data)


# --------------------------------------------------------------------------------------------- the side of the program


def serve_program(line: socket.socket) -> None:
    """Run the program, tell its names, and answer what the tests ask."""
    Peer(line, {**Peer.operations, "load": load_program}).serve()


def load_program() -> list[Any]:
    """Each public name with what it is: a module, something of the standard library (by its module), an exception (by
    the nearest of Python's own), or a value."""
    module = ModuleType("program")
    sys.modules["program"] = module
    with open(os.path.join(FOLDER, PROGRAM), encoding="utf-8") as file:
        exec(compile(file.read(), PROGRAM, "exec"), module.__dict__)
    return [[name, *_kind(value)] for name, value in module.__dict__.items() if not name.startswith("__")]


def _kind(value: Any) -> tuple[str, Any]:
    if isinstance(value, ModuleType):
        return "module", value.__name__
    home = getattr(value, "__module__", None)
    if home in sys.stdlib_module_names and home != "builtins":
        return "standard", home
    if isinstance(value, type) and issubclass(value, Exception):
        return "error", next(kind.__name__ for kind in value.__mro__ if kind.__module__ == "builtins")
    return "value", value


# ----------------------------------------------------------------------------------------------- the side of the tests


def run_tests(line: socket.socket, verdict: int) -> None:
    """Run the tests, and say so if they pass."""
    peer = Peer(line, {"call": Peer.operations["call"]})
    scope: dict[str, Any] = {"__name__": "__main__"}
    for name, kind, value in peer.ask("load"):
        if not hasattr(builtins, str(name)):
            scope |= _in_tests(peer, str(name), kind, value)
    with open(os.path.join(FOLDER, TESTS), encoding="utf-8") as file:
        exec(compile(file.read(), TESTS, "exec"), scope)
    os.write(verdict, PASSED)


def _in_tests(peer: Peer, name: str, kind: str, value: Any) -> dict[str, Any]:
    """What a name of the program is for the tests."""
    standard = name in sys.stdlib_module_names
    if kind == "module":
        return {name: importlib.import_module(name)} if standard and value == name else {}
    if kind == "standard":
        module = importlib.import_module(value) if value in sys.stdlib_module_names else None
        return {name: getattr(module, name)} if hasattr(module, name) else {}
    if kind == "error":
        base = getattr(builtins, str(value), Exception)
        peer.errors[name] = type(name, (base if issubclass(base, Exception) else Exception,), {})
        return {name: peer.errors[name]}
    if standard and isinstance(value, StandIn):  # not something that looks like the module
        return {name: lambda *values, **named: value(*values, **named)}
    return {name: value}


if __name__ == "__main__":
    sys.set_int_max_str_digits(0)
    with socket.socket(fileno=int(sys.argv[1])) as connected:
        if len(sys.argv) > 2:
            run_tests(connected, int(sys.argv[2]))
        else:
            serve_program(connected)
