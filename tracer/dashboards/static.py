"""Find problems in dashboards without querying a Prometheus.

Each rule is a function from a dashboard to problems. The rules cover the usual ways in which
dashboards rot: metrics that no exporter has any more, panels without a description, fixed rate
windows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hicache_dbg.tracer.dashboards.document import Dashboard, QueryVariable, Shown, source_uid
from hicache_dbg.tracer.dashboards.expressions import (
    EVERYTHING,
    ExpressionError,
    Selector,
    can_parse,
    groupings,
    interpolate,
    legend_labels,
    names_in,
    selectors,
)

__all__ = ["Problem", "check_dashboards", "expression_problems", "split_query"]

COLUMNS = 24
DATASOURCE = "${datasource}"
CHOICES = ("datasource", "job", "instance", "rank", "pool")
#: Any window will do, since only the syntax is checked.
WINDOWS: Mapping[str, str] = {"__rate_interval": "1m", "__range": "1h", "__interval": "15s"}

_RATE = re.compile(r"\b(rate|irate|increase)\s*\([^\[\]]*\[([^\]]*)\]")
_LABEL_VALUES = re.compile(r"label_values\((.+),\s*(\w+)\)")

Vocabulary = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its place: the file, and the panel or variable."""

    file: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.what}"


def check_dashboards(boards: Sequence[Dashboard], vocabulary: Vocabulary) -> list[Problem]:
    """Return every problem of ``boards``.

    Args:
        boards: the dashboards to check.
        vocabulary: the labels of each existing metric, by metric name.
    """
    found = [
        Problem(board.path.name, "dashboard", f"uid {board.uid!r} is taken by another dashboard")
        for board in boards
        if Counter(other.uid for other in boards)[board.uid] > 1
    ]
    for board in boards:
        for rule in _RULES:
            found += [Problem(board.path.name, where, what) for where, what in rule(board)]
        for where, text, legend in _expressions(board):
            for what in expression_problems(text, legend, vocabulary):
                found.append(Problem(board.path.name, where, what))
    return found


def expression_problems(text: str, legend: str, vocabulary: Vocabulary) -> list[str]:
    """Return the problems of an expression and of its legend."""
    found = [f"unknown metric {name}" for name in names_in(text) if name not in vocabulary]
    for function, window in _RATE.findall(text):
        if window != "$__rate_interval":
            found.append(f"{function}(...[{window}]): expected [$__rate_interval]")
    try:
        filled = interpolate(text, {**EVERYTHING, **WINDOWS})
        if can_parse():
            found += _unknown_labels(filled, legend, vocabulary)
    except ExpressionError as error:
        found.append(f"{error}: {text}")
    return found


def split_query(variable: QueryVariable) -> tuple[str, str]:
    """Return the selector and the label of a variable's ``label_values`` query.

    Raises:
        ExpressionError: the query has another form.
    """
    found = _LABEL_VALUES.fullmatch(variable.query)
    if found is None:
        raise ExpressionError(f"expected label_values(SELECTOR, LABEL), got {variable.query!r}")
    return found[1], found[2]


def _expressions(board: Dashboard) -> Iterator[tuple[str, str, str]]:
    """Yield where each expression stands, the expression, and its legend."""
    for panel in board.panels:
        for target in panel.targets:
            yield f"panel {panel.title!r} {target.ref}", target.expr, target.legend


def _unknown_labels(filled: str, legend: str, vocabulary: Vocabulary) -> Iterator[str]:
    read = selectors(filled)
    for selector in read:
        for label in sorted(selector.labels - vocabulary.get(selector.name, selector.labels)):
            yield f"{selector.name} has no label {label}"
    for label, inside in groupings(filled):
        if not _has_label(inside, label, vocabulary):
            yield f"grouped by {label}, which no metric there has"
    for label in legend_labels(legend):
        if not _has_label(read, label, vocabulary):
            yield f"the legend shows {label}, which no metric there has"


def _has_label(read: Sequence[Selector], label: str, vocabulary: Vocabulary) -> bool:
    """Return whether one of the metrics has the label; foreign metrics are assumed to have it."""
    return any(label in vocabulary.get(selector.name, {label}) for selector in read)


def _board(board: Dashboard) -> Iterator[tuple[str, str]]:
    for name in ("uid", "title", "description", "schemaVersion"):
        if not board.raw.get(name):
            yield "dashboard", f"has no {name}"
    for name in CHOICES:
        if name not in board.names:
            yield "dashboard", f"has no variable {name}"


def _variables(board: Dashboard) -> Iterator[tuple[str, str]]:
    for variable in board.variables:
        where = f"variable {variable.name}"
        if variable.datasource != DATASOURCE:
            yield where, f"data source is {variable.datasource!r}, expected {DATASOURCE!r}"
        try:
            split_query(variable)
        except ExpressionError as error:
            yield where, str(error)


def _ids(board: Dashboard) -> Iterator[tuple[str, str]]:
    every = (*board.rows, *board.panels)
    for number, count in Counter(panel.raw.get("id") for panel in every).items():
        if number is None or count > 1:
            yield "dashboard", f"panel id {number} is used {count} times"


def _grid(board: Dashboard) -> Iterator[tuple[str, str]]:
    every = (*board.rows, *board.panels)
    for panel in every:
        x, _, width, height = panel.place
        if x < 0 or width < 1 or height < 1 or x + width > COLUMNS:
            yield f"panel {panel.title!r}", f"lies outside the grid: {panel.raw.get('gridPos')}"
    for one, other in combinations(every, 2):
        if _overlap(one, other):
            yield f"panel {one.title!r}", f"overlaps {other.title!r}"


def _overlap(one: Shown, other: Shown) -> bool:
    (x, y, width, height), (x2, y2, width2, height2) = one.place, other.place
    return x < x2 + width2 and x2 < x + width and y < y2 + height2 and y2 < y + height


def _panels(board: Dashboard) -> Iterator[tuple[str, str]]:
    for panel in board.panels:
        where = f"panel {panel.title!r}"
        if not panel.title:
            yield where, "has no title"
        if len(str(panel.raw.get("description") or "")) < len("what it is"):
            yield where, "has no description"
        if panel.kind != "text":
            yield from ((where, what) for what in _asking(panel))


def _asking(panel: Shown) -> Iterator[str]:
    """Yield the problems of a panel that has queries."""
    source = source_uid(panel.raw)
    if source != DATASOURCE:
        yield f"data source is {source!r}, expected {DATASOURCE!r}"
    for name in ("unit", "noValue"):
        if not panel.defaults.get(name):
            yield f"has no {name}"
    if not panel.raw.get("options"):
        yield "has no options"
    if not panel.targets:
        yield "asks nothing"
    for ref, count in Counter(target.ref for target in panel.targets).items():
        if not ref or count > 1:
            yield f"refId {ref!r} is used {count} times"
    for target in panel.targets:
        if not target.expr:
            yield f"{target.ref} has no expression"


_RULES: tuple[Callable[[Dashboard], Iterator[tuple[str, str]]], ...] = (
    *(_board, _variables, _ids, _grid, _panels),
)
