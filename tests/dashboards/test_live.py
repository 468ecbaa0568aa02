"""The dashboards against a real Prometheus, while a real process copies pages."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from tests.dashboards.stack import free_port, scraping
from tests.exporters.samples import copied
from tests.services import require

from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.dashboards.document import load
from hicache_dbg.tracer.dashboards.expressions import interpolate
from hicache_dbg.tracer.dashboards.live import Prometheus, PrometheusError, choices

pytestmark = pytest.mark.service

CHROMIUM = (
    *(
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1400,2400"),
)


def check(
    capsys: pytest.CaptureFixture[str], url: str, *options: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a live check."""
    code = main(["dashboards", "check", "--prometheus", url, "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def planted(folder: Path, board: str, old: str, new: str) -> Path:
    """Replace ``old`` in one dashboard of the copy."""
    path = folder / "grafana" / f"hicache-dbg-{board}.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return folder


def test_every_panel_and_every_variable_returns_series(
    capsys: pytest.CaptureFixture[str], prometheus: str
) -> None:
    """Each expression and each variable of each board returns series from the scraped data."""
    code, told = check(capsys, prometheus)
    assert (code, told["problems"]) == (0, [])
    empty = [answer for answer in told["answers"] if answer["series"] == 0]
    assert empty == []
    assert len(told["answers"]) > 80
    assert sum(1 for answer in told["answers"] if answer["where"].startswith("variable")) == 20


def test_choosing_the_only_rank_empties_no_panel(prometheus: str, dashboards: Path) -> None:
    """Also what a GPU reports, whose rank is not known, stays with a rank chosen."""
    server = Prometheus(prometheus)
    chosen = {**choices(server, "1h"), "rank": "0"}
    expressions = [
        target.expr
        for path in (dashboards / "grafana").glob("*.json")
        for panel in load(path).panels
        for target in panel.targets
    ]
    assert len(expressions) > 50
    empty = [expr for expr in expressions if not server.query(interpolate(expr, chosen))]
    assert empty == []


def test_a_planted_typo_in_a_value_is_found_only_live(
    capsys: pytest.CaptureFixture[str], prometheus: str, copy: Path
) -> None:
    """A state that no pool has: all names are right, yet the panel stays empty."""
    folder = str(planted(copy, "pools", 'state=\\"used\\"', 'state=\\"usde\\"'))
    assert main(["dashboards", "check", "--dir", folder]) == 0
    capsys.readouterr()
    code, told = check(capsys, prometheus, "--dir", folder)
    assert code == 1
    assert {problem["where"] for problem in told["problems"]} == {
        "panel 'Pages in use' A",
        "panel 'Share in use, by pool and tier' A",
    }
    assert all("returns no series" in problem["what"] for problem in told["problems"])


def test_a_planted_typo_in_a_variable_is_found(
    capsys: pytest.CaptureFixture[str], prometheus: str, copy: Path
) -> None:
    """A variable whose label no series has is empty, and the check names it."""
    folder = str(planted(copy, "paths", ", pool)", ", poll)"))
    code, told = check(capsys, prometheus, "--dir", folder)
    assert code == 1
    assert {problem["where"] for problem in told["problems"]} == {"variable pool"}


def test_a_panel_has_the_trace_of_a_copy_as_its_exemplar(tmp_path: Path, dashboards: Path) -> None:
    """What the heat map asks leads to the trace, from the sink through a scrape of Prometheus."""
    trace = "ab" * 16
    sink = PrometheusSink(CollectorRegistry(), port=(port := free_port()), address="127.0.0.1")
    sink.emit([copied(trace_id=trace, span_id="cd" * 8)])
    panels = load(dashboards / "grafana" / "hicache-dbg-paths.json").panels
    (panel,) = (panel for panel in panels if panel.kind == "heatmap")
    assert panel.raw["targets"][0]["exemplar"]
    copies = "hicache_dbg_copies_total"
    with scraping(port, tmp_path, until=copies) as url:
        asked = interpolate(panel.targets[0].expr, choices(Prometheus(url), "1h"))
        query = urlencode({"query": asked, "start": time.time() - 60, "end": time.time() + 60})
        with urlopen(f"{url}/api/v1/query_exemplars?{query}", timeout=10) as answer:
            found = json.load(answer)["data"]
    sink.close()
    assert {e["labels"]["trace_id"] for series in found for e in series["exemplars"]} == {trace}


def test_a_query_that_prometheus_refuses_is_told_in_its_words(prometheus: str) -> None:
    """The server's own message is shown."""
    with pytest.raises(PrometheusError, match=r"refused.*parse error"):
        Prometheus(prometheus).query("sum by (")


def test_the_window_of_a_rate_is_four_scrapes(prometheus: str) -> None:
    """The window follows Grafana's ``$__rate_interval``; this server scrapes every second."""
    assert Prometheus(prometheus).rate_interval() == "4s"


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Mismatched, and of what share that was looked for", "share checked<b>100.0 %</b>"),
        ("Checked or not, by pool", "all checked"),
        ("Do the two ends agree", "mla.latent<b>agree</b>"),
        ("Tiles by pool and op", "<td>dsa_index_k</td><td>load</td>"),
        ("Paths", "iB</td>"),
        ("Durations", "<title>up to "),
        ("Tiles by outcome", "<title>verified</title>"),
        ("The first bad page", "hicache-dbg logs --finding any"),
    ],
)
def test_the_preview_shows_what_the_panels_ask(
    prometheus: str, tmp_path: Path, title: str, text: str
) -> None:
    """Each kind of panel is drawn with its answer: words, shares, tables, lines and cells."""
    page = preview(prometheus, tmp_path)
    (panel,) = re.findall(rf"<h3>{title}</h3>(.*?)</section>", page, flags=re.DOTALL)
    assert text in panel


def preview(url: str, folder: Path) -> str:
    """Return the text of the preview page."""
    path = folder / "now.html"
    assert (
        main(["dashboards", "preview", "--prometheus", url, "-o", str(path), "--span", "30"]) == 0
    )
    return path.read_text()


def test_the_preview_needs_nothing_else(prometheus: str, tmp_path: Path) -> None:
    """No script, image, font or style is external, so that it opens in an air-gapped room."""
    page = preview(prometheus, tmp_path)
    assert not re.findall(r"<script|src=|href=|url\(|@import|https?://", page)
    assert 'class="none"' not in page


def test_the_preview_can_be_seen(prometheus: str, tmp_path: Path) -> None:
    """Headless Chromium renders it to an image that is not blank."""
    require(shutil.which("chromium"), "chromium is not installed")
    preview(prometheus, tmp_path)
    picture = tmp_path / "now.png"
    command = [
        *CHROMIUM,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--screenshot={picture}",
        (tmp_path / "now.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert picture.exists(), done.stderr
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    # A page of one colour is packed into some ten kB.
    assert len(data) > 60_000
