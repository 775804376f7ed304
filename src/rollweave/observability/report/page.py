"""`rollweave report`: writes one self-contained HTML page about a run, which opens without a network.

`data` reads the run folder, `svg` draws, `charts` and `sections` make the parts of the page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from rollweave.errors import RunFolderError
from rollweave.observability.report import charts, sections
from rollweave.observability.report.data import RunRecord, load_run
from rollweave.observability.report.sections import prediction
from rollweave.observability.report.svg import asset


def write_report(run: Path, output: Path) -> Path:
    """Write the page of a run folder (the run may still be going), and return its path."""
    html = page(load_run(run))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(output.name + ".partial")  # so that a full disk leaves no half page
        partial.write_text(html, encoding="utf-8")
        partial.replace(output)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the report to {output}: {error.strerror}. Choose another file with -o"
        ) from error
    return output


def page(run: RunRecord) -> str:
    body = [
        sections.heading(run),
        sections.tiles(run),
        charts.learning_curve(run),
        _grid(charts.time_per_phase(run), charts.idle_shares(run), charts.staleness(run), charts.throughput(run)),
        _thirds("Queue", charts.queue(run)),
        _thirds("What was consumed", charts.fate(run)),
        _thirds("Off-policy", charts.off_policy(run)),
        prediction(run),
        sections.ledger(run),
        sections.waits(run),
        sections.transcripts(run),
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
