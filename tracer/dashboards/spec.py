"""Definitions of a dashboard: boards of rows of panels, each panel with its queries.

These are tables of facts only; the JSON is built from them elsewhere, so that a reviewer reads one
entry per panel.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "RETURNING",
    "VARIABLES",
    "Board",
    "Kind",
    "Look",
    "Panel",
    "Query",
    "Reading",
    "Row",
    "Step",
    "Variable",
    "by",
    "gpu_metric",
    "largest",
    "level",
    "metric",
    "pool_metric",
    "rate",
    "rates",
    "ratio",
    "seen",
    "shown",
    "total",
    "totals",
]

#: Operations that bring bytes back: only these can be compared with what was written.
RETURNING = 'op=~"load|fetch|recv"'

_PLACE = 'job=~"$job",instance=~"$instance"'


def metric(name: str, *matchers: str) -> str:
    """Return a selector of one of our metrics within the chosen job, instance and rank."""
    return _selector(name, 'rank=~"$rank"', *matchers)


def gpu_metric(name: str, *matchers: str) -> str:
    """Return a selector of a GPU's metric; its rank is empty unless the exporter knows it."""
    return _selector(f"gpu_{name}", 'rank=~"$rank|"', *matchers)


def pool_metric(name: str, *matchers: str) -> str:
    """Return a selector that is also limited to the chosen pools."""
    return metric(name, 'pool=~"$pool"', *matchers)


def _selector(name: str, *matchers: str) -> str:
    return f"hicache_dbg_{name}{{{','.join((_PLACE, *matchers))}}}"


def rate(selector: str) -> str:
    """Return a counter's increase per second."""
    return f"rate({selector}[$__rate_interval])"


def seen(selector: str) -> str:
    """Return the highest count that each process reached in the time range shown.

    ``increase`` would miss what a counter already held at the first scrape, and a mirror of the
    wrong size is found before the first scrape.
    """
    return f"max_over_time({selector}[$__range])"


def by(labels: str, expr: str, *, fold: str = "sum") -> str:
    """Return an expression folded into one series for each value of ``labels``."""
    return f"{fold} by ({labels}) ({expr})"


def shown(labels: str) -> str:
    """Return the legend that shows ``labels``."""
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))


class Kind(StrEnum):
    """How a panel shows its queries; the values are Grafana's own."""

    STAT = "stat"
    LINES = "timeseries"
    TABLE = "table"
    HEATMAP = "heatmap"
    STATES = "state-timeline"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Step:
    """A threshold: the colour from ``value`` upwards. The first step has no value."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The text and colour shown in place of one value."""

    value: str
    text: str
    color: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How numbers are shown; ``unit`` is Grafana's id, ``readings`` are words for values."""

    unit: str = "short"
    decimals: int | None = None
    steps: tuple[Step, ...] = ()
    readings: tuple[Reading, ...] = ()
    stacked: bool = False
    bars: bool = False
    colors: tuple[tuple[str, str], ...] = ()  #: (legend, colour) of a series
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` names its series, or its column in a table.

    ``look`` replaces the panel's for this query alone.
    """

    expr: str
    legend: str = ""
    exemplar: bool = False
    look: Look | None = None


def rates(labels: str, selector: str, legend: str = "", *, exemplar: bool = False) -> Query:
    """Return the increase a second by ``labels``, which are also the legend unless there is one."""
    return Query(by(labels, rate(selector)), legend or shown(labels), exemplar)


def ratio(labels: str, part: str, whole: str, legend: str = "") -> Query:
    """Return how much one counter increases for each 1 by which another does."""
    expr = f"{by(labels, rate(part))} / {by(labels, rate(whole))}"
    return Query(expr, legend or shown(labels))


def level(labels: str, selector: str, legend: str = "", *, fold: str = "sum") -> Query:
    """Return a gauge by ``labels``."""
    return Query(by(labels, selector, fold=fold), legend or shown(labels))


def total(selector: str, legend: str, *, look: Look | None = None) -> Query:
    """Return a count since each process started, of all together."""
    return Query(f"sum({seen(selector)})", legend, look=look)


def totals(labels: str, selector: str, legend: str = "", *, look: Look | None = None) -> Query:
    """Return a count since each process started, by ``labels``."""
    return Query(by(labels, seen(selector)), legend or shown(labels), look=look)


def largest(labels: str, selector: str) -> str:
    """Return the 25 largest counts since each process started, without those of 0.

    If all are 0, return one 0 without labels: no line at all would mean that nothing is scraped.
    """
    return f"topk(25, {by(labels, seen(selector))} > 0) or on () sum({seen(selector)})"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel; ``description`` says how to read it. Which metrics it shows is added when built."""

    kind: Kind
    title: str
    description: str
    queries: tuple[Query, ...] = ()
    width: int = 12
    height: int = 8
    look: Look = Look()
    no_value: str = "no data"
    columns: tuple[str, ...] = ()  #: tables only: the labels shown, in this order
    sort: str = ""  #: tables only: the column to sort by, largest first
    content: str = ""  #: text panels only: Markdown


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, laid out left to right in 24 columns."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard; its uid is its address and must not change."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable at the top of a board; its values are those of ``label`` in ``selector``."""

    name: str
    label: str
    selector: str
    numbers: bool = False  #: sorted as numbers: 2 before 10


#: Each narrows the next. Series without a pool have an empty pool name, so "All" is ``.*``.
VARIABLES: tuple[Variable, ...] = (
    Variable("job", "job", "hicache_dbg_events_total"),
    Variable("instance", "instance", 'hicache_dbg_events_total{job=~"$job"}'),
    Variable(
        "rank", "rank", 'hicache_dbg_events_total{job=~"$job",instance=~"$instance"}', numbers=True
    ),
    Variable("pool", "pool", metric("pool_geometry_info")),
)
