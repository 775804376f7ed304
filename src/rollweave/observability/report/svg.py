"""Draws small charts as inline SVG (lines and stacked bars over train steps), and holds the page's style and script.

Each chart carries the data that the script needs to show the values under the pointer. Colours are CSS variables, so
charts follow the light and dark mode of the page. Style and script are part of the page, so that it works offline.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean

from rollweave.observability.text import number

Point = tuple[float, float]
Format = Callable[[float], str]

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 18, 26
MOST_POINTS = 400
"""More points cannot be distinguished at the width of a page, so neighbours are combined."""
MOST_BARS = 120
MOST_DOTS = 60


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]
    colour: str
    """A CSS variable of the page: s1 .. s7, s0 for grey."""
    dots: bool = False
    faint: bool = False
    """Whether it is drawn thin and pale and left out of the legend, as raw data behind a smoothed line."""
    peak: bool = False
    """Whether combined neighbours show their maximum, not their mean; for values that must stay below a bound."""

    def thinned(self, most: int) -> Series:
        return replace(self, points=thin(self.points, most, max if self.peak else fmean))


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of a chart and the values at its edges."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, x: float) -> float:
        low, high = self.x
        share = (x - low) / (high - low) if high > low else 0.5
        return round(LEFT + share * (self.width - LEFT - RIGHT), 2)

    def py(self, y: float) -> float:
        low, high = self.y
        return round(self.height - BOTTOM - (y - low) / (high - low) * (self.height - TOP - BOTTOM), 2)


def line_chart(
    series: Sequence[Series],
    width: int = 560,
    height: int = 200,
    y_range: tuple[float | None, float | None] = (None, None),
    fmt: Format = number,
    rule: tuple[float, str] | None = None,
) -> str:
    """Draw lines over steps, and a dashed rule with a name; the result is empty if there is nothing to draw."""
    series = [one.thinned(MOST_POINTS) for one in series if one.points]
    if not series:
        return ""
    frame = _frame(series, width, height, y_range, [] if rule is None else [rule[0]])
    parts = [_axes(frame, fmt)]
    if rule is not None:
        y = frame.py(rule[0])
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"/>')
        # On the left, where a rising curve is still far below.
        parts.append(f'<text class="tick" x="{LEFT + 4}" y="{y - 5}">{escape(rule[1])}</text>')
    parts += [_line(frame, one) for one in series]
    return _svg(frame, parts, [s for s in series if not s.faint], fmt)


def stacked_bars(layers: Sequence[Series], width: int = 560, height: int = 200, fmt: Format = number) -> str:
    """Draw one bar per step, with its layers on top of each other. All layers have the same steps."""
    layers = [layer.thinned(MOST_BARS) for layer in layers if layer.points]
    if not layers:
        return ""
    steps = [x for x, _ in layers[0].points]
    totals = [sum(layer.points[i][1] for layer in layers) for i in range(len(steps))]
    gap = steps[1] - steps[0] if len(steps) > 1 else 1.0
    ticks = nice_ticks(0.0, max(totals) or 1.0)
    frame = Frame(width, height, (steps[0] - gap / 2, steps[-1] + gap / 2), (0.0, ticks[-1]))
    thickness = round(max(0.8, (width - LEFT - RIGHT) / len(steps) * 0.8), 2)
    parts = [_axes(frame, fmt)]
    base = [0.0] * len(steps)
    for layer in layers:
        parts.append(f'<g fill="var(--{layer.colour})">')
        for i, (x, value) in enumerate(layer.points):
            top, bottom = frame.py(base[i] + value), frame.py(base[i])
            left = round(frame.px(x) - thickness / 2, 2)
            parts.append(f'<rect x="{left}" y="{top}" width="{thickness}" height="{round(bottom - top, 2)}"/>')
            base[i] += value
        parts.append("</g>")
    return _svg(frame, parts, layers, fmt)


def thin(points: Sequence[Point], most: int, together: Callable[[Sequence[float]], float] = fmean) -> list[Point]:
    """Reduce the points to at most `most`, by combining neighbours."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return list(points)
    runs = [points[i : i + size] for i in range(0, len(points), size)]
    return [(run[0][0], together([y for _, y in run])) for run in runs]


def smooth(points: Sequence[Point]) -> list[Point]:
    """The mean over a window around each point, because a trailing mean would show learning too late."""
    reach = math.ceil(len(points) / 40) if len(points) > 8 else 0
    windows = (points[max(0, i - reach) : i + reach + 1] for i in range(len(points)))
    return [(x, fmean(y for _, y in near)) for (x, _), near in zip(points, windows, strict=True)]


def legend(series: Sequence[Series]) -> str:
    """The names of the lines, to be shown above a chart."""
    keys = [s for s in series if s.points and not s.faint]
    items = (f'<span><i style="background:var(--{s.colour})"></i>{escape(s.name)}</span>' for s in keys)
    return f'<div class="legend">{"".join(items)}</div>'


def _frame(
    series: Sequence[Series], width: int, height: int, y_range: tuple[float | None, float | None], more: list[float]
) -> Frame:
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points] + more
    low = min(ys) if y_range[0] is None else min(y_range[0], *ys)
    high = max(ys) if y_range[1] is None else max(y_range[1], *ys)
    if high - low < 1e-12:  # a constant value: leave room around it, and show 0 if it is near
        low, high = low - (abs(low) * 0.5 or 0.5), high + (abs(high) * 0.5 or 0.5)
        low = max(low, 0.0) if min(ys) >= 0 else low
    ticks = nice_ticks(low, high)
    return Frame(width, height, (min(xs), max(xs)), (ticks[0], ticks[-1]))


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Choose round numbers that enclose [low, high]."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * count >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _axes(frame: Frame, fmt: Format) -> str:
    parts = []
    for y in nice_ticks(*frame.y):
        py = frame.py(y)
        if not TOP - 1 <= py <= frame.height - BOTTOM + 1:
            continue
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{py}" y2="{py}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{py + 3.5}" text-anchor="end">{escape(_short(fmt(y)))}</text>'
        )
    for x in nice_ticks(*frame.x, count=6 if frame.width < 700 else 10):
        if x == int(x) and frame.x[0] <= x <= frame.x[1]:
            y = frame.height - 8
            parts.append(f'<text class="tick" x="{frame.px(x)}" y="{y}" text-anchor="middle">{int(x)}</text>')
    return "".join(parts)


def _short(label: str) -> str:
    """Write 0.750 as 0.75 and 2.0 s as 2 s, because trailing zeros only help in columns of numbers."""
    return re.sub(r"\.0+(?!\d)", "", re.sub(r"(\.\d*?[1-9])0+(?!\d)", r"\1", label))


def _line(frame: Frame, series: Series) -> str:
    places = [(frame.px(x), frame.py(y)) for x, y in series.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    faint = " faint" if series.faint else ""
    drawn = f'<polyline class="line{faint}" stroke="var(--{series.colour})" points="{path}"/>'
    if (series.dots and len(places) <= MOST_DOTS) or (len(places) == 1 and not series.faint):
        dots = (f'<circle class="dot" cx="{x}" cy="{y}" r="4" fill="var(--{series.colour})"/>' for x, y in places)
        drawn += "".join(dots)
    return drawn


def _svg(frame: Frame, parts: Sequence[str], series: Sequence[Series], fmt: Format) -> str:
    data = {
        "x": frame.x,
        "plot": [LEFT, TOP, frame.width - LEFT - RIGHT, frame.height - TOP - BOTTOM],
        "series": [{"n": s.name, "c": s.colour, "p": [[x, fmt(y)] for x, y in s.points]} for s in series],
    }
    names = escape(", ".join(s.name for s in series))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{names} over train steps" data-chart="{escape(json.dumps(data))}">{"".join(parts)}</svg>'
    )


VARIABLES = """
:root{--page:#f6f7f9;--surface:#fff;--ink:#1a1d21;--muted:#667079;--line:#e3e6ea;--soft:#eef1f4;
--s0:#b4bbc3;--s1:#2a78d6;--s2:#16a37a;--s3:#e8642c;--s4:#6a52c8;--s5:#d99a00;--s6:#c2478f;--s7:#4aa3b5;--good:#117a4b;--bad:#c0362c;--warn:#8a6100}
@media (prefers-color-scheme:dark){:root{--page:#101316;--surface:#181c20;--ink:#e8eaed;--muted:#99a3ad;--line:#2a3036;
--soft:#21262c;--s0:#59626b;--s1:#5b9cf0;--s2:#2fbf92;--s3:#f0854f;--s4:#a191f2;--s5:#e0ab2e;--s6:#e07cb8;--s7:#6cc0d0;--good:#4cc38a;--bad:#f2776c;
--warn:#e0b252}}
"""

CHART_CSS = """
svg.chart{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.grid{stroke:var(--line);stroke-width:1}
.tick{fill:var(--muted);font-size:11px}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.faint{stroke-width:1;opacity:.35}
.dot{stroke:var(--surface);stroke-width:2}
.rule{stroke:var(--muted);stroke-dasharray:4 4}
"""

PAGE_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1220px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0;letter-spacing:-.01em}
h2{font-size:17px;margin:36px 0 12px}
header{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center;margin-bottom:20px}
header .sub{flex-basis:100%;color:var(--muted)}
.pill{font-size:13px;padding:2px 10px;border-radius:99px;border:1px solid currentColor}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.note{border-left:3px solid var(--warn);background:var(--surface);padding:8px 14px;margin:0 0 16px;
border-radius:0 8px 8px 0}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;margin-bottom:16px}
.tile,.card{background:var(--surface);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 16px}
.tile .label{color:var(--muted);font-size:13px}
.tile .value{font-size:26px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tile .more{color:var(--muted);font-size:12.5px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
.thirds{grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));margin-top:16px}
.card{display:flex;flex-direction:column;margin:0;padding:14px 16px 8px;min-width:0}
.card.wide{margin-bottom:16px}
figcaption{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;margin-bottom:6px}
.hint{color:var(--muted);font-size:13px;font-weight:400}
.legend{margin-left:auto;display:flex;flex-wrap:wrap;gap:0 14px;font-size:13px;color:var(--muted)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
svg.chart{width:100%;height:auto;display:block;margin-top:auto;touch-action:pan-y}
.empty{color:var(--muted);text-align:center;padding:48px 0}
#tip{position:fixed;pointer-events:none;background:var(--surface);border:1px solid var(--line);border-radius:8px;
padding:6px 10px;font-size:13px;box-shadow:0 4px 16px #0003;display:none;z-index:9;font-variant-numeric:tabular-nums}
#tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px}
#tip b{margin-left:10px;float:right}
.cross{stroke:var(--muted);stroke-width:1}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;align-items:start}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:500;color:var(--muted);font-size:13px}
td,th{padding:5px 8px 5px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}
.waits td.n,.waits th.n{width:1%;white-space:nowrap;padding-right:16px}
td.bar{width:40%}
td.bar i{display:block;height:8px;border-radius:4px;background:var(--s1);min-width:2px}
details{background:var(--surface);border:1px solid var(--line);border-radius:10px;margin-bottom:10px}
summary{cursor:pointer;padding:10px 16px;display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline}
summary::before{content:"▸";color:var(--muted)}
summary::-webkit-details-marker{display:none}
details[open]>summary::before{content:"▾"}
.turn{display:grid;grid-template-columns:64px minmax(0,1fr);gap:4px 12px;padding:10px 16px;
border-top:1px solid var(--line)}
.turn .side{color:var(--muted);font-size:12.5px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.turn pre.answer{background:var(--soft);border-left:3px solid var(--s1);padding:4px 10px;
border-radius:0 6px 6px 0;margin-top:6px}
.meta{color:var(--muted);font-size:12.5px;margin-top:3px}
details>pre{padding:12px 16px;border-top:1px solid var(--line)}
footer{color:var(--muted);font-size:13px;margin-top:40px}
@media (max-width:1000px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media (max-width:560px){.tiles{grid-template-columns:repeat(2,1fr)}
.card.wide{overflow-x:auto}.card.wide svg.chart{min-width:560px}}
"""

SCRIPT = """
const tip=document.getElementById('tip');
for(const svg of document.querySelectorAll('svg[data-chart]')){
  const d=JSON.parse(svg.dataset.chart),[l,t,w,h]=d.plot,[a,b]=d.x;
  const steps=[...new Set(d.series.flatMap(s=>s.p.map(p=>p[0])))];
  const cross=document.createElementNS('http://www.w3.org/2000/svg','line');
  cross.setAttribute('class','cross');cross.setAttribute('y1',t);cross.setAttribute('y2',t+h);
  const hide=()=>{tip.style.display='none';cross.remove()};
  svg.addEventListener('pointermove',e=>{
    const box=svg.getBoundingClientRect(),x=(e.clientX-box.left)*svg.viewBox.baseVal.width/box.width;
    const at=b>a?a+(x-l)/w*(b-a):a,step=steps.reduce((p,q)=>Math.abs(q-at)<Math.abs(p-at)?q:p,steps[0]);
    const px=b>a?l+(step-a)/(b-a)*w:l+w/2;
    cross.setAttribute('x1',px);cross.setAttribute('x2',px);svg.append(cross);
    tip.replaceChildren();
    tip.append(Object.assign(document.createElement('div'),{textContent:'step '+step}));
    for(const s of d.series){const p=s.p.find(p=>p[0]===step);if(!p)continue;
      const row=document.createElement('div'),dot=document.createElement('i'),value=document.createElement('b');
      dot.style.background='var(--'+s.c+')';value.textContent=p[1];row.append(dot,s.n,value);tip.append(row)}
    tip.style.display='block';
    tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';
    tip.style.top=Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8)+'px'});
  svg.addEventListener('pointerleave',hide);
}
"""
