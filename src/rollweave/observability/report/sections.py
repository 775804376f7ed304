"""Makes the parts of the report that are text and tables: tiles, ledger, waits, transcripts, configuration, prediction.

The prediction compares the run with a simulation on a profiled machine. It is a small file in the run folder, with the
names of the metrics as keys; `rollweave report RUN --profile FILE` writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from rollweave.observability.jsonl import read_object, writing
from rollweave.observability.report.data import RecordedRow, RunRecord
from rollweave.observability.text import duration, number, percent

WAITS_SHOWN = 20


def heading(run: RunRecord, notes: Sequence[str]) -> str:
    reason = run.summary.exit_reason if run.finished else "unfinished"
    word, style = {
        "target": ("target reached", "good"),
        "completed": ("all steps done", "good"),
        "interrupted": ("interrupted", "warn"),
        "failed": ("failed", "bad"),
        "unfinished": ("no summary yet: running, or killed", "warn"),
    }[reason]
    alpha, mode = run.setting("pipeline", "alpha"), run.setting("pipeline", "type")
    if isinstance(alpha, int | float):
        mode = f"{mode}, α = {alpha:g}"
    facts = [run.setting("environment", "type"), run.setting("model", "type"), mode, run.setting("runtime", "type")]
    line = " · ".join(str(fact) for fact in facts if fact)
    return (
        f'<header><h1>{escape(run.name)}</h1><span class="pill {style}">{word}</span>'
        f'<div class="sub">{escape(line)}</div></header>'
        + "".join(f'<p class="note">{escape(note)}</p>' for note in [*notes, run.summary.error] if note)
    )


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
    return fmean(values) if values else None


def ledger(run: RunRecord) -> str:
    tokens = {"trained": run.summary.tokens_trained, **run.summary.tokens_wasted}
    tables = [
        _counts("Tasks", "how every task ended", run.summary.tasks),
        _counts("Attempts", "how every attempt ended", run.summary.attempts),
        _counts("Tokens", "how the sampled tokens ended", tokens),
    ]
    return f'<h2>Ledger</h2><div class="tables">{"".join(tables)}</div>'


def _counts(title: str, hint: str, counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    body = "".join(_count_row(name, count, f"{100 * count / total:.1f}%") for name, count in ranked if total)
    table = f"<table>{body}</table>" if total else '<p class="empty">nothing recorded yet</p>'
    caption = f'<figcaption><b>{title}</b> <span class="hint">{hint}: {total:,}</span></figcaption>'
    return f'<figure class="card">{caption}{table}</figure>'


def _count_row(name: str, count: int, share: str) -> str:
    bar = f'<i style="width:{share}"></i>' if count else ""
    numbers = f'<td class="n">{count:,}</td><td class="n">{share}</td>'
    return f'<tr><td>{escape(name)}</td>{numbers}<td class="bar">{bar}</td></tr>'


def pools(events: Sequence[RecordedRow]) -> str:
    """Which pool served which task, and the latest reason; empty if there is one pool of engines."""
    routes = {event["data"]["attempt"]: event["data"] for event in events if event.get("name") == "route"}
    if len({route.get("pool") for route in routes.values()}) < 2:
        return ""
    ended = [event["data"] for event in events if event.get("name") == "trajectory.end"]
    counts: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for end in ended:
        if (route := routes.get(end["id"])) is not None:
            place = str(route.get("task")), str(route.get("pool"))
            counts[place] += 1
            tokens[place] += end["tokens"]
            reasons[place] = str(route["reason"])
    totals = Counter(task for task, _ in counts.elements())
    rows = "".join(
        f'<tr><td>{escape(task)}</td><td>{escape(pool)}</td><td class="n">{count:,}</td>'
        f'<td class="n">{percent(count / totals[task])}</td><td class="n">{tokens[task, pool]:,}</td>'
        f"<td>{escape(reasons[task, pool])}</td></tr>"
        for (task, pool), count in sorted(counts.items())
    )
    numbers = "".join(f'<th class="n">{title}</th>' for title in ("trajectories", "of the task", "tokens"))
    head = f"<tr><th>task</th><th>pool</th>{numbers}<th>why, the last time</th></tr>"
    return f'<h2>Which pool served what</h2><div class="card"><table class="waits">{head}{rows}</table></div>'


def waits(events: Sequence[RecordedRow]) -> str:
    """The waits that took longer than expected."""
    slow = [event for event in events if event.get("name") == "wait.slow"]
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
    inputs = data.items() if isinstance(data, Mapping) else ()
    return " · ".join(f"{key.replace('_', ' ')} {value}" for key, value in inputs)


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


def transcripts(rows: Sequence[RecordedRow]) -> str:
    picked = chosen(rows)
    body = "".join(_transcript(label, row) for label, row in picked)
    body = body or '<p class="empty">no transcripts were written</p>'
    hint = f"{len(picked)} of {len(rows)} in trajectories.jsonl" if picked else ""
    return f'<h2>Transcripts <span class="hint">{hint}</span></h2>{body}'


def _transcript(label: str, row: RecordedRow) -> str:
    rewards = row.get("rewards") or {}
    parts = ", ".join(f"{name} {number(value)}" for name, value in rewards.items())
    facts = [
        f"step {row.get('step')}",
        f"reward {number(_reward(row))}" + (f" ({parts})" if len(rewards) > 1 else ""),
        str(row.get("outcome")),
        f"{len(row.get('turns') or [])} turns",
        f"staleness {row.get('staleness')}",
        f"group {row.get('group')} member {row.get('member')}",
    ]
    turns = "".join(_turn(index, turn) for index, turn in enumerate(row.get("turns") or [], start=1))
    spans = "".join(f'<span class="hint">{escape(fact)}</span>' for fact in facts)
    return f"<details><summary><b>{escape(label)}</b>{spans}</summary>{turns}</details>"


def _turn(index: int, turn: Mapping[str, Any]) -> str:
    reward = turn.get("reward")
    facts = [
        f"reward {number(reward)}" if reward else "",
        _versions(turn.get("versions") or []),
        str(turn.get("finish") or ""),
        *(f"{name} {spent * 1000:.0f} ms" for name, spent in (turn.get("seconds") or {}).items()),
    ]
    return (
        f'<div class="turn"><div class="side">turn {index}</div><div>'
        f"<pre>{escape(str(turn.get('observation', '')))}</pre>"
        f'<pre class="answer">{escape(str(turn.get("answer", "")))}</pre>'
        f'<div class="meta">{escape(" · ".join(fact for fact in facts if fact))}</div></div></div>'
    )


def _versions(spans: Sequence[Sequence[int]]) -> str:
    """Write the versions of an answer: `version 3, 14 tokens`, or `version 2 (5 tokens) then 3 (9 tokens)`."""
    if len(spans) == 1:
        return f"version {spans[0][0]}, {spans[0][1]} tokens"
    return "version " + " then ".join(f"{v} ({n} tokens)" for v, n in spans) if spans else ""


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
    with writing(run / FILE):
        (run / FILE).write_text(json.dumps(prediction, indent=1), encoding="utf-8")


def prediction(run: RunRecord) -> str:
    """The section; empty if there is no prediction for this run, or the run is too short to compare."""
    predicted = read_object(run.folder / FILE)
    rows = "".join(_row(run, key, predicted[key]) for key in LABELS if isinstance(predicted.get(key), int | float))
    if not rows or len(run.steps) <= SKIPPED_STEPS:
        return ""
    head = '<tr><th></th><th class="n">predicted</th><th class="n">measured</th><th class="n">difference</th></tr>'
    hint = f'<span class="hint">steps {SKIPPED_STEPS + 1} to {len(run.steps)}</span>'
    return f'<h2>Predicted and measured {hint}</h2><div class="card"><table>{head}{rows}</table></div>'


def _row(run: RunRecord, key: str, predicted: float) -> str:
    values = [y for _, y in run.points(key)][SKIPPED_STEPS:]
    if not values:
        return ""
    measured = fmean(values)
    if key.startswith("idle/"):
        cells = percent(predicted), percent(measured), f"{100 * (predicted - measured):+.0f} points"
    else:
        share = f"{predicted / measured - 1:+.0%}" if measured > 0 else "-"
        cells = duration(predicted), duration(measured), share
    return f"<tr><td>{escape(LABELS[key])}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"
