"""The slowdowns as a picture: a dot and its interval per variant, the bar as a line."""

from __future__ import annotations

from html import escape

from bench.learning.statistics import LIMIT, Figures

ROW, LEFT, WIDTH, TOP = 18, 220, 460, 34
COLOURS = {1: "#4878a8", 2: "#c58a2d", 4: "#a8483c"}


def svg(figures: list[Figures]) -> str:
    rows = [row for row in figures if row.alpha]
    most = max(LIMIT, *(row.high for row in rows)) * 1.05
    height = TOP + ROW * len(rows) + 12

    def x(value: float) -> float:
        return LEFT + WIDTH * value / most

    shapes = [_line(x(1.0), "#999"), _line(x(LIMIT), "#222", dashed=True)]
    shapes.append(_text(x(1.0), "sync", "end"))
    shapes.append(_text(x(LIMIT), f"{LIMIT:g}x", "start"))
    for number, row in enumerate(rows):
        shapes.append(_mark(row, TOP + ROW * (number + 0.5), x(row.low), x(row.slowdown), x(row.high)))
    body = "\n".join(shape.replace("HEIGHT", str(height - 8)) for shape in shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        f'font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'
    )


def _line(x: float, colour: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="HEIGHT" stroke="{colour}"{dash}/>'


def _text(x: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="{anchor}">{escape(text)}</text>'


def _mark(row: Figures, y: float, low: float, middle: float, high: float) -> str:
    colour = COLOURS.get(row.alpha, "#555")
    return (
        f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(row.variant)}</text>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    )
