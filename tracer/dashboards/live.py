"""Query a Prometheus as Grafana would: every panel's expression, every variable's values."""

import base64
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import Any, TypeVar

from hicache_dbg.tracer.dashboards.document import Dashboard, QueryVariable
from hicache_dbg.tracer.dashboards.expressions import EVERYTHING, ExpressionError, interpolate
from hicache_dbg.tracer.dashboards.static import split_query

__all__ = [
    "AddressError",
    "Answer",
    "Prometheus",
    "PrometheusError",
    "Series",
    "ask_all",
    "choices",
]

WAIT_S = 10.0
DEFAULT_SCRAPE_S = 15.0
#: Grafana's rule for $__rate_interval: four scrapes, so that one failed scrape leaves no gap.
SCRAPES_A_WINDOW = 4

T = TypeVar("T")

_DURATION = re.compile(r"([0-9.]+)(ms|[smhd])")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class PrometheusError(Exception):
    """A Prometheus did not answer or rejected a query; the message says which and why."""


class AddressError(PrometheusError):
    """The given address is not that of a Prometheus."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and (time, value) points in order of time."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def last(self) -> float:
        """The latest value."""
        return self.points[-1][1] if self.points else math.nan


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one query of a dashboard: the number of series, or why it failed."""

    file: str
    where: str
    query: str
    series: int
    error: str = ""


class Prometheus:
    """A Prometheus server by its URL, such as ``http://127.0.0.1:9090``.

    A name and a password in it (``http://user:password@host``) are sent and never shown.

    Raises:
        AddressError: ``url`` is not the address of an HTTP server.
        PrometheusError: from every method, if the server does not answer, rejects the query, or is
            not a Prometheus.
    """

    def __init__(self, url: str) -> None:
        if not _is_address(url):
            raise AddressError(
                f"{_without_password(url)!r} is no address of a Prometheus: expected http://HOST:PORT"
            )
        parts = urllib.parse.urlsplit(url)
        named, _, host = parts.netloc.rpartition("@")
        self._url = parts._replace(netloc=host).geturl().rstrip("/")
        self._authorization = _basic(named) if named else ""

    def query(self, expression: str) -> list[Series]:
        """Return the current value of each series of an expression."""
        return self._get("query", _now, query=expression)

    def query_range(self, expression: str, span_s: float, points: int = 240) -> list[Series]:
        """Return each series over the last ``span_s`` seconds, at most ``points`` long."""
        now, step = time.time(), max(1.0, span_s / points)
        return self._get(
            "query_range",
            _over_time,
            query=expression,
            start=f"{now - span_s:.3f}",
            end=f"{now:.3f}",
            step=f"{step:.3f}",
        )

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return the values of ``label`` among the series of ``selector``."""
        return self._get(f"label/{label}/values", _texts, **{"match[]": selector})

    def rate_interval(self) -> str:
        """Return the window for rates: four times the longest scrape interval of any target."""
        intervals = self._get("targets", _intervals, state="active")
        longest = max(intervals, default=DEFAULT_SCRAPE_S)
        return f"{math.ceil(SCRAPES_A_WINDOW * longest)}s"

    def _get(self, path: str, read: Callable[[Any], T], **parameters: str) -> T:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            request = urllib.request.Request(url)  # noqa: S310 - http, checked above
            if self._authorization:  # not for another host that it redirects to
                request.add_unredirected_header("Authorization", self._authorization)
            with urllib.request.urlopen(request, timeout=WAIT_S) as response:  # noqa: S310 - as above
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{self._url} refused: {_reason(error)}") from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PrometheusError(f"{self._url} does not answer: {reason}") from error
        try:
            return read(answer["data"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusError(
                f"{self._url} answers /api/v1/{path}, but not as a Prometheus does: is it another server's "
                "address?"
            ) from error


def _without_password(url: str) -> str:
    """Return an address as it may be printed: what stands before the last @ is a secret."""
    _, at, host = url.rpartition("@")
    return f"...@{host}" if at else url


def _basic(named: str) -> str:
    """Return the header for ``user:password`` as it stands in a URL."""
    plain = ":".join(map(urllib.parse.unquote, named.split(":", 1)))
    return f"Basic {base64.b64encode(plain.encode()).decode()}"


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a non-numeric port or half an IPv6 address
        return False
    return named and parts.scheme in {"http", "https"} and not re.search(r"\s", url)


def _now(data: Any) -> list[Series]:
    if data["resultType"] == "scalar":
        return [Series({}, [_point(data["result"])])]
    return [Series(item["metric"], [_point(item["value"])]) for item in data["result"]]


def _over_time(data: Any) -> list[Series]:
    return [Series(item["metric"], list(map(_point, item["values"]))) for item in data["result"]]


def _texts(data: Any) -> list[str]:
    return list(map(str, data))


def _intervals(data: Any) -> list[float]:
    return [_seconds(target.get("scrapeInterval", "")) for target in data["activeTargets"]]


def choices(prometheus: Prometheus, span: str) -> dict[str, str]:
    """Return a value for every variable: all jobs, instances, ranks and pools, over ``span``."""
    windows = {"__rate_interval": prometheus.rate_interval(), "__range": span, "__interval": "15s"}
    return {**EVERYTHING, **windows}


def ask_all(
    boards: Sequence[Dashboard], prometheus: Prometheus, span: str = "1h"
) -> Iterator[Answer]:
    """Run every query of every board and yield one answer each; a rejected query is an answer too.

    Raises:
        PrometheusError: the server does not answer at all.
    """
    values = choices(prometheus, span)
    for board in boards:
        for where, text, ask in _questions(board, prometheus, values):
            try:
                count, error = ask(), ""
            except (PrometheusError, ExpressionError) as failure:
                count, error = 0, str(failure)
            yield Answer(board.path.name, where, text, count, error)


def _questions(
    board: Dashboard, prometheus: Prometheus, values: Mapping[str, str]
) -> Iterator[tuple[str, str, Callable[[], int]]]:
    """Yield where each query stands, the query, and a function that counts its results."""
    for variable in board.variables:
        ask = partial(_count_values, prometheus, variable, values)
        yield f"variable {variable.name}", variable.query, ask
    for panel in board.panels:
        for target in panel.targets:
            where = f"panel {panel.title!r} {target.ref}"
            yield where, target.expr, partial(_count_series, prometheus, target.expr, values)


def _count_series(prometheus: Prometheus, expr: str, values: Mapping[str, str]) -> int:
    return len(prometheus.query(interpolate(expr, values)))


def _count_values(
    prometheus: Prometheus, variable: QueryVariable, values: Mapping[str, str]
) -> int:
    selector, label = split_query(variable)
    return len(prometheus.label_values(interpolate(selector, values), label))


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _seconds(text: str) -> float:
    """Return a duration as Prometheus writes it (``1m30s``) in seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def _reason(error: urllib.error.HTTPError) -> str:
    """Return Prometheus's reason for rejecting a query."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
