"""`python -m bench.predict [--repeats 3] [--json] [--out DIR]`

Profiles the job, predicts it in every mode, then really runs it, each mode once per repeat. With `--out` the profile
and the runs are kept, and what is there already is not run again. It needs two cores to itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from rollweave.config.load import load_job
from rollweave.config.scenario import Scenario
from rollweave.profiling.profile import load_profile
from rollweave.simulation.calibration import summary
from rollweave.simulation.prediction import predict

from .cases import CASE, IDLE_BAR, JOB, MODES, SKIPPED_STEPS, STEP_BAR

_measure = import_module("bench.async.measure")
COMPARED = ("step_seconds", "engine_idle", "trainer_idle")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-predict-") as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        policy = _policy(folder)
        profile = _profile(folder, policy)
        measured = _runs(folder, policy, arguments.repeats)
    results = [_compare(mode, profile, policy, measured[mode.name]) for mode in MODES]
    print(json.dumps(results, indent=1) if arguments.json else f"{summary(profile)}\n\n{table(results)}")


def _policy(folder: Path) -> Path:
    """Made once: all modes start from the same."""
    made: Path = _measure.make_policy(CASE, folder / "policy")
    return made


def _profile(folder: Path, policy: Path) -> Scenario:
    path = folder / "profile.yaml"
    if not path.exists():
        _say(f"profiling {JOB.name}")
        overrides = ("model.type=local", f"model.path={policy.absolute()}")
        _measure.rollweave("profile", str(JOB), *overrides, "--steps", "10", "--output", str(path))
    return load_profile(path)


def _runs(folder: Path, policy: Path, repeats: int) -> dict[str, list[Any]]:
    """Interleaved, so that whatever else happens on the machine hits all modes; the order rotates."""
    results: dict[str, list[Any]] = {mode.name: [] for mode in MODES}
    for repeat in range(repeats):
        for place in range(len(MODES)):
            number = (repeat + place) % len(MODES)
            result = _run(folder / f"{repeat}-{number}", MODES[number], policy)
            results[MODES[number].name].append(result)
            _say(f"{repeat + 1}/{repeats} {MODES[number].name}: {result.step_seconds:.2f} s a step")
    return results


def _run(folder: Path, mode: Any, policy: Path) -> Any:
    if not (folder / "summary.json").exists():
        _measure.run(CASE, mode, policy, folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return _measure.summarise([row for row in map(json.loads, lines) if row["step"] >= SKIPPED_STEPS])


def _compare(mode: Any, profile: Scenario, policy: Path, runs: list[Any]) -> dict[str, Any]:
    job = load_job(JOB, [*mode.overrides, "model.type=local", f"model.path={policy}"])
    predicted = asdict(predict(job, profile))
    measured = {key: median(getattr(run, key) for run in runs) for key in COMPARED}
    error = predicted["step_seconds"] / measured["step_seconds"] - 1
    idle = {key: predicted[key] - measured[key] for key in COMPARED[1:]}
    return {
        "mode": mode.name,
        "repeats": len(runs),
        "predicted": {key: predicted[key] for key in COMPARED},
        "measured": measured,
        "runs": [run.step_seconds for run in runs],
        "step_error": error,
        "idle_errors": idle,
        "met": abs(error) <= STEP_BAR and all(abs(each) <= IDLE_BAR for each in idle.values()),
    }


def table(results: list[dict[str, Any]]) -> str:
    repeats = results[0]["repeats"]
    head = f"{'':42}{'step s':>21}{'':>8}{'engine idle':>17}{'trainer idle':>17}"
    lines = [f"predicted / measured (median of {repeats})", head]
    for row in results:
        guess, seen = row["predicted"], row["measured"]
        idle = "".join(f"{guess[key]:>9.0%} / {seen[key]:>4.0%} " for key in COMPARED[1:])
        step = f"{guess['step_seconds']:>12.2f} / {seen['step_seconds']:>6.2f}{row['step_error']:>+8.0%}"
        lines.append(f"{row['mode']:42}{step}{idle}  {'met' if row['met'] else 'MISSED'}")
    lines.append(f"asked: step time within {STEP_BAR:.0%}, idle shares within {IDLE_BAR * 100:.0f} points")
    return "\n".join(lines)


def _say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the profile and the runs here, and go on with what is there")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
