"""`python -m bench.weights [--layers N] [--versions N] [--stores NAME ...] [--lab] [--short] [--json]`

Each weight store beside a plain copy of the same bytes; what a patch moves; and what an update costs an engine that
generates meanwhile. `--lab` instead compares background with blocking transfer over a slow link, in the lab
(docs/lab.md; root). The exit code says whether all bars are met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from . import engine, lab, stores


def main() -> None:
    arguments = _arguments()
    if arguments.short:
        arguments.layers, arguments.versions = 2, 2
    torch.set_num_threads(1)
    if arguments.lab:
        found: dict[str, Any] = {"lab": lab.compare(arguments.short)}
    else:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(prefix="rollweave-bench-", dir=memory) as folder:
            found = _measure(Path(folder), arguments)
    print(json.dumps(found) if arguments.json else _text(found))
    rows = [row for part in found.values() for row in (part if isinstance(part, list) else [part])]
    sys.exit(not (arguments.short or all(row["met"] for row in rows)))


def _measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in arguments.stores if stores.here(name)]
    size = arguments.layers, arguments.versions
    between = [name for name in names if name != "shared_memory"]
    return {
        "stores": [stores.measure(name, folder, *size) for name in names],
        "delta": [stores.measure_delta(name, folder, *size) for name in between],
        "engine": [asyncio.run(engine.measure(way, folder, *size)) for way in engine.WAYS],
    }


def _text(found: dict[str, Any]) -> str:
    if "lab" in found:
        return lab.text(found["lab"])
    lines = []
    for row in found["stores"]:
        bar = f" (bar {stores.BAR:g}x) {_word(row)}" if row["store"] == "shared_memory" else ""
        lines.append(
            f"{row['store']:13} {row['megabytes']:.0f} MB: memcpy {row['memcpy_s']:.3f} s, push {row['push_s']:.3f} s "
            f"({row['push_ratio']:.1f}x), stored {row['store_s']:.3f} s later, pull {row['pull_s']:.3f} s "
            f"({row['pull_ratio']:.1f}x){bar}"
        )
    for row in found["delta"]:
        lines.append(
            f"{row['store']:13} bfloat16 at learning rate {stores.RATE:g}: {row['moved_share']:.1%} of the bytes move "
            f"(bar {stores.DELTA_BAR:.0%}) {_word(row)}, pull {row['pull_s']:.3f} s, equal bit by bit"
        )
    return "\n".join([*lines, *map(engine.text, found["engine"])])


def _word(row: dict[str, Any]) -> str:
    return "met" if row["met"] else "NOT MET"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.weights", description=__doc__)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--stores", nargs="+", default=list(stores.STORES), choices=stores.STORES)
    parser.add_argument("--lab", action="store_true", help="background against blocking transfer over a slow link")
    parser.add_argument("--short", action="store_true", help="small, to see that it works; its bars do not count")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
