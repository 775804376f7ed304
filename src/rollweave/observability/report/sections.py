"""Makes the parts of the report that are text and tables: tiles, ledger, waits, transcripts, configuration, prediction.

The prediction compares the run with a simulation on a profiled machine. It is a small file in the run folder, with the
names of the metrics as keys; `rollweave report RUN --profile FILE` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rollweave.errors import RunFolderError
from rollweave.observability.report.data import RecordedRow, RunRecord
from rollweave.observability.text import duration, number, percent

WAITS_SHOWN = 20


def heading(run: RunRecord) -> str:
    reason = run.summary.exit_reason if run.finished else "unfinished"
    word, style = {
        "target": ("target reached", "good"),
        "completed": ("all steps done", "good"),
        "interrupted": ("interrupted", "warn"),
        "failed": ("failed", "bad"),
        "unfinished": ("no summary yet: running, or killed", "warn"),
    }[reason]
    facts = [
        run.setting("environment", "type"),
        run.setting("model", "type"),
        _mode(run),
        run.setting("runtime", "type"),
    ]
    line = " · ".join(str(fact) for fact in facts if fact)
    notes = [*run.notes, *([run.summary.error] if run.summary.error else [])]
    return (
        f'<header><h1>{escape(run.name)}</h1><span class="pill {style}">{word}</span>'
        f'<div class="sub">{escape(line)}</div></header>' + "".join(f'<p class="note">{escape(n)}</p>' for n in notes)
    )


def _mode(run: RunRecord) -> str | None:
    alpha = run.setting("pipeline", "alpha")
    mode = run.setting("pipeline", "type")
    return f"{mode}, α = {alpha:g}" if isinstance(alpha, int | float) else mode


def tiles(run: RunRecord) -> str:
    summary = run.summary
    wasted = sum(summary.tokens_wasted.values())
    settled = wasted + summary.tokens_trained
    share = wasted / settled if settled else None
    total = run.setting("training", "steps")
    made = [
        _reward_tile(run),
        _tile(
            "Steps", str(summary.steps), f"of {total}" if total else f"{number(summary.tokens_trained)} tokens trained"
        ),
        _tile("Duration", duration(summary.elapsed), f"{duration(_mean(run, 'time/step'))} a step"),
        _tile(
            "Tokens per second",
            number(_mean(run, "tokens_per_second/generated")),
            f"generated; {number(_mean(run, 'tokens_per_second/trained'))} trained",
        ),
        _tile(
            "Staleness", number(summary.staleness_max), f"at most; {number(_mean(run, 'staleness/mean'), 2)} on average"
        ),
        _tile("Wasted", percent(share), f"{number(wasted)} of {number(settled)} tokens"),
    ]
    return f'<div class="tiles">{"".join(made)}</div>'


def _reward_tile(run: RunRecord) -> str:
    summary = run.summary
    if summary.eval_final is None:
        return _tile("Training reward", number(summary.reward), "last batch; not evaluated yet")
    more = f"from {number(summary.eval_first)}; best {number(summary.eval_best)} at version {summary.eval_best_version}"
    return _tile("Held-out reward", number(summary.eval_final), more)


def _tile(label: str, value: str, more: str) -> str:
    return (
        f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def _mean(run: RunRecord, key: str) -> float | None:
    values = [y for _, y in run.points(key)]
    return sum(values) / len(values) if values else None


def ledger(run: RunRecord) -> str:
    summary = run.summary
    tables = [
        _counts("Tasks", "how every task ended", summary.tasks),
        _counts("Attempts", "how every attempt ended", summary.attempts),
    ]
    spent = {"trained": run.summary.tokens_trained, **run.summary.tokens_wasted}
    tables.append(_counts("Tokens", "how the sampled tokens ended", spent))
    return f'<h2>Ledger</h2><div class="tables">{"".join(tables)}</div>'


def _counts(title: str, hint: str, counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td><td class="n">{_share(count, total)}</td>'
        f'<td class="bar">{_bar(count, total)}</td></tr>'
        for name, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    table = f"<table>{body}</table>" if total else '<p class="empty">nothing recorded yet</p>'
    caption = f'<figcaption><b>{title}</b> <span class="hint">{hint}: {total:,}</span></figcaption>'
    return f'<figure class="card">{caption}{table}</figure>'


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}%" if total else "-"


def _bar(count: int, total: int) -> str:
    return f'<i style="width:{100 * count / total:.1f}%"></i>' if count else ""


def waits(run: RunRecord) -> str:
    """The waits that took longer than expected."""
    slow = [event for event in run.events if event.get("name") == "wait.slow"]
    if not slow:
        return ""
    rows = "".join(
        f'<tr><td class="n">{duration(event.get("time"))}</td><td>{escape(_inputs(event.get("data")))}</td></tr>'
        for event in slow[:WAITS_SHOWN]
    )
    more = f" (the first {WAITS_SHOWN} of {len(slow)})" if len(slow) > WAITS_SHOWN else ""
    head = '<tr><th class="n">at</th><th>what</th></tr>'
    return f'<h2>Slow waits{more}</h2><div class="card"><table class="waits">{head}{rows}</table></div>'


def _inputs(data: Any) -> str:
    return (
        " · ".join(f"{key.replace('_', ' ')} {value}" for key, value in data.items())
        if isinstance(data, Mapping)
        else ""
    )


def chosen(transcripts: Sequence[RecordedRow]) -> list[tuple[str, RecordedRow]]:
    """The first, best, worst and last episode. An episode that is several of these is shown once, with all names."""
    if not transcripts:
        return []
    late = list(reversed(transcripts))  # of equal episodes the latest is chosen: it shows the policy of today
    picks = {
        "first": transcripts[0],
        "best": max(late, key=_reward),
        "worst": min(late, key=_reward),
        "last": transcripts[-1],
    }
    labels: dict[int, list[str]] = {}
    for label, row in picks.items():
        labels.setdefault(id(row), []).append(label)
    rows = {id(row): row for row in picks.values()}
    return [(", ".join(names), rows[key]) for key, names in labels.items()]


def _reward(row: RecordedRow) -> float:
    value = row.get("reward")
    return float(value) if isinstance(value, int | float) else 0.0


def transcripts(run: RunRecord) -> str:
    picked = chosen(run.transcripts)
    body = (
        "".join(_transcript(label, row) for label, row in picked) or '<p class="empty">no transcripts were written</p>'
    )
    hint = f"{len(picked)} of {len(run.transcripts)} in trajectories.jsonl" if picked else ""
    return f'<h2>Transcripts <span class="hint">{hint}</span></h2>{body}'


def _transcript(label: str, row: RecordedRow) -> str:
    parts = row.get("rewards") or {}
    facts = [
        f"step {row.get('step')}",
        f"reward {number(_reward(row))}" + (f" ({_parts(parts)})" if len(parts) > 1 else ""),
        str(row.get("outcome")),
        f"{len(row.get('turns') or [])} turns",
        f"staleness {row.get('staleness')}",
        f"group {row.get('group')} member {row.get('member')}",
    ]
    turns = "".join(_turn(number, turn) for number, turn in enumerate(row.get("turns") or [], start=1))
    spans = "".join(f'<span class="hint">{escape(fact)}</span>' for fact in facts)
    return f"<details><summary><b>{escape(label)}</b>{spans}</summary>{turns}</details>"


def _parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in parts.items())


def _turn(index: int, turn: Mapping[str, Any]) -> str:
    reward = turn.get("reward") or 0.0
    facts = [_versions(turn.get("versions") or []), str(turn.get("finish") or ""), *_seconds(turn.get("seconds") or {})]
    if reward:
        facts.insert(0, f"reward {number(reward)}")
    return (
        f'<div class="turn"><div class="side">turn {index}</div><div>'
        f"<pre>{escape(str(turn.get('observation', '')))}</pre>"
        f'<pre class="answer">{escape(str(turn.get("answer", "")))}</pre>'
        f'<div class="meta">{escape(" · ".join(fact for fact in facts if fact))}</div></div></div>'
    )


def _versions(spans: Iterable[Sequence[int]]) -> str:
    """Write the versions of an answer: `version 3, 14 tokens`, or `version 2 (5 tokens) then 3 (9 tokens)`."""
    spans = list(spans)
    if len(spans) == 1:
        return f"version {spans[0][0]}, {spans[0][1]} tokens"
    return "version " + " then ".join(f"{v} ({n} tokens)" for v, n in spans) if spans else ""


def _seconds(seconds: Mapping[str, float]) -> list[str]:
    return [f"{name} {spent * 1000:.0f} ms" for name, spent in seconds.items()]


def configuration(run: RunRecord) -> str:
    if not run.config:
        return ""
    return f"<h2>Configuration</h2><details><summary>config.yaml</summary><pre>{escape(run.config)}</pre></details>"


FILE = "prediction.json"

SKIPPED_STEPS = 3
"""The first steps fill the pipeline, so a prediction is compared with the steps after them."""

LABELS = {
    "time/step": "a step",
    "time/get_batch": "of it, waiting for data",
    "time/train": "of it, training",
    "idle/engine": "engine idle",
    "idle/trainer": "trainer idle",
}


def write_prediction(run: Path, prediction: Mapping[str, float]) -> None:
    try:
        (run / FILE).write_text(json.dumps(prediction, indent=1), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write {run / FILE}: {error.strerror}") from error


def prediction(run: RunRecord) -> str:
    """The section; empty if there is no prediction for this run, or the run is too short to compare."""
    predicted = _read(run.folder)
    rows = "".join(_row(run, key, predicted[key]) for key in LABELS if key in predicted)
    if not rows or len(run.steps) <= SKIPPED_STEPS:
        return ""
    head = '<tr><th></th><th class="n">predicted</th><th class="n">measured</th><th class="n">difference</th></tr>'
    hint = f'<span class="hint">steps {SKIPPED_STEPS + 1} to {len(run.steps)}</span>'
    return f'<h2>Predicted and measured {hint}</h2><div class="card"><table>{head}{rows}</table></div>'


def _row(run: RunRecord, key: str, predicted: float) -> str:
    values = [y for _, y in run.points(key)][SKIPPED_STEPS:]
    if not values:
        return ""
    measured = sum(values) / len(values)
    if key.startswith("idle/"):
        cells = percent(predicted), percent(measured), f"{100 * (predicted - measured):+.0f} points"
    else:
        share = f"{predicted / measured - 1:+.0%}" if measured > 0 else "-"
        cells = duration(predicted), duration(measured), share
    return f"<tr><td>{escape(LABELS[key])}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"


def _read(folder: Path) -> dict[str, float]:
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int | float)}
