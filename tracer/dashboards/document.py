"""A dashboard's JSON as the checks and the preview read it: panels, targets and variables."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Dashboard", "DocumentError", "QueryVariable", "Shown", "Target", "load", "source_uid"]


class DocumentError(ValueError):
    """A file is not a dashboard; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    ref: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel of a dashboard; ``raw`` is its JSON."""

    raw: dict[str, Any] = field(repr=False)
    title: str
    kind: str
    targets: tuple[Target, ...]

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Column, line, width and height in the grid."""
        grid = self.raw.get("gridPos") or {}
        x, y, w, h = (int(grid.get(name, 0)) for name in "xywh")
        return x, y, w, h

    @property
    def defaults(self) -> dict[str, Any]:
        """The default field settings of the panel."""
        found: dict[str, Any] = (self.raw.get("fieldConfig") or {}).get("defaults") or {}
        return found


@dataclass(frozen=True, slots=True)
class QueryVariable:
    """A variable whose values are those of a label."""

    name: str
    query: str
    datasource: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard's JSON with its rows flattened; ``raw`` is the complete document."""

    path: Path
    raw: dict[str, Any] = field(repr=False)
    panels: tuple[Shown, ...]
    rows: tuple[Shown, ...]
    variables: tuple[QueryVariable, ...]
    names: tuple[str, ...]  #: names of all variables, including the data source

    @property
    def title(self) -> str:
        """The dashboard's title."""
        return str(self.raw.get("title", ""))

    @property
    def uid(self) -> str:
        """The dashboard's uid, which is also its address."""
        return str(self.raw.get("uid", ""))


def load(path: Path) -> Dashboard:
    """Read a dashboard.

    Raises:
        DocumentError: the file can't be read or is not a dashboard.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DocumentError(f"{path} is no JSON that can be read: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("panels"), list):
        raise DocumentError(f"{path} is no dashboard: expected an object with a list of panels")
    try:
        return _dashboard(path, raw)
    except (AttributeError, TypeError, ValueError) as error:
        raise DocumentError(
            f"{path} is no dashboard: a panel or a variable has another shape: {error}"
        ) from error


def source_uid(raw: dict[str, Any]) -> str:
    """Return the data source of a panel or variable: its uid, or in old documents its name."""
    source = raw.get("datasource") or {}
    return source if isinstance(source, str) else str(source.get("uid", ""))


def _dashboard(path: Path, raw: dict[str, Any]) -> Dashboard:
    flat = tuple(_shown(panel) for panel in _flat(raw["panels"]))
    for panel in flat:
        _ = panel.place, panel.defaults.get("unit"), source_uid(panel.raw)
    listed = (raw.get("templating") or {}).get("list") or []
    return Dashboard(
        path=path,
        raw=raw,
        panels=tuple(panel for panel in flat if panel.kind != "row"),
        rows=tuple(panel for panel in flat if panel.kind == "row"),
        variables=tuple(_variable(item) for item in listed if item.get("type") == "query"),
        names=tuple(str(item.get("name", "")) for item in listed),
    )


def _flat(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the panels, including those inside collapsed rows."""
    for panel in panels:
        yield panel
        yield from panel.get("panels") or []


def _shown(raw: dict[str, Any]) -> Shown:
    return Shown(
        raw=raw,
        title=str(raw.get("title", "")),
        kind=str(raw.get("type", "")),
        targets=tuple(
            Target(
                ref=str(target.get("refId", "")),
                expr=str(target.get("expr", "")),
                legend=str(target.get("legendFormat", "")),
                instant=bool(target.get("instant", False)),
            )
            for target in raw.get("targets") or []
        ),
    )


def _variable(item: dict[str, Any]) -> QueryVariable:
    query = item.get("query", "")
    return QueryVariable(
        name=str(item.get("name", "")),
        query=str(query.get("query", "") if isinstance(query, dict) else query),
        datasource=source_uid(item),
    )
