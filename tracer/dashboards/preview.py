"""Render every panel's current answer as one self-contained HTML page.

This is a preview, not Grafana's rendering: it shows the same queries, places, units, words and
colours.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import Any

from hicache_dbg.tracer.dashboards.charts import Frame, Named, bands, heat, lines
from hicache_dbg.tracer.dashboards.document import Dashboard, Shown, Target
from hicache_dbg.tracer.dashboards.expressions import ExpressionError, interpolate
from hicache_dbg.tracer.dashboards.live import Prometheus, PrometheusError, Series, choices
from hicache_dbg.tracer.dashboards.numbers import Style, style_of

__all__ = ["page"]

#: Placeholders that are left in a legend: a label that the series does not have shows as nothing.
_UNKNOWN = re.compile(r"\{\{.*?\}\}")
#: Pixels per grid line, per grid column, and for a panel's heading and legend.
LINE_PX, COLUMN_PX, ROOM_PX = 32, 52, 80
ROWS_SHOWN = 40
LEGENDS_SHOWN = 16

_STYLE = """
body { background: #111217; color: #ccccdc; font: 13px system-ui, sans-serif; margin: 16px }
h1 { font-size: 18px } h2 { font-size: 14px; grid-column: 1 / -1; margin: 8px 0 0 }
.board { display: grid; grid-template-columns: repeat(24, 1fr); gap: 8px; margin-bottom: 32px }
.panel { background: #181b1f; border: 1px solid #2c3235; border-radius: 3px; padding: 8px; overflow: hidden }
.panel { display: flex; flex-direction: column }
.panel h3 { font-size: 13px; margin: 0 0 6px }
svg { width: 100%; height: auto } svg text { fill: #d8d9da; font-size: 10px }
.stats { flex: 1; display: flex; gap: 6px; flex-wrap: wrap }
.stat { flex: 1; min-width: 90px; padding: 8px; color: #fff }
.stat b { display: block; font-size: 22px } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: 2px 8px; border-bottom: 1px solid #2c3235; font-size: 12px }
.legend { font-size: 11px; color: #9fa7b3 }
.legend i { display: inline-block; width: 10px; height: 4px; margin: 0 4px 2px 8px }
.none { color: #e0b400 } pre { white-space: pre-wrap; font-size: 12px }
@media (max-width: 800px) {
  .board { grid-template-columns: 1fr }
  .panel { grid-column: auto !important; min-height: 0 !important; overflow-x: auto }
}
"""

#: A query, its answer, and how its numbers are shown.
_Asked = tuple[Target, list[Series], Style]


def page(boards: Sequence[Dashboard], prometheus: Prometheus, span_s: int) -> str:
    """Return the page with all boards, each panel in its place, over the last ``span_s`` seconds.

    Raises:
        PrometheusError: the server does not answer.
    """
    values = choices(prometheus, f"{span_s}s")
    body = "".join(_board(board, prometheus, values, span_s) for board in boards)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hicache-dbg dashboards</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def _board(board: Dashboard, prometheus: Prometheus, values: Mapping[str, str], span_s: int) -> str:
    everything = sorted((*board.rows, *board.panels), key=lambda panel: panel.place[1::-1])
    parts = []
    for panel in everything:
        if panel.kind == "row":
            parts.append(f"<h2>{escape(panel.title)}</h2>")
            continue
        _, _, width, height = panel.place
        inside = _panel(panel, prometheus, values, span_s)
        parts.append(
            f'<section class="panel" style="grid-column: span {width}; min-height: {height * LINE_PX}px" '
            f'title="{escape(str(panel.raw.get("description", "")))}"><h3>{escape(panel.title)}</h3>'
            f"{inside}</section>"
        )
    return f'<h1>{escape(board.title)}</h1><div class="board">{"".join(parts)}</div>'


def _panel(panel: Shown, prometheus: Prometheus, values: Mapping[str, str], span_s: int) -> str:
    if panel.kind == "text":
        content = (panel.raw.get("options") or {}).get("content", "")
        return f"<pre>{escape(str(content))}</pre>"
    draw = _DRAW.get(panel.kind)
    if draw is None:
        return f'<p class="none">a panel of kind {escape(panel.kind)} is not drawn here</p>'
    try:
        asked = list(_ask(panel, prometheus, values, span_s))
    except (PrometheusError, ExpressionError) as error:
        return f'<p class="none">{escape(str(error))}</p>'
    if not any(series for _, series, _ in asked):
        return f'<p class="none">{escape(str(panel.defaults.get("noValue", "no data")))}</p>'
    return draw(panel, asked)


def _ask(
    panel: Shown, prometheus: Prometheus, values: Mapping[str, str], span_s: int
) -> Iterator[_Asked]:
    of_query, of_column = _overrides(panel, "byFrameRefID"), _overrides(panel, "byName")
    columns = _organised(panel).get("renameByName", {})
    for target in panel.targets:
        expression = interpolate(target.expr, values)
        series = (
            prometheus.query(expression)
            if target.instant
            else prometheus.query_range(expression, span_s)
        )
        own = of_query.get(target.ref) or of_column.get(columns.get(f"Value #{target.ref}", ""), {})
        yield target, series, style_of({**panel.defaults, **own})


def _overrides(panel: Shown, matcher: str) -> dict[str, dict[str, Any]]:
    """Return the settings that replace the panel's, by what a matcher of this kind matches."""
    return {
        override["matcher"]["options"]: {
            item["id"]: item["value"] for item in override["properties"]
        }
        for override in (panel.raw.get("fieldConfig") or {}).get("overrides") or []
        if override["matcher"]["id"] == matcher
    }


def _organised(panel: Shown) -> dict[str, Any]:
    """Return how a table orders and names its columns; empty for other panels."""
    return next(
        (t["options"] for t in panel.raw.get("transformations") or [] if t["id"] == "organize"), {}
    )


def _named(asked: Sequence[_Asked]) -> list[Named]:
    return [(_name(target, series), series) for target, answer, _ in asked for series in answer]


def _name(target: Target, series: Series) -> str:
    text = target.legend
    for label, value in series.labels.items():
        text = text.replace("{{" + label + "}}", value)
    return _UNKNOWN.sub("", text).strip()


def _stats(_: Shown, asked: Sequence[_Asked]) -> str:
    tiles = [
        f'<div class="stat" style="background: {style.color(series.last)}">'
        f"{escape(_name(target, series))}<b>{escape(style.text(series.last))}</b></div>"
        for target, answer, style in asked
        for series in answer
    ]
    return f'<div class="stats">{"".join(tiles)}</div>'


def _lines(panel: Shown, asked: Sequence[_Asked]) -> str:
    named = [(name, series) for name, series in _named(asked) if _says_something(series)]
    custom = panel.defaults.get("custom") or {}
    stacked = (custom.get("stacking") or {}).get("mode") == "normal"
    frame = _frame(panel, asked)
    return lines(named, frame, stacked=stacked) + _legend([name for name, _ in named], frame)


def _says_something(series: Series) -> bool:
    return any(math.isfinite(value) for _, value in series.points)


def _heat(panel: Shown, asked: Sequence[_Asked]) -> str:
    return heat(_named(asked), _frame(panel, asked))


def _bands(panel: Shown, asked: Sequence[_Asked]) -> str:
    return bands(_named(asked), _frame(panel, asked))


def _table(panel: Shown, asked: Sequence[_Asked]) -> str:
    """Join the queries by their labels, as the panel's own transformations do."""
    organise = _organised(panel)
    names = organise.get("renameByName", {})
    order = organise.get("indexByName", {})
    wanted = sorted(order, key=order.__getitem__)
    sort = ((panel.raw.get("options") or {}).get("sortBy") or [{}])[0].get("displayName", "")
    rows: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for target, answer, style in asked:
        column = "Value" if len(asked) == 1 else f"Value #{target.ref}"
        for series in answer:
            row = rows.setdefault(tuple(sorted(series.labels.items())), [0.0, dict(series.labels)])
            row[1][column] = style.text(series.last)
            if names.get(column) == sort:
                row[0] = series.last
    head = "".join(f"<th>{escape(names.get(name, name))}</th>" for name in wanted)
    lines_ = "".join(
        "<tr>" + "".join(f"<td>{escape(row.get(name, ''))}</td>" for name in wanted) + "</tr>"
        for _, row in sorted(rows.values(), key=itemgetter(0), reverse=True)[:ROWS_SHOWN]
    )
    more = len(rows) - ROWS_SHOWN
    note = f'<p class="legend">and {more} more</p>' if more > 0 else ""
    return f"<table><tr>{head}</tr>{lines_}</table>{note}"


def _legend(names: Sequence[str], frame: Frame) -> str:
    shown = [
        f'<i style="background: {frame.color(number, name)}"></i>{escape(name)}'
        for number, name in enumerate(names[:LEGENDS_SHOWN])
    ]
    more = len(names) - LEGENDS_SHOWN
    return f'<div class="legend">{"".join(shown)}{f" and {more} more" if more > 0 else ""}</div>'


def _frame(panel: Shown, asked: Sequence[_Asked]) -> Frame:
    """Return a frame as wide and tall as the panel."""
    _, _, width, height = panel.place
    colors = {
        name: own["color"]["fixedColor"]
        for name, own in _overrides(panel, "byName").items()
        if "fixedColor" in own.get("color", {})  # a palette has none
    }
    tall = max(110, height * LINE_PX - ROOM_PX)
    return Frame(width=width * COLUMN_PX, height=tall, style=asked[0][2], colors=colors)


_DRAW: dict[str, Callable[[Shown, Sequence[_Asked]], str]] = {
    "stat": _stats,
    "timeseries": _lines,
    "heatmap": _heat,
    "state-timeline": _bands,
    "table": _table,
}
