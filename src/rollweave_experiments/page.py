"""Writes one self-contained page with every table and plot. Rows that missed their claim are included and marked."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rollweave.observability.report.svg import asset
from rollweave_experiments import text
from rollweave_experiments.frame import Plot
from rollweave_experiments.plot import legend, plots, svg
from rollweave_experiments.verdict import ClaimRow, ExperimentResult, Scoreline, scores

CSS = """
.kind{font-size:12px;padding:1px 8px;border-radius:99px;background:var(--soft);color:var(--muted)}
.kind.number{background:var(--s1);color:#fff}
td.off{white-space:nowrap}
tr.miss td,tr.near td{background:color-mix(in srgb,var(--warn) 9%,transparent)}
tr.miss td{background:color-mix(in srgb,var(--bad) 12%,transparent)}
section{margin-bottom:28px}
section>p{margin:4px 0 12px;color:var(--muted);font-size:13.5px;max-width:110ch}
.pair{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:16px;align-items:start}
.three{grid-template-columns:repeat(3,1fr)}
nav{columns:3;font-size:14px;margin-bottom:12px}nav a{color:var(--s1);text-decoration:none;display:block}
@media (max-width:1000px){.pair{grid-template-columns:minmax(0,1fr)}nav{columns:1}.three{grid-template-columns:1fr}}
"""

KEY = (
    "<b>number</b>: the inputs are known well enough that our figure should land near the paper's: agrees within 15 %, "
    "near within 30 %. <b>shape</b>: they are not; the statement beside the row is what was claimed, and the figures "
    "are shown for comparison only. <b>calibration</b>: a constant of our models was taken from this row, so agreement "
    "proves nothing. Claims were committed before the first measurement, and each change of one since is a commit with "
    "its reason. One set of constants serves all rows, but for a bandwidth that two experiments set themselves; it was "
    "changed after results had been seen."
)


def page(results: Sequence[ExperimentResult]) -> str:
    seeds = ", ".join(str(seed) for seed in results[0].seeds)
    links = "".join(f'<a href="#{r.study.name}">{escape(r.study.name)}</a>' for r in results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Experiments · Rollweave</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{asset('chart.css')}{asset('page.css')}{CSS}</style></head><body><main>"
        "<header><h1>The papers' experiments, simulated</h1>"
        f'<span class="sub">{len(results)} experiments, seed {seeds}. {KEY}</span></header>'
        f'<div class="tiles three">{"".join(_tile(score) for score in scores(results))}</div>'
        f"<nav>{links}</nav>{''.join(_section(result) for result in results)}"
        "<footer>Made by <code>rollweave experiments run</code>.</footer></main></body></html>\n"
    )


def _tile(score: Scoreline) -> str:
    agree = "rows that hold" if score.kind == "shape" else "rows within 15 %"
    more = f"{score.near} within 30 %, {score.miss} missed" if score.kind != "shape" else f"{score.miss} fail"
    return (
        f'<div class="tile"><div class="label">{score.kind} {agree}</div>'
        f'<div class="value">{score.ok} of {score.rows}</div><div class="more">{more}</div></div>'
    )


def _section(result: ExperimentResult) -> str:
    study = result.study
    return (
        f'<section id="{study.name}"><h2>{escape(study.title)} <span class="hint">{escape(study.name)} · '
        f"{escape(study.paper)}, {escape(study.where)}</span></h2>"
        f"<p><b>Known:</b> {escape(study.known)}. <b>Chosen by us:</b> {escape(study.chosen)}.</p>"
        f'<div class="pair"><div class="card">{_table(result)}</div>'
        f"<div>{''.join(_figure(plot) for plot in plots(result))}</div></div></section>"
    )


def _figure(plot: Plot) -> str:
    caption = f"<figcaption><b>{escape(plot.title)}</b>{legend(plot)}</figcaption>"
    return f'<figure class="card wide">{caption}{svg(plot)}</figure>'


def _table(result: ExperimentResult) -> str:
    many = len(result.seeds) > 1
    head = ["row", "claim", "paper", "measured", *(["over seeds"] if many else []), "off", ""]
    cells = "".join(f"<th{_right(name)}>{name}</th>" for name in head)
    return f"<table><tr>{cells}</tr>{''.join(_line(row, many) for row in result.rows)}</table>"


def _right(name: str) -> str:
    return ' class="n"' if name in ("paper", "measured", "over seeds", "off") else ""


def _line(row: ClaimRow, many: bool) -> str:
    claim = row.claim
    colour = {"ok": "good", "near": "warn", "miss": "bad"}[row.verdict]
    figures = [f"{text.figure(claim.paper, claim.unit)} [{claim.evidence}]", text.measured(row)]
    figures += [text.spread(row)] if many else []
    numbers = "".join(f'<td class="n off">{escape(figure)}</td>' for figure in [*figures, text.off(row)])
    statement = f'<div class="hint">{escape(claim.holds)}</div>' if claim.holds else ""
    return (
        f'<tr class="{row.verdict}"><td>{escape(row.label)}{statement}</td>'
        f'<td><span class="kind {claim.kind}">{claim.kind}</span></td>{numbers}'
        f'<td class="{colour}">{text.verdict(row)}</td></tr>'
    )
