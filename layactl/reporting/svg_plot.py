"""Plots as inline SVG: axes, lines, points with error bars, bars, matrices. No script, no font, nothing fetched.

Colours are CSS classes of `html_page`, so that a plot follows the page into dark mode and print. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from layactl.reporting.html_page import escaped

Point = tuple[float, float]
Range = tuple[float, float]

# Classes that `html_page` gives a colour each.
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 26.0, 40.0
_CHARACTER = 6.2
_MOST_LABEL = 18
_CELL = 34.0


@dataclass
class Plot:
    """One pair of axes. What is drawn later lies on top.

    title: read out by a screen reader and shown above; x, y: (lowest, highest) shown; units belong into the labels;
    ticks: of an axis, None: about five round numbers.
    """

    title: str
    x_label: str
    y_label: str
    x: Range = (0.0, 1.0)
    y: Range = (0.0, 1.0)
    width: int = 360
    height: int = 300
    x_ticks: Sequence[float] | None = None
    y_ticks: Sequence[float] | None = None
    _drawn: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def line(self, points: Sequence[Point], series: str, *, dashed: bool = False, name: str = "") -> None:
        """Straight from point to point; points that are not finite are left out."""
        if path := " ".join(f"{self._x(px):.2f},{self._y(py):.2f}" for px, py in _finite(points)):
            dash = ' stroke-dasharray="4 3"' if dashed else ""
            self._drawn.append(f'<polyline class="line {series}" points="{path}"{dash}/>')
        self._name(series, name)

    def steps(self, points: Sequence[Point], series: str, *, name: str = "") -> None:
        """A line that keeps each value until the next point."""
        corners: list[Point] = []
        for px, py in _finite(points):
            corners += [(px, corners[-1][1]), (px, py)] if corners else [(px, py)]
        self.line(corners, series, name=name)

    def points(
        self,
        points: Sequence[Point],
        series: str,
        *,
        errors: Sequence[Range | None] = (),
        tips: Sequence[str] = (),
        name: str = "",
        shift: float = 0.0,
    ) -> None:
        """Dots. errors: (low, high) of y beside each point, drawn as bars; tips: shown when a reader points at one;
        shift: pixels to the right, to tell series apart that share their points.
        """
        for i, (px, py) in enumerate(points):
            if not (math.isfinite(px) and math.isfinite(py)):
                continue
            at, bar = self._x(px) + shift, errors[i] if i < len(errors) else None
            if bar is not None:
                low, high = self._y(bar[0]), self._y(bar[1])
                self._drawn.append(f'<path class="line {series}" d="M{at:.2f} {low:.2f}V{high:.2f}"/>')
            tip = f"<title>{escaped(tips[i])}</title>" if i < len(tips) else ""
            self._drawn.append(
                f'<circle class="dot {series}" cx="{at:.2f}" cy="{self._y(py):.2f}" r="3.5">{tip}</circle>'
            )
        self._name(series, name)

    def bars(self, bars: Sequence[tuple[float, float, float]], series: str, *, labels: Sequence[str] = ()) -> None:
        """(from, to, height) from the bottom. labels: written above each."""
        floor = self._y(self.y[0])
        for i, (start, end, height) in enumerate(bars):
            left, right, top = self._x(start), self._x(end), self._y(height)
            self._drawn.append(
                f'<rect class="bar {series}" x="{left + 1:.2f}" y="{top:.2f}" width="{max(0.0, right - left - 2):.2f}" '
                f'height="{max(0.0, floor - top):.2f}"/>'
            )
            if i < len(labels) and labels[i]:
                self._drawn.append(_text((left + right) / 2, top - 3, labels[i]))

    def svg(self) -> str:
        """The whole plot as one element."""
        frame = self._frame()
        legend = self._legend_text()
        return _svg(self.width, self.height, self.title, [*frame, *self._drawn, *legend])

    def _frame(self) -> list[str]:
        left, bottom, right, top = _LEFT, self.height - _BOTTOM, self.width - _RIGHT, _TOP
        parts = [f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>']
        for value in self.x_ticks if self.x_ticks is not None else _ticks(self.x):
            at = self._x(value)
            parts.append(f'<path class="grid" d="M{at:.2f} {top}V{bottom}"/>')
            parts.append(_text(at, bottom + 14, _short(value)))
        for value in self.y_ticks if self.y_ticks is not None else _ticks(self.y):
            at = self._y(value)
            parts.append(f'<path class="grid" d="M{left} {at:.2f}H{right}"/>')
            parts.append(_text(left - 5, at + 3.5, _short(value), anchor="end"))
        parts.append(_text(left, top - 10, self.title, anchor="start", style="label"))
        parts.append(_text((left + right) / 2, bottom + 31, self.x_label))
        parts.append(_text(12, (top + bottom) / 2, self.y_label, turn=-90))
        return parts

    def _legend_text(self) -> list[str]:
        parts, at = [], _TOP + 8.0
        for series, name in self._legend:
            parts.append(f'<circle class="dot {series}" cx="{_LEFT + 12}" cy="{at:.2f}" r="3.5"/>')
            parts.append(_text(_LEFT + 20, at + 3.5, name, anchor="start"))
            at += 14.0
        return parts

    def _name(self, series: str, name: str) -> None:
        if name and (series, name) not in self._legend:
            self._legend.append((series, name))

    def _x(self, value: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * _share(value, self.x)

    def _y(self, value: float) -> float:
        return self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * _share(value, self.y)


def matrix(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    counts: Sequence[Sequence[int]],
    *,
    axes: tuple[str, str] = ("", ""),
) -> str:
    """Counts as shaded cells with their numbers; a row's shade is its share, so that rare rows can be read too.

    axes: what the rows and the columns are.
    """
    left = 26.0 + _CHARACTER * max((len(_clip(name)) for name in rows), default=0)
    # The names of columns stand at 45 degrees.
    top = 48.0 + _CHARACTER * 0.75 * max((len(_clip(name)) for name in columns), default=0)
    width, height = left + _CELL * len(columns) + 60.0, top + _CELL * len(rows) + 14.0
    parts = [_text(6, 16, _clip(title, int((width - 6) / (1.1 * _CHARACTER))), anchor="start", style="label")]
    parts.append(_text(6, 31, f"{axes[0]} \u2193 {axes[1]} \u2192", anchor="start"))
    for j, name in enumerate(columns):
        parts.append(_text(left + _CELL * (j + 0.5), top - 6, _clip(name), anchor="start", turn=-45))
    for i, name in enumerate(rows):
        y, total = top + _CELL * i, sum(counts[i])
        parts.append(_text(left - 5, y + _CELL / 2 + 3, _clip(name), anchor="end"))
        for j, count in enumerate(counts[i]):
            x, share = left + _CELL * j, count / total if total else 0.0
            kind = "cell right" if i == j else "cell"
            tip = f"<title>{escaped(f'{rows[i]} as {columns[j]}: {count:,} of {total:,}')}</title>"
            box = f'x="{x:.2f}" y="{y:.2f}" width="{_CELL - 2}" height="{_CELL - 2}"'
            parts.append(f'<rect class="{kind}" {box} fill-opacity="{0.06 + 0.74 * share:.3f}">{tip}</rect>')
            parts.append(_text(x + _CELL / 2 - 1, y + _CELL / 2 + 3, _amount(count), style="count"))
    return _svg(math.ceil(width), math.ceil(height), title, parts)


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", style: str = "tick", turn: float | None = None
) -> str:
    """One line of text. anchor: which part of it stands at (x, y); turn: degrees, clockwise."""
    place = f'x="{x:.2f}" y="{y:.2f}"'
    if turn is not None:
        place = f'transform="translate({x:.2f} {y:.2f}) rotate({turn:g})"'
    return f'<text class="{style}" {place} text-anchor="{anchor}">{escaped(text)}</text>'


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escaped(title)}</title>{"".join(parts)}</svg>'
    )


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(px, py) for px, py in points if math.isfinite(px) and math.isfinite(py)]


def _share(value: float, span: Range) -> float:
    """Where a value lies in its range, kept inside it."""
    low, high = span
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5


def _ticks(span: Range) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside the range, about five of them."""
    low, high = span
    if not low < high:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _amount(count: int) -> str:
    """A count that fits into a cell."""
    return f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"


def _clip(name: str, most: int = _MOST_LABEL) -> str:
    return name if len(name) <= most else name[: most - 1] + "\u2026"
