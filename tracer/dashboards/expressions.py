"""Fill in, parse and inspect PromQL that contains Grafana's variables."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

__all__ = [
    "EVERYTHING",
    "ExpressionError",
    "Selector",
    "can_parse",
    "groupings",
    "interpolate",
    "legend_labels",
    "names_in",
    "selectors",
]

#: What each variable expands to when "All" is chosen.
EVERYTHING: Mapping[str, str] = dict.fromkeys(("job", "instance", "rank", "pool"), ".*")

#: Not ``$1``, which PromQL's own ``label_replace`` has.
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
#: A name after a colon is that of a recording rule, not a metric.
_NAME = re.compile(r"(?<![:\w])hicache_dbg_\w+")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class ExpressionError(ValueError):
    """An expression can't be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One metric that an expression reads, and the labels that it matches on."""

    name: str
    labels: frozenset[str]


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with each ``$name`` and ``${name}`` replaced.

    Raises:
        ExpressionError: a variable has no value.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            raise ExpressionError(f"${name} is no variable: expected one of {', '.join(values)}")
        return values[name]

    return _VARIABLE.sub(value, text)


def can_parse() -> bool:
    """Return whether promql-parser is installed."""
    return find_spec("promql_parser") is not None


def names_in(text: str) -> list[str]:
    """Return the names of our metrics in any text, such as a rules file."""
    return _NAME.findall(text)


def legend_labels(legend: str) -> list[str]:
    """Return the labels that a legend shows."""
    return _LEGEND.findall(legend)


def selectors(expression: str) -> list[Selector]:
    """Return the metrics that an interpolated expression reads.

    Raises:
        ExpressionError: it does not parse.
    """
    return [_selector(node) for node in _nodes(_parse(expression)) if _is_selector(node)]


def groupings(expression: str) -> Iterator[tuple[str, list[Selector]]]:
    """Yield each label that an aggregation keeps or drops, with the metrics it aggregates."""
    for node in _nodes(_parse(expression)):
        modifier = getattr(node, "modifier", None)
        if type(node).__name__ == "AggregateExpr" and modifier is not None:
            inside = [_selector(inner) for inner in _nodes(node.expr) if _is_selector(inner)]
            for label in modifier.labels:
                yield label, inside


def _parse(expression: str) -> Any:
    import promql_parser

    try:
        return promql_parser.parse(expression)
    except ValueError as error:
        raise ExpressionError(str(error)) from error


def _nodes(expression: Any) -> list[Any]:
    """Return every node of a parsed expression."""
    import promql_parser

    found: list[Any] = []
    promql_parser.walk(expression, found.append)
    return found


def _is_selector(node: Any) -> bool:
    return type(node).__name__ == "VectorSelector"


def _selector(node: Any) -> Selector:
    matchers = node.matchers
    alternatives = [matchers.matchers, *matchers.or_matchers]
    return Selector(node.name or "", frozenset(m.name for group in alternatives for m in group))
