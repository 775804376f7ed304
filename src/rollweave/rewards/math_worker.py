"""The child process of the math reward: `python math_worker.py MEGABYTES SECONDS`, one question and answer a line.

It is not imported by the rest of the package. A question gets two answers: whether the expected expression could be
read, and the score. Whatever goes wrong between them is the fault of the other expression.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

MARKS = ("$", "\\boxed", "\\(", "\\[")
"""By which math-verify finds LaTeX in a text."""
GRACE_SECONDS = 1.0


def main() -> None:
    megabytes, seconds = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20,) * 2)
    with os.fdopen(os.dup(1), "w", buffering=1) as line:
        os.dup2(2, 1)  # what libraries print is no answer
        math_verify = importlib.import_module("math_verify")

        print(json.dumps({"ready": True}), file=line)
        for question in sys.stdin:
            # If the parent has been killed, nothing else ends a comparison that hangs: the signal is not caught.
            signal.setitimer(signal.ITIMER_REAL, 2 * seconds + GRACE_SECONDS)
            asked = json.loads(question)
            wanted = read(math_verify, expression(asked["wanted"]))
            print(json.dumps({"understood": bool(wanted)}), file=line)
            if wanted:
                print(json.dumps({"score": score(math_verify, wanted, asked["given"])}), file=line)
            signal.setitimer(signal.ITIMER_REAL, 0)


def expression(text: str) -> str:
    """The expected answer is one expression, also where its column has no marks around it."""
    return text if any(mark in text for mark in MARKS) else f"${text}$"


def read(math_verify: Any, text: str) -> Any:
    return math_verify.parse(text, parsing_timeout=None)


def score(math_verify: Any, wanted: Any, given: str) -> float:
    try:
        return float(math_verify.verify(wanted, read(math_verify, given), timeout_seconds=None))
    except (Exception, MemoryError):  # the boundary: an expression that cannot be compared is not equal
        return 0.0


if __name__ == "__main__":
    main()
