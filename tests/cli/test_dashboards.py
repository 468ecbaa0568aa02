"""``hicache-dbg dashboards`` as a subprocess: what it writes, prints and exits with."""

import json
import socket
import threading
from pathlib import Path

import pytest

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.dashboards.expressions import can_parse

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def nobody() -> str:
    """A host and port without a Prometheus."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return f"127.0.0.1:{number}"


def test_export_tells_each_file(capsys: Capture, tmp_path: Path) -> None:
    """The written files are listed, as lines and as JSON."""
    out = tmp_path / "out"
    assert main(["dashboards", "export", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(Path(line).is_file() for line in lines)
    assert str(out / "grafana" / "hicache-dbg-integrity.json") in lines
    assert main(["dashboards", "export", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == lines


def test_export_keeps_a_changed_file(capsys: Capture, tmp_path: Path) -> None:
    """Exit 2 and one line with the file and the option; with the option it is replaced."""
    changed = tmp_path / "prometheus" / "rules.yml"
    changed.parent.mkdir()
    changed.write_text("groups: []\n")
    assert main(["dashboards", "export", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(changed) in line
    assert "--replace" in line
    assert main(["dashboards", "export", str(tmp_path), "--replace"]) == 0
    assert changed.read_text() != "groups: []\n"


def test_export_into_a_file_is_refused(capsys: Capture, tmp_path: Path) -> None:
    """Exit 2 and one line with the place and the reason."""
    (tmp_path / "file").touch()
    assert main(["dashboards", "export", str(tmp_path / "file" / "below")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a folder: name one" in line


def test_check_says_what_was_looked_at(capsys: Capture) -> None:
    """The last line counts dashboards, panels, expressions and problems, and says what was not checked."""
    assert main(["dashboards", "check"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("5 dashboards, ")
    assert line.endswith("; 0 problems")
    assert "no Prometheus asked" in line
    assert ("promql-parser" in line) == (not can_parse())


def test_check_names_the_place_of_a_mistake(capsys: Capture, tmp_path: Path) -> None:
    """Exit 1, and a line with the file, the panel and the name that does not exist."""
    main(["dashboards", "export", str(tmp_path)])
    board = tmp_path / "grafana" / "hicache-dbg-self.json"
    board.write_text(board.read_text().replace("dbg_queue_depth{", "dbg_queue_lenght{"))
    rules = tmp_path / "prometheus" / "rules.yml"
    rules.write_text(rules.read_text().replace("sink_errors_total", "sink_error_total"))
    capsys.readouterr()
    assert main(["dashboards", "check", "--dir", str(tmp_path)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "hicache-dbg-self.json: panel 'Queues' A: unknown metric hicache_dbg_queue_lenght"
    )
    assert second == "rules.yml: rules: unknown metric hicache_dbg_sink_error_total"
    assert last.endswith("; 2 problems")


def test_rules_that_are_no_text_are_a_problem(capsys: Capture, tmp_path: Path) -> None:
    """An unreadable file is reported like any other problem."""
    main(["dashboards", "export", str(tmp_path)])
    rules = tmp_path / "prometheus" / "rules_test.yml"
    rules.write_bytes(rules.read_bytes() + b"\xff\xfe")
    capsys.readouterr()
    assert main(["dashboards", "check", "--dir", str(tmp_path)]) == 1
    problem, last = capsys.readouterr().out.splitlines()
    assert problem.startswith("rules_test.yml: rules: cannot be read: 'utf-8' codec")
    assert last.endswith("; 1 problems")


@pytest.mark.parametrize("verb", ["check", "preview"])
@pytest.mark.parametrize(
    ("form", "code", "words"),
    [("http://{}", 3, "does not answer"), ("{}", 2, "expected http://")],
)
def test_a_prometheus_that_is_not_there(  # noqa: PLR0917
    capsys: Capture, tmp_path: Path, nobody: str, verb: str, form: str, code: int, words: str
) -> None:
    """One line with the address: exit 3 if it does not answer, 2 if it is invalid.

    No page is written.
    """
    address = form.format(nobody)
    page = ["-o", str(tmp_path / "page.html")] if verb == "preview" else []
    assert main(["dashboards", verb, "--prometheus", address, *page]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert address in line
    assert words in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address", ["http://", "http://a b:9090", "http://127.0.0.1:nine", "http://[::1", "ftp://host"]
)
def test_an_address_that_is_none(capsys: Capture, address: str) -> None:
    """An unusable address is a usage error in one line."""
    assert main(["dashboards", "check", "--prometheus", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(address) in line
    assert "expected http://HOST:PORT" in line


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not as a Prometheus does"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}', "not as a Prometheus does"),
    ],
)
def test_a_server_that_is_no_prometheus(capsys: Capture, answer: bytes, words: str) -> None:
    """Another service at the address is reported in one line, not as an internal error."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert main(["dashboards", "check", "--prometheus", address]) == 3
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert address in line
    assert words in line


def test_a_folder_without_dashboards(capsys: Capture, tmp_path: Path) -> None:
    """Exit 2 and one line that says what was looked for."""
    assert main(["dashboards", "check", "--dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no dashboard" in line


@pytest.mark.parametrize("verb", ["export", "check", "preview"])
def test_every_verb_has_help_with_an_example(capsys: Capture, verb: str) -> None:
    """``--help`` shows how the verb is used."""
    assert main(["dashboards", verb, "--help"]) == 0
    assert f"hicache-dbg dashboards {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "panels",
    [
        [1],
        [{"gridPos": {"x": "a"}}],
        [{"gridPos": [1]}],
        [{"targets": [5]}],
        [{"panels": 3}],
        [{"datasource": 7}],
    ],
    ids=str,
)
@pytest.mark.parametrize("listed", [[], [None]])
def test_a_document_of_another_shape_is_one_line(
    capsys: Capture, tmp_path: Path, panels: list[object], listed: list[object]
) -> None:
    """Whatever was edited into it, there is no traceback."""
    (tmp_path / "grafana").mkdir()
    board = {"panels": panels, "templating": {"list": listed}}
    (tmp_path / "grafana" / "a.json").write_text(json.dumps(board))
    assert main(["dashboards", "check", "--dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.json is no dashboard: a panel or a variable has another shape" in line


def test_a_data_source_by_its_name_is_a_problem(capsys: Capture, tmp_path: Path) -> None:
    """Older documents name it in place of an object."""
    main(["dashboards", "export", str(tmp_path)])
    path = tmp_path / "grafana" / "hicache-dbg-self.json"
    board = json.loads(path.read_text())
    board["templating"]["list"][1]["datasource"] = "Prometheus"
    next(p for p in board["panels"] if p["title"] == "Queues")["datasource"] = "Prometheus"
    path.write_text(json.dumps(board))
    capsys.readouterr()
    assert main(["dashboards", "check", "--dir", str(tmp_path)]) == 1
    *problems, _ = capsys.readouterr().out.splitlines()
    assert len(problems) == 2
    assert all("data source is 'Prometheus'" in problem for problem in problems)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("out", "cannot write into {out}: {out}/grafana is not a folder: name one"),
        ("out/grafana", "cannot write into {out}/grafana: {out}/grafana is not a folder: name one"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--replace"]])
def test_a_file_where_a_folder_goes_is_not_a_changed_one(
    capsys: Capture, tmp_path: Path, place: str, words: str, more: list[str]
) -> None:
    """The line names what is in the way, and --replace is not offered."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "grafana").touch()
    assert main(["dashboards", "export", str(tmp_path / place), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"hicache-dbg: {words.format(out=out)}"


def test_a_folder_in_which_nothing_can_be_made_is_not_said_to_be_missing(capsys: Capture) -> None:
    """It exists."""
    assert main(["dashboards", "export", "/proc/hicache-dbg"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("nothing can be made in /proc: name another folder")
