"""The committed dashboards match the code and pass every rule; each rule finds its mistake."""

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.services import require

from hicache_dbg.exporters.prometheus_multiprocess import is_multiprocess
from hicache_dbg.tracer.dashboards import vocabulary as vocabulary_module
from hicache_dbg.tracer.dashboards.boards import BOARDS
from hicache_dbg.tracer.dashboards.document import DocumentError, load
from hicache_dbg.tracer.dashboards.expressions import can_parse
from hicache_dbg.tracer.dashboards.spec import Kind
from hicache_dbg.tracer.dashboards.static import check_dashboards
from hicache_dbg.tracer.dashboards.vocabulary import VocabularyError, vocabulary

Json = dict[str, Any]
SERIES = "hicache_dbg_tiles_total"


@pytest.fixture
def board(dashboards: Path) -> Json:
    """The integrity dashboard, to be modified."""
    loaded: Json = json.loads((dashboards / "grafana" / "hicache-dbg-integrity.json").read_text())
    return loaded


@pytest.fixture
def problems(tmp_path: Path) -> Callable[[Json], list[str]]:
    """Return the problems of one dashboard."""

    def check(board: Json) -> list[str]:
        path = tmp_path / "board.json"
        path.write_text(json.dumps(board))
        return [str(problem) for problem in check_dashboards([load(path)], vocabulary())]

    return check


def test_the_committed_json_is_what_the_code_makes(dashboards: Path) -> None:
    """Neither the JSON was edited by hand nor the code changed without regenerating it."""
    require(find_spec("grafana_foundation_sdk"), "grafana-foundation-sdk is not installed")
    from hicache_dbg.tracer.dashboards.build import as_json

    made = {f"{board.uid}.json": as_json(board) for board in BOARDS}
    committed = {path.name: path.read_text() for path in (dashboards / "grafana").glob("*.json")}
    assert made == committed


def test_the_shipped_dashboards_are_clean(dashboards: Path) -> None:
    """Every rule holds for every dashboard; expressions parse and all names are known."""
    require(can_parse(), "promql-parser is not installed")
    boards = [load(path) for path in sorted((dashboards / "grafana").glob("*.json"))]
    assert len(boards) == 5
    assert check_dashboards(boards, vocabulary()) == []


def test_ranks_are_sorted_as_numbers(dashboards: Path) -> None:
    """Of two hundred ranks, 2 stands before 10; 3 is Grafana's ascending numerical order."""
    for path in (dashboards / "grafana").glob("*.json"):
        listed = json.loads(path.read_text())["templating"]["list"]
        sorts = {variable["name"]: variable.get("sort") for variable in listed}
        assert sorts["rank"] == 3
        assert sorts["pool"] == 1


def test_no_line_adds_the_ranks_of_several_servers() -> None:
    """Each server has a rank 0: what is shown by rank is shown by instance as well."""
    asked = [q for b in BOARDS for row in b.rows for panel in row.panels for q in panel.queries]
    grouped = [q.expr for q in asked if re.search(r"by \([^)]*\brank\b", q.expr)]
    assert len(grouped) >= 8
    assert [expr for expr in grouped if re.search(r"by \((?!.*\binstance\b)[^)]*rank", expr)] == []


def test_two_dashboards_with_one_uid_are_told(dashboards: Path) -> None:
    """Grafana would let one replace the other."""
    one = load(dashboards / "grafana" / "hicache-dbg-self.json")
    found = [str(problem) for problem in check_dashboards([one, one], vocabulary())]
    assert "uid 'hicache-dbg-self' is taken" in found[0]


def panels(board: Json) -> Iterator[Json]:
    """Return the panels with queries."""
    return (panel for panel in board["panels"] if panel.get("targets"))


def set_panel(name: str, value: object) -> Callable[[Json], None]:
    """Change one field of the first panel with queries."""

    def change(board: Json) -> None:
        next(panels(board))[name] = value

    return change


def set_expression(expr: str) -> Callable[[Json], None]:
    """Change the first panel's first expression."""

    def change(board: Json) -> None:
        next(panels(board))["targets"][0]["expr"] = expr

    return change


def same_id(board: Json) -> None:
    """Give two panels the same id."""
    first, second, *_ = panels(board)
    second["id"] = first["id"]


def overlap(board: Json) -> None:
    """Put two panels in the same place."""
    first, second, *_ = panels(board)
    second["gridPos"] = dict(first["gridPos"])


def same_ref(board: Json) -> None:
    """Give two queries the same letter."""
    next(panels(board))["targets"][1]["refId"] = "A"


def without_pool(board: Json) -> None:
    """Remove the pool variable."""
    listed = board["templating"]["list"]
    listed[:] = [variable for variable in listed if variable["name"] != "pool"]


def other_source(board: Json) -> None:
    """Query another data source for the values of a variable."""
    board["templating"]["list"][1]["datasource"]["uid"] = "prometheus"


def other_query(board: Json) -> None:
    """Use an unsupported form of query for a variable."""
    board["templating"]["list"][1]["query"] = "query_result(up)"


def legend(board: Json) -> None:
    """Show a label that the metric does not have."""
    next(panels(board))["targets"][0]["legendFormat"] = "{{tier}}"


MISTAKES: list[tuple[Callable[[Json], None], str]] = [
    (lambda board: board.update(uid=""), "has no uid"),
    (lambda board: board.update(description=""), "has no description"),
    (without_pool, "has no variable pool"),
    (other_source, "variable job: data source is 'prometheus'"),
    (other_query, "expected label_values(SELECTOR, LABEL), got 'query_result(up)'"),
    (same_id, "is used 2 times"),
    (set_panel("id", None), "panel id None"),
    (overlap, "overlaps"),
    (set_panel("gridPos", {"x": 20, "y": 900, "w": 8, "h": 4}), "lies outside the grid"),
    (set_panel("title", ""), "has no title"),
    (set_panel("description", ""), "has no description"),
    (set_panel("datasource", {"uid": "prometheus"}), "expected '${datasource}'"),
    (set_panel("fieldConfig", {"defaults": {"noValue": "no data"}}), "has no unit"),
    (set_panel("fieldConfig", {"defaults": {"unit": "short"}}), "has no noValue"),
    (set_panel("options", None), "has no options"),
    (set_panel("targets", [{"refId": "A"}]), "A has no expression"),
    (same_ref, "refId 'A' is used 2 times"),
    (
        set_expression("sum(hicache_dbg_tilse_total)"),
        "unknown metric hicache_dbg_tilse_total",
    ),
    (set_expression(f"sum(rate({SERIES}[5m]))"), "rate(...[5m]): expected [$__rate_interval]"),
    (set_expression(f"sum({SERIES}{{pool=~'$pol'}})"), "$pol is no variable"),
]
GRAMMAR: list[tuple[Callable[[Json], None], str]] = [
    (set_expression(f"sum by (pool ({SERIES})"), "sum by (pool"),
    (set_expression(f"rate({SERIES})"), "expected type matrix"),
    (set_expression(f'{SERIES}{{tier="host"}}'), "hicache_dbg_tiles_total has no label tier"),
    (set_expression(f"sum by (layout) ({SERIES})"), "grouped by layout"),
    (legend, "the legend shows tier"),
]


@pytest.mark.parametrize(("plant", "words"), MISTAKES)
def test_each_rule_finds_its_mistake(
    board: Json,
    problems: Callable[[Json], list[str]],
    plant: Callable[[Json], None],
    words: str,
) -> None:
    """A clean dashboard then has exactly the planted problem."""
    plant(board)
    found = problems(board)
    assert any(words in problem for problem in found), found
    assert len({problem.partition(": ")[2] for problem in found}) <= 2, found


@pytest.mark.parametrize(("plant", "words"), GRAMMAR)
def test_expressions_are_parsed(
    board: Json,
    problems: Callable[[Json], list[str]],
    plant: Callable[[Json], None],
    words: str,
) -> None:
    """Problems that need a parser are found: syntax, types, and labels that a metric does not have."""
    require(can_parse(), "promql-parser is not installed")
    plant(board)
    (problem,) = problems(board)
    assert words in problem


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"panels": 3}'])
def test_a_file_that_is_no_dashboard_is_told(tmp_path: Path, text: str) -> None:
    """Whatever the file contains, the error names it."""
    path = tmp_path / "board.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=r"board\.json is no"):
        load(path)


def test_the_vocabulary_is_the_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and labels are those of a scrape, including GPU readings."""
    known = vocabulary()
    assert known["hicache_dbg_tiles_total"] == {"job", "instance", "pool", "op", "result", "rank"}
    assert "le" in known["hicache_dbg_copy_duration_seconds_bucket"]
    assert known["hicache_dbg_gpu_ecc_errors_total"] >= {"gpu", "type"}
    assert known["hicache_dbg_internal_errors_total"] >= {"place"}
    assert known["hicache_dbg_rank_info"] == {"job", "instance", "rank", "tp", "pp", "dp"}
    assert not is_multiprocess()


def test_the_vocabulary_is_not_asked_for_among_serving_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In multiprocess mode the probe events would be counted into shared files, so it is refused."""
    monkeypatch.setattr(vocabulary_module, "is_multiprocess", lambda: True)
    with pytest.raises(VocabularyError, match="PROMETHEUS_MULTIPROC_DIR"):
        vocabulary()


def test_no_mismatch_stands_without_the_share_that_was_checked() -> None:
    """The panel that shows mismatched tiles also shows the share that was checked."""
    (panel,) = (
        panel
        for row in BOARDS[0].rows
        for panel in row.panels
        if panel.kind is Kind.STAT and any("mismatched" in q.legend for q in panel.queries)
    )
    assert [query.legend for query in panel.queries][:2] == ["mismatched tiles", "share checked"]
