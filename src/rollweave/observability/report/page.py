"""`rollweave report`: writes one self-contained HTML page about a run, which opens without a network.

`data` reads the run folder, `svg` draws, `charts` and `sections` make the parts of the page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from rollweave.observability.jsonl import read, replace_file, writing
from rollweave.observability.report import charts, sections
from rollweave.observability.report.data import RunRecord, load_run
from rollweave.observability.report.svg import asset


def write_report(run: Path, output: Path) -> Path:
    """Write the page of a run folder (the run may still be going), and return its path."""
    html = page(load_run(run))
    with writing(f"the report to {output}", "Choose another file with -o"):
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, html)
    return output


def page(run: RunRecord) -> str:
    transcripts, events = read(run.folder / "trajectories.jsonl"), read(run.folder / "events.jsonl")
    body = [
        sections.heading(run, [*run.notes, *transcripts.notes, *events.notes]),
        sections.tiles(run),
        charts.learning_curve(run),
        _grid(charts.time_per_phase(run), charts.idle_shares(run), charts.staleness(run), charts.throughput(run)),
        _thirds("Queue", charts.queue(run)),
        _thirds("What was consumed", charts.fate(run)),
        _thirds("Off-policy", charts.off_policy(run)),
        sections.prediction(run),
        sections.pools(events.rows),
        sections.ledger(run),
        sections.waits(events.rows),
        sections.transcripts(transcripts.rows),
        sections.configuration(run),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(run.name)} · Rollweave</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{asset('chart.css')}{asset('page.css')}</style></head><body><main>{''.join(body)}"
        "<footer>Made by <code>rollweave report</code>.</footer></main>"
        f'<div id="tip"></div><script>{asset("page.js")}</script></body></html>\n'
    )


def _grid(*figures: str) -> str:
    return f'<div class="charts">{"".join(figures)}</div>'


def _thirds(title: str, figures: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="charts thirds">{figures}</div>'
