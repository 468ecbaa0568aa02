"""``hicache-dbg logs`` against a real systemd-journald in its own namespace."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.exporters.journal import JOURNALD, Journal
from tests.exporters.samples import copied, finding, health, started
from tests.services import require

from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.line import line
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.events import Event, FaultClass, Op, Tier

LOAD = {"op": Op.LOAD, "src": Tier.HOST, "dst": Tier.DEVICE}
EVENTS: list[Event] = [
    started(),
    copied(h=1),
    copied(h=2),
    copied(**LOAD),
    copied(pool="index_k", layout="layer_first", rank=1, token_granular=True, **LOAD),
    finding(got="1" * 5000),
    finding(cls=FaultClass.SLOT_REUSE, pool="mla", layer=3),
    health(),
]


@contextmanager
def journal() -> Iterator[Journal]:
    """A journal namespace."""
    require(JOURNALD.exists() and shutil.which("journalctl"), "systemd-journald is not installed")
    require(os.geteuid() == 0, "a journal namespace needs root")
    running = Journal()
    yield running
    running.close()


def write(running: Journal, *events: Event) -> None:
    """Write ``events`` to the journal, as the sink does."""
    sink = JournaldSink(running.socket)
    sink.emit(events)
    sink.close()
    running.lines()


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A journal namespace that holds the events."""
    with journal() as running:
        write(running, *EVENTS)
        yield running.namespace


def logs(capfd: pytest.CaptureFixture[str], *options: str) -> tuple[str, list[str]]:
    """Return the printed command and the lines of its output."""
    assert main(["logs", *options]) == 0
    captured = capfd.readouterr()
    (command,) = captured.err.splitlines()
    return command, captured.out.splitlines()


@pytest.mark.service
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 8),
        (("--pool", "index_k"), 2),
        (("--pool", "index_k", "--pool", "mla"), 3),
        (("--op", "load"), 2),
        (("--op", "load", "--op", "backup"), 6),
        (("--op", "load", "--pool", "deepseek_v4_c128"), 1),
        (("--finding", "any"), 2),
        (("--finding", "slot_reuse"), 1),
        (("--finding", "slot_reuse", "--finding", "row_width"), 2),
        (("--finding", "any", "--pool", "mla"), 1),
        (("--rank", "1"), 1),
        (("--since", "10 min ago"), 8),
    ],
)
def test_each_option_selects_what_it_says(
    capfd: pytest.CaptureFixture[str], namespace: str, options: tuple[str, ...], count: int
) -> None:
    """The right number of lines, all from the command shown on standard error."""
    command, lines = logs(capfd, "--namespace", namespace, *options)
    assert len(lines) == count
    again = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == lines


@pytest.mark.service
@pytest.mark.parametrize("options", [("--since", "now"), ("--pool", "no_such"), ("--rank", "9")])
def test_nothing_found_is_no_error(
    capfd: pytest.CaptureFixture[str], namespace: str, options: tuple[str, ...]
) -> None:
    """A query without a match prints nothing, says so on standard error, and exits 0."""
    for form in ([], ["--json"]):
        assert main(["logs", "--namespace", namespace, *options, *form]) == 0
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[1].startswith(
            "hicache-dbg: the journal holds no such line; hicache-dbg doctor"
        )


@pytest.mark.service
def test_an_empty_table_of_paths_says_so(capfd: pytest.CaptureFixture[str], namespace: str) -> None:
    """If no path was taken there is no table, and standard error says so."""
    assert main(["logs", "--paths", "--op", "store", "--namespace", namespace]) == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[1].startswith("hicache-dbg: the journal holds no such copy;")


@pytest.mark.service
def test_the_table_of_paths_counts_each_path(
    capfd: pytest.CaptureFixture[str], namespace: str
) -> None:
    """One line per path with its count, and no line for findings."""
    command, lines = logs(capfd, "--namespace", namespace, "--paths")
    assert [line.split(None, 1)[0] for line in lines] == ["2", "1", "1"]
    assert lines[2].split(None, 1)[1] == (
        "[HICACHE_DBG] pool=index_k op=load token_granular=True layout=layer_first slot_page=256"
    )
    again = subprocess.run(command, shell=True, capture_output=True, text=True)  # noqa: S602 - a pipeline
    assert again.stdout.splitlines() == lines


@pytest.mark.service
def test_the_table_of_paths_as_json(capfd: pytest.CaptureFixture[str], namespace: str) -> None:
    """The JSON has the fields of the line, and the selection applies to it."""
    _, lines = logs(capfd, "--namespace", namespace, "--paths", "--json", "--rank", "1")
    assert json.loads("\n".join(lines)) == [
        {
            "pool": "index_k",
            "op": "load",
            "token_granular": True,
            "layout": "layer_first",
            "slot_page": 256,
            "count": 1,
        }
    ]


@pytest.mark.service
def test_json_has_every_field(capfd: pytest.CaptureFixture[str], namespace: str) -> None:
    """A finding as JSON holds both values that disagree, however long they are."""
    _, lines = logs(capfd, "--namespace", namespace, "--json", "--finding", "row_width")
    (entry,) = map(json.loads, lines)
    assert (entry["HICACHE_EXPECTED"], entry["HICACHE_GOT"]) == ("256", "1" * 5000)


@pytest.mark.service
def test_times_stand_before_the_line(capfd: pytest.CaptureFixture[str], namespace: str) -> None:
    """With --times each line starts with its time and process."""
    _, (line,) = logs(capfd, "--namespace", namespace, "--times", "--rank", "1")
    assert f"hicache-dbg[{os.getpid()}]: [HICACHE_DBG] pool=index_k" in line


@pytest.mark.service
def test_follow_shows_what_comes_later() -> None:
    """A finding that comes after the command was started is printed, and Ctrl-C ends it with 130."""
    command = [sys.executable, "-m", "hicache_dbg", "logs", "--follow", "--finding", "bit_flip"]
    with (
        journal() as running,
        subprocess.Popen(
            [*command, "--namespace", running.namespace],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as follower,
    ):
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert "--follow" in follower.stderr.readline()
        write(running, finding(), finding(cls=FaultClass.BIT_FLIP, pool="followed"))
        assert "pool=followed" in follower.stdout.readline()
        os.killpg(follower.pid, signal.SIGINT)
        assert follower.wait(20) == 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--finding", "gremlins"), ("gremlins", "row_width", "any")),
        (("--paths", "--follow"), ("--paths", "--follow")),
        (("--paths", "--finding", "any"), ("--paths", "--finding")),
    ],
)
def test_bad_input_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Exit 2 and one line that names the option and what is allowed."""
    assert main(["logs", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in line


@pytest.mark.service
def test_a_time_that_journalctl_cannot_read(capfd: pytest.CaptureFixture[str]) -> None:
    """The message is journalctl's own, and the exit code is that of a usage error."""
    require(shutil.which("journalctl"), "journalctl is not installed")
    assert main(["logs", "--since", "yesteryear"]) == 2
    assert "yesteryear" in capfd.readouterr().err.splitlines()[1]


def test_without_journalctl_the_way_out_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3, and the message names an alternative."""
    monkeypatch.setenv("PATH", "")
    assert main(["logs"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "journalctl is not installed" in line
    assert "hicache-dbg diagnose" in line


def test_somebody_elses_entry_spoils_no_table(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreign entries are skipped: anyone may write to the journal, under any name."""
    whole = line(copied())
    (tmp_path / "said").write_text(f"[HICACHE_DBG] hello\n[HICACHE_DBG] it's\n{whole}\n{whole}\n")
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(f"#!/bin/sh\nexec cat {tmp_path}/said\n")
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["logs", "--paths", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["pool"], row["count"]) == ("deepseek_v4_c128", 2)
