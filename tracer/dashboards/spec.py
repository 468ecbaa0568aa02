"""What a dashboard is here: boards of rows of panels, each with its queries and how to read them.

Only tables of facts; the JSON is made of them elsewhere, so that a panel is one entry to review.
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
    "metric",
    "pool_metric",
    "rate",
    "seen",
]

#: Operations that bring bytes back: only what comes back can be compared with what went out.
RETURNING = 'op=~"load|fetch|recv"'

_SCOPE = 'job=~"$job",instance=~"$instance",rank=~"$rank"'


def metric(name: str, *matchers: str) -> str:
    """A selector of one of our metrics within the chosen job, instance and rank."""
    return f"hicache_dbg_{name}{{{','.join((_SCOPE, *matchers))}}}"


def pool_metric(name: str, *matchers: str) -> str:
    """A selector that also keeps to the chosen pools."""
    return metric(name, 'pool=~"$pool"', *matchers)


def rate(selector: str) -> str:
    """What a counter grew by, a second."""
    return f"rate({selector}[$__rate_interval])"


def seen(selector: str) -> str:
    """The highest count that each process reached in the time shown.

    ``increase`` would miss what a counter held when it was first scraped, and a mirror of the
    wrong size is found before the first scrape.
    """
    return f"max_over_time({selector}[$__range])"


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
    """From ``value`` on the colour is this one; the first step has no value."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The words that stand for a number."""

    value: str
    text: str
    color: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How numbers are shown: unit (Grafana's id), decimals, colours from a value on, words."""

    unit: str = "short"
    decimals: int | None = None
    steps: tuple[Step, ...] = ()
    readings: tuple[Reading, ...] = ()
    stacked: bool = False
    bars: bool = False
    colors: tuple[tuple[str, str], ...] = ()  #: colour of a series by its legend
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` is the name of its series, or of its column in a table.

    ``look`` replaces the panel's for this query alone.
    """

    expr: str
    legend: str = ""
    exemplar: bool = False
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: what it shows, and in ``description`` how to read it and which metric it is."""

    kind: Kind
    title: str
    description: str
    queries: tuple[Query, ...] = ()
    width: int = 12
    height: int = 8
    look: Look = Look()
    no_value: str = "no data"
    columns: tuple[str, ...] = ()  #: of a table: the labels shown, in this order
    sort: str = ""  #: of a table: the column that is sorted by, the largest first
    content: str = ""  #: of a text panel, in Markdown


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, laid out left to right in 24 columns."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard; its uid is its address and stays."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top: its name, and the label and selector that its values come from."""

    name: str
    label: str
    selector: str


#: Each narrows the next. A pool's name is empty on what belongs to none, so "All" is ``.*``.
VARIABLES: tuple[Variable, ...] = (
    Variable("job", "job", "hicache_dbg_events_total"),
    Variable("instance", "instance", 'hicache_dbg_events_total{job=~"$job"}'),
    Variable("rank", "rank", 'hicache_dbg_events_total{job=~"$job",instance=~"$instance"}'),
    Variable("pool", "pool", metric("pool_geometry_info")),
)
