"""Draw series as SVG without a script: lines, a heat map, and bands of states."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from hicache_dbg.tracer.dashboards.live import Series
from hicache_dbg.tracer.dashboards.numbers import COLORS, Style

__all__ = ["Frame", "Named", "bands", "heat", "lines"]

#: A series with its name in the legend.
Named = tuple[str, Series]

LEFT, RIGHT, TOP, BOTTOM = 84, 8, 8, 20
NAME_SHOWN = 14
PALETTE = (
    *("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0"),
    *("#508642", "#cca300", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a picture in its own units, the number style, and colours by series name."""

    width: int
    height: int
    style: Style
    colors: Mapping[str, str]

    def color(self, number: int, name: str) -> str:
        """Return the colour of the n-th series."""
        color = self.colors.get(name)
        return COLORS.get(color, color) if color else PALETTE[number % len(PALETTE)]

    @property
    def floor(self) -> float:
        """Y coordinate of the time axis."""
        return self.height - BOTTOM

    def across(self, named: Sequence[Named]) -> Callable[[float], float]:
        """Return the function from a time to an x coordinate."""
        first, last = _span(named)
        return lambda at: LEFT + (at - first) / (last - first) * (self.width - LEFT - RIGHT)

    def down(self, low: float, high: float) -> Callable[[float], float]:
        """Return the function from a value to a y coordinate."""
        return lambda value: TOP + (high - value) / (high - low) * (self.floor - TOP)

    def picture(self, named: Sequence[Named], parts: Sequence[str]) -> str:
        """Return the parts with the time axis below them, as SVG."""
        first, last = _span(named)
        ends = _label(LEFT, self.height - 5, f"-{last - first:.0f} s", "start")
        ends += _label(self.width - RIGHT, self.height - 5, "now", "end")
        inside = "".join(parts)
        return f'<svg viewBox="0 0 {self.width} {self.height}" role="img">{inside}{ends}</svg>'


def lines(named: Sequence[Named], frame: Frame, *, stacked: bool = False) -> str:
    """Draw one line per series, or stacked areas; gaps and NaN are left out."""
    drawn = _stack(named) if stacked else list(named)
    values = [v for _, series in drawn for _, v in series.points if math.isfinite(v)]
    low, high = min([0.0, *values]), max([0.0, *values])
    high = high if high > low else low + 1
    x, y = frame.across(drawn), frame.down(low, high)
    parts = [_grid(frame, low, high)]
    # Largest sums first, so that the smaller areas are drawn on top of them.
    order = reversed(list(enumerate(drawn))) if stacked else enumerate(drawn)
    for number, (name, series) in order:
        for run in _runs(series):
            points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in run)
            area = f" {x(run[-1][0]):.1f},{y(low):.1f} {x(run[0][0]):.1f},{y(low):.1f}" * stacked
            fill = (
                f'fill="{frame.color(number, name)}" fill-opacity=".6"'
                if stacked
                else 'fill="none"'
            )
            shape = "polygon" if stacked else "polyline"
            parts.append(
                f'<{shape} points="{points}{area}" {fill} stroke="{frame.color(number, name)}" '
                f'stroke-width="1.5"><title>{escape(name)}</title></{shape}>'
            )
    return frame.picture(drawn, parts)


def heat(named: Sequence[Named], frame: Frame) -> str:
    """Draw one row per bucket, darker the more fell into it; the input buckets are cumulative."""
    buckets = sorted(
        ((float(series.labels["le"]), series) for _, series in named), key=lambda b: b[0]
    )
    x = frame.across(named)
    tall = (frame.floor - TOP) / max(1, len(buckets))
    below: dict[float, float] = {}
    cells = []
    for line, (edge, series) in enumerate(buckets):
        for at, value in series.points:
            cells.append((line, edge, at, value - below.get(at, 0.0)))
            below[at] = value
    most = max((count for *_, count in cells), default=0.0) or 1.0
    wide = (frame.width - LEFT - RIGHT) / max(1, len({at for _, _, at, _ in cells}))
    parts = []
    for line, edge, at, count in cells:
        if count > 0:
            parts.append(
                f'<rect x="{x(at) - wide / 2:.1f}" y="{frame.floor - (line + 1) * tall:.1f}" '
                f'width="{wide + 0.5:.1f}" height="{tall:.1f}" fill="#ff780a" '
                f'fill-opacity="{0.15 + 0.85 * count / most:.2f}">'
                f"<title>up to {escape(frame.style.text(edge))}: {count:.3g}/s</title></rect>"
            )
    for line, (edge, _) in enumerate(buckets):
        text = "+Inf" if math.isinf(edge) else frame.style.text(edge)
        parts.append(_label(LEFT - 6, frame.floor - line * tall - tall / 2 + 3, text, "end"))
    return frame.picture(named, parts)


def bands(named: Sequence[Named], frame: Frame) -> str:
    """Draw one band per series, with the colour and the word of each state."""
    x = frame.across(named)
    tall = (frame.floor - TOP) / max(1, len(named))
    parts = []
    for line, (name, series) in enumerate(named):
        top = TOP + line * tall
        for start, end, value in _states(series):
            wide = max(2.0, x(end) - x(start))
            parts.append(
                f'<rect x="{x(start):.1f}" y="{top + 2:.1f}" width="{wide:.1f}" height="{tall - 4:.1f}" '
                f'fill="{frame.style.color(value)}"><title>{escape(frame.style.text(value))}</title></rect>'
            )
            if wide > 70:
                parts.append(
                    _label(x(start) + 6, top + tall / 2 + 4, frame.style.text(value), "start")
                )
        parts.append(_label(LEFT - 6, top + tall / 2 + 4, name[:NAME_SHOWN], "end"))
    return frame.picture(named, parts)


def _stack(named: Sequence[Named]) -> list[Named]:
    """Add to each series the sum of those before it."""
    sums: dict[float, float] = {}
    stacked = []
    for name, series in named:
        for at, value in series.points:
            sums[at] = sums.get(at, 0.0) + (value if math.isfinite(value) else 0.0)
        stacked.append((name, Series(series.labels, [(at, sums[at]) for at, _ in series.points])))
    return stacked


def _runs(series: Series) -> list[list[tuple[float, float]]]:
    """Split the points into runs without a NaN."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in series.points:
        if math.isfinite(value):
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _states(series: Series) -> list[tuple[float, float, float]]:
    """Return start, end and value of each stretch of equal values."""
    found: list[tuple[float, float, float]] = []
    for at, value in series.points:
        if found and found[-1][2] == value:
            found[-1] = (found[-1][0], at, value)
        else:
            if found:
                found[-1] = (found[-1][0], at, found[-1][2])
            found.append((at, at, value))
    return found


def _span(named: Sequence[Named]) -> tuple[float, float]:
    times = [at for _, series in named for at, _ in series.points]
    first, last = min(times, default=0.0), max(times, default=1.0)
    return first, last if last > first else first + 1


def _grid(frame: Frame, low: float, high: float) -> str:
    y = frame.down(low, high)
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        parts.append(
            f'<line x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#2c3235"/>'
        )
        parts.append(_label(LEFT - 6, y(value) + 3, frame.style.text(value), "end"))
    return "".join(parts)


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
