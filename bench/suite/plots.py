"""Plots as SVG text: lines over logarithmic axes, and stacked horizontal bars. No library: two shapes are enough."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

Point = tuple[float, float]

_COLOURS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#64748b")
_WIDTH: Final = 720
_HEIGHT: Final = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 176, 40, 48
_BAR, _LABEL = 22, 300


def line_plot(title: str, series: Mapping[str, Sequence[Point]], *, x: str, y: str) -> str:
    """Draw named series of (x, y), both axes logarithmic. Values must be positive."""
    points = [point for values in series.values() for point in values]
    x_ticks, y_ticks = _ticks([at for at, _ in points]), _ticks([value for _, value in points])

    def place(point: Point) -> Point:
        right = _share(point[0], x_ticks) * (_WIDTH - _LEFT - _RIGHT)
        up = _share(point[1], y_ticks) * (_HEIGHT - _TOP - _BOTTOM)
        return _LEFT + right, _HEIGHT - _BOTTOM - up

    parts: list[str] = []
    for tick in y_ticks:
        _, down = place((x_ticks[0], tick))
        parts += [_line(_LEFT, down, _WIDTH - _RIGHT, down), _text(_LEFT - 6, down + 4, _number(tick), anchor="end")]
    for tick in x_ticks:
        right, _ = place((tick, y_ticks[0]))
        parts += [_line(right, _TOP, right, _HEIGHT - _BOTTOM)]
        parts += [_text(right, _HEIGHT - _BOTTOM + 16, _number(tick), anchor="middle")]
    parts += [_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x, anchor="middle"), _text(6, _TOP - 12, y)]
    for number, (name, values) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [place(point) for point in values]
        path = " ".join(f"{right:.1f},{down:.1f}" for right, down in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{right:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for right, down in placed]
        parts += _legend(_WIDTH - _RIGHT + 12, _TOP + 18 * number, name, colour)
    return _document(title, _HEIGHT, parts)


def bar_plot(title: str, bars: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """Draw one horizontal bar per name, stacked of its parts, on a linear axis from 0."""
    names = list(dict.fromkeys(name for stacked in bars.values() for name in stacked))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    longest = max((sum(stacked.values()) for stacked in bars.values()), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL - 80) / longest
    parts: list[str] = []
    for number, name in enumerate(names):
        parts += _legend(_LABEL + 140 * number, 40, name, colours[name])
    for number, (label, stacked) in enumerate(bars.items()):
        down, right = 64 + (_BAR + 6) * number, float(_LABEL)
        parts.append(_text(_LABEL - 8, down + 15, label, anchor="end"))
        for name, value in stacked.items():
            parts.append(
                f'<rect x="{right:.1f}" y="{down}" width="{value * scale:.1f}" height="{_BAR}" fill="{colours[name]}"/>'
            )
            right += value * scale
        parts.append(_text(right + 6, down + 15, f"{sum(stacked.values()):.2f} {unit}"))
    return _document(title, 64 + (_BAR + 6) * len(bars) + 12, parts)


def _ticks(values: Sequence[float]) -> list[float]:
    """Powers of ten, with 2 and 5 between them, that enclose the values."""
    steps = [
        factor * 10.0**power
        for power in range(floor(log10(min(values))), ceil(log10(max(values))) + 1)
        for factor in (1, 2, 5)
    ]
    first = max((at for at, step in enumerate(steps) if step <= min(values)), default=0)
    last = min((at for at, step in enumerate(steps) if step >= max(values)), default=len(steps) - 1)
    return steps[first : max(last, first + 1) + 1]


def _share(value: float, ticks: Sequence[float]) -> float:
    return (log10(value) - log10(ticks[0])) / (log10(ticks[-1]) - log10(ticks[0]))


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#cbd5e1"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(x: float, y: float, name: str, colour: str) -> list[str]:
    return [f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>', _text(x + 18, y + 11, name)]


def _document(title: str, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="#0f172a">\n<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="6" y="18" font-size="14" font-weight="bold">{escape(title)}</text>\n{body}\n</svg>\n'
    )
