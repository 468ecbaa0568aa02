"""The dashboards against Grafana's own schema, as the types of grafana-foundation-sdk have it.

They are made with that library, but settings of tables, overrides and colours pass through it as
plain data. Reading the JSON back into its types drops names that Grafana does not know. The values
of an enumeration, and what transformations take, are not checked.
"""

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.services import require

Json = dict[str, Any]


def unknown(board: Json) -> list[str]:
    """Return what Grafana's types do not keep of a dashboard, or refuse."""
    require(find_spec("grafana_foundation_sdk"), "grafana-foundation-sdk is not installed")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    try:
        read = Dashboard.from_json(board)
    except (TypeError, ValueError) as error:
        return [str(error)]
    return list(lost(board, json.loads(JSONEncoder().encode(read))))


def lost(wanted: object, kept: object, where: str = "") -> Iterator[str]:
    """Yield what is missing or changed; what was added is a default."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for name, value in wanted.items():
            yield from lost(value, kept.get(name), f"{where}/{name}")
    elif isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        for place, (one, other) in enumerate(zip(wanted, kept, strict=True)):
            yield from lost(one, other, f"{where}/{place}")
    elif wanted != kept:
        yield f"{where}: {wanted!r} became {kept!r}"


@pytest.fixture
def board(dashboards: Path) -> Json:
    """The paths dashboard, to be modified."""
    loaded: Json = json.loads((dashboards / "grafana" / "hicache-dbg-paths.json").read_text())
    return loaded


def first(board: Json, kind: str) -> Json:
    """Return the first panel of a kind."""
    found: Json = next(panel for panel in board["panels"] if panel["type"] == kind)
    return found


def test_grafana_knows_every_setting_of_every_dashboard(dashboards: Path) -> None:
    """Nothing is lost and nothing is refused."""
    for path in (dashboards / "grafana").glob("*.json"):
        assert unknown(json.loads(path.read_text())) == [], path.name


def test_no_setting_of_a_merged_table_asks_for_a_query(dashboards: Path) -> None:
    """Grafana applies settings after it has merged the answers, which then belong to no query."""
    for path in (dashboards / "grafana").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            if any(one["id"] == "merge" for one in panel.get("transformations") or ()):
                matchers = {one["matcher"]["id"] for one in panel["fieldConfig"]["overrides"]}
                assert "byFrameRefID" not in matchers, f"{path.name}: {panel['title']}"


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda b: first(b, "stat")["options"].update(colourMode="value"), "/colourMode"),
        (lambda b: first(b, "heatmap")["options"]["yAxis"].update(units="s"), "/units"),
        (lambda b: first(b, "timeseries")["fieldConfig"]["defaults"].update(units="s"), "/units"),
        (lambda b: b.update(refreshes="30s"), "/refreshes"),
        (lambda b: b["templating"]["list"][1].update(sorting=3), "/sorting"),
    ],
)
def test_a_setting_that_grafana_does_not_know_is_found(
    board: Json, plant: Callable[[Json], None], words: str
) -> None:
    """A misspelt name is the one thing that is told."""
    plant(board)
    (told,) = unknown(board)
    assert words in told
