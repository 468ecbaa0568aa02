"""The preview without a Prometheus: what it does with panels that others made."""

import json
import re
from pathlib import Path
from typing import Any

from hicache_dbg.tracer.dashboards.document import load
from hicache_dbg.tracer.dashboards.live import Prometheus, Series
from hicache_dbg.tracer.dashboards.preview import page


class OneSeries(Prometheus):
    """Answers each query with one series."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")

    def query(self, expression: str) -> list[Series]:  # noqa: ARG002 - as Prometheus has it
        """Return three mebibytes, of whatever was asked for."""
        return [Series({"pool": "mla", "op": "load", "le": "1"}, [(0.0, 3.0 * 2**20)])]

    def query_range(self, expression: str, span_s: float, points: int = 240) -> list[Series]:  # noqa: ARG002 - as above
        """Return the same."""
        return self.query(expression)

    def rate_interval(self) -> str:
        """Return a window."""
        return "4s"


def drawn(board: Path, title: str) -> str:
    """Return how a panel is shown."""
    shown = page([load(board)], OneSeries(), 60)
    (panel,) = re.findall(rf"<h3>{title}</h3>(.*?)</section>", shown, flags=re.DOTALL)
    return str(panel)


def test_a_column_of_a_merged_table_has_its_own_unit(dashboards: Path) -> None:
    """Copies are a number, bytes are bytes."""
    panel = drawn(dashboards / "grafana" / "hicache-dbg-paths.json", "Paths")
    assert panel.count("MiB</td>") == 1


def test_a_panel_of_another_kind_does_not_end_the_page(copy: Path) -> None:
    """A board to which a gauge was added, without settings, is shown but for that."""
    path = copy / "grafana" / "hicache-dbg-self.json"
    board: dict[str, Any] = json.loads(path.read_text())
    queues, overhead = (p for p in board["panels"] if p["title"] in {"Queues", "Overhead a copy"})
    queues["type"] = "gauge"
    del overhead["fieldConfig"]
    path.write_text(json.dumps(board))
    assert "a panel of kind gauge is not drawn here" in drawn(path, "Queues")
    assert "<svg" in drawn(path, "Overhead a copy")


def test_a_series_whose_color_is_from_a_palette_does_not_end_the_page(copy: Path) -> None:
    """Grafana writes a mode without a color then."""
    path = copy / "grafana" / "hicache-dbg-self.json"
    board: dict[str, Any] = json.loads(path.read_text())
    (queues,) = (p for p in board["panels"] if p["title"] == "Queues")
    palette = {"id": "color", "value": {"mode": "palette-classic"}}
    queues["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": "load"}, "properties": [palette]}
    ]
    path.write_text(json.dumps(board))
    assert "<svg" in drawn(path, "Queues")
