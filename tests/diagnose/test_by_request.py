"""Diagnosis of a single request out of a run that served many."""

import sys
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.test_gather import LOAD, recorded
from tests.exporters.samples import copied, finding, health

from hicache_dbg.exporters.fields import fields
from hicache_dbg.exporters.recording_format import RecordingError
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.journal import JournalSource
from hicache_dbg.tracer.diagnose.recordings import RecordingSource
from hicache_dbg.tracer.events import Copied, Event

EVENTS: list[Event] = [
    copied(**LOAD, verified=1, requests=("a",)),
    copied(**LOAD, verified=2, mismatched=1, requests=("b",)),
    copied(**LOAD, verified=4, requests=("it's", "a")),
    copied(**LOAD, verified=8),
    finding(requests=("b",)),
    finding(requests=("a", "b")),
    finding(),
    health(events=7, copies=4, dropped={}, closing=True),
]


def database(folder: Path, request: str) -> Database:
    """Return the recording of all events, limited to this request."""
    return Database(RecordingSource([recorded(folder, "run", EVENTS)], print), request)


@pytest.mark.parametrize(
    ("request_", "verified", "mismatched", "findings"),
    [("", 15, 1, 3), ("a", 5, 0, 2), ("b", 2, 1, 3), ("it's", 4, 0, 1)],
)
def test_a_requests_operations_and_findings_are_kept_and_no_others(
    tmp_path: Path, request_: str, verified: int, mismatched: int, findings: int
) -> None:
    """Events without a request are kept; those of other requests are not counted as lost."""
    with database(tmp_path, request_) as run:
        found = gather(run)
        run.keep()
        ((kept,),) = run.sql("SELECT count(*) FROM copies")
    assert (found.tiles.verified, found.tiles.mismatched) == (verified, mismatched)
    assert len(found.findings) == findings
    assert kept == sum(found.paths.values())
    assert found.unseen == 0


def test_a_request_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    """An unknown request is an error in one line, not an empty report."""
    with pytest.raises(RecordingError, match="for request 'c'"):
        database(tmp_path, "c")


def test_the_journal_knows_whom_a_copy_was_for(tmp_path: Path) -> None:
    """An entry has each request's id as a value of one field, whatever characters the id has."""
    entries = tmp_path / "entries"
    odd = copied(verified=16, requests=('["x", y',), skipped={"reused": 1, "partial": 2})
    lines = [
        msgspec.json.encode({"__REALTIME_TIMESTAMP": "1", **fields(event)})
        for event in [*EVENTS, odd]
        if isinstance(event, Copied)
    ]
    entries.write_bytes(b"\n".join(lines))
    show = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    for request, verified in (("a", 5), ('["x", y', 16)):
        source = JournalSource([sys.executable, "-c", show, str(entries)], print)
        with Database(source, request) as run:
            found = gather(run)
        assert found.tiles.verified == verified
    assert found.skipped == {"partial,reused": 3}


def test_the_command_asks_for_one_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict covers only that request: two others were served well, one was not."""
    recorded(tmp_path, "run", EVENTS)
    reports = {}
    for name in ("a", "b"):
        main(["diagnose", str(tmp_path), "--request", name, "--json"])
        reports[name] = msgspec.json.decode(capsys.readouterr().out)["tiles"]["mismatched"]
    assert reports == {"a": 0, "b": 1}
    assert main(["diagnose", str(tmp_path), "--request", "c"]) != 0
    assert "for request 'c'" in capsys.readouterr().err
