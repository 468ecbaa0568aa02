"""DuckDB's counts over files and journals equal those of the same events one by one."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters.journal import Journal
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import fields
from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import RecordingError
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.journal import JournalError, JournalSource
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.events import Event, Health, Op, SkipReason

LOAD = {"op": Op.LOAD, "witnessed": 0, "skipped": {}}

copies = st.builds(
    copied,
    pool=st.sampled_from(["mla", "index_k", 'a "quoted" \\ pool']),
    op=st.sampled_from(list(Op)),
    token_granular=st.booleans(),
    layout=st.sampled_from(["page_first", "layer_first"]),
    rank=st.integers(0, 2),
    verified=st.integers(0, 9),
    witnessed=st.integers(0, 9),
    mismatched=st.integers(0, 9),
    skipped=st.dictionaries(
        st.sampled_from([str(reason) for reason in SkipReason]), st.integers(0, 9), max_size=3
    ),
    host_pages=st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
rare = st.one_of(
    st.builds(
        finding, message=st.text(st.characters(codec="utf-8"), min_size=1), rank=st.integers(0, 2)
    ),
    st.builds(started, rank=st.integers(0, 2)),
    st.builds(health, events=st.integers(0, 99), rank=st.integers(0, 2), closing=st.booleans()),
)


def counted(evidence: Evidence) -> dict[str, Any]:
    """Return everything that can be compared, without reasons that no tile had."""
    plain: dict[str, Any] = {
        name: getattr(evidence, name) for name in Evidence.__slots__ if name not in {"sql", "run"}
    }
    return plain | {"skipped": {why: n for why, n in evidence.skipped.items() if n}}


SHOW = "import sys; sys.stdout.write(open(sys.argv[1]).read())"


def recorded(folder: Path, run: str, events: Sequence[Event]) -> Path:
    """Record ``events``."""
    sink = RecordingSink(folder, run)
    sink.emit(events)
    sink.close()
    return sink.path


@settings(max_examples=25, deadline=None)
@given(events=st.lists(st.one_of(copies, rare), max_size=20))
def test_the_counts_of_a_recording_are_those_of_its_events(
    events: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any mixture, in one file or split in two, gives the same evidence as in memory."""
    folder = tmp_path_factory.mktemp("events")
    half = len(events) // 2
    places = [folder / "a", folder / "b"]
    for place, part in zip(places, (events[:half], events[half:]), strict=True):
        place.mkdir()
        recorded(place, "run", part)
    complaints: list[str] = []
    with Database(recordings_at(places, complaints.append)) as database:
        found = gather(database)
    assert counted(found) == counted(Evidence.of(events))
    assert not complaints


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_what_is_not_whole_is_skipped_and_told(*, packed: bool, tmp_path: Path) -> None:
    """Garbage, a truncated copy and a truncated finding cost only themselves, in one message."""
    path = recorded(tmp_path, "run", [copied(**LOAD, verified=5)])
    whole = msgspec.json.encode(copied(**LOAD, verified=7)) + b"\n"
    torn = msgspec.json.encode(finding())[:60]
    with path.open("ab") as file:
        file.write(b"\xff\xfe garbage\n" + whole[:90] + b"\n" + whole + torn)
    if packed:
        path.with_suffix(".jsonl.zst").write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    complaints: list[str] = []
    with Database(recordings_at([tmp_path], complaints.append)) as database:
        found = gather(database)
    assert (found.tiles.verified, sum(found.paths.values()), found.findings) == (12, 2, [])
    (sentence,) = complaints
    assert "3 lines skipped" in sentence
    assert found.unseen == 3


def test_a_recording_with_a_hole_proves_nothing_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk was full for a while: what was lost there may have been a mismatch."""
    path = recorded(tmp_path, "run", [copied(skipped={}), copied(**LOAD, verified=5)])
    assert main(["diagnose", str(path)]) == 0
    assert "every copy is proven good" in capsys.readouterr().out
    with path.open("ab") as file:
        file.write(msgspec.json.encode(copied(**LOAD, mismatched=1))[:90] + b"\n")
        file.write(msgspec.json.encode(copied(**LOAD, verified=5)) + b"\n")
    assert main(["diagnose", str(path)]) == 0
    assert "every copy is proven good" not in capsys.readouterr().out


def test_a_copy_that_lacks_fields_is_none(tmp_path: Path) -> None:
    """Valid JSON of type copy without the fields costs only itself."""
    path = recorded(tmp_path, "run", [copied()])
    with path.open("ab") as file:
        file.write(b'{"event":"copied"}\n{"event":"copied","pool":"kv","op":"load"}\n')
    with Database(recordings_at([tmp_path], print)) as database:
        assert sum(gather(database).paths.values()) == 1


def test_a_run_that_was_killed_keeps_its_word(tmp_path: Path) -> None:
    """The losses of a killed run are not undone by a later, longer run of the same rank."""
    recorded(tmp_path, "a", [health(events=5, copies=3, dropped={"bus/queue_full": 3})])
    longer = [health(events=n, copies=0, dropped={}) for n in (1, 9)]
    recorded(tmp_path, "b", longer)
    with Database(recordings_at([tmp_path], print)) as database:
        found = gather(database)
    assert [word.events for word in found.last_words] == [5, 9]
    assert found.unseen == 6


def test_processes_of_one_rank_are_told_apart_in_the_journal(tmp_path: Path) -> None:
    """By boot, invocation and process id: the next run of a rank undoes no loss of one that was killed."""
    entries = tmp_path / "entries"
    killed = health(events=5, copies=3, dropped={"bus/queue_full": 3})
    again = [health(events=n, copies=0, dropped={}) for n in (7, 9)]
    for writer in ({"_PID": "8"}, {"_BOOT_ID": "b1"}, {"_SYSTEMD_INVOCATION_ID": "i1"}, {}):
        first = {"_BOOT_ID": "b0", "_SYSTEMD_INVOCATION_ID": "i0", "_PID": "7"}
        told = [
            (first, "30", killed),
            (first | writer, "50", again[1]),
            (first | writer, "40", again[0]),
        ]
        lines = [
            msgspec.json.encode(
                {"__REALTIME_TIMESTAMP": "1", "__MONOTONIC_TIMESTAMP": at, **by, **fields(event)}
            )
            for by, at, event in told
        ]
        entries.write_bytes(b"\n".join(lines))
        source = JournalSource([sys.executable, "-c", SHOW, str(entries)], print)
        with Database(source) as database:
            found = gather(database)
        assert [word.events for word in found.last_words] == ([5, 9] if writer else [9])


def test_entries_of_one_microsecond_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """What the journal wrote later is later, in whatever order its query prints the entries."""
    entries = tmp_path / "entries"
    words = [health(events=n, copies=0, dropped={}) for n in range(8, 24)]
    lines = [
        msgspec.json.encode(
            {
                "__CURSOR": f"s=5e1;i={number:x};b=b0;m=1e;t=1;x=2",
                "__REALTIME_TIMESTAMP": "1",
                "__MONOTONIC_TIMESTAMP": "30",
                **fields(word),
            }
        )
        for number, word in enumerate(words, start=8)  # from 8 to 17 in hexadecimal
    ]
    for order in (lines, lines[::-1], sorted(lines)):
        entries.write_bytes(b"\n".join(order))
        with Database(JournalSource([sys.executable, "-c", SHOW, str(entries)], print)) as database:
            found = [event for event in database.rare() if isinstance(event, Health)]
        assert [word.events for word in found] == [word.events for word in words]


@pytest.mark.parametrize("name", ["run.gz", "run.jsonl.zst"])
def test_what_the_database_cannot_read_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is compressed by name only is reported, and nothing is left behind."""
    path = recorded(tmp_path, "run", [copied()])
    assert main(["diagnose", str(path.rename(tmp_path / name))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line


def test_entries_without_fields_are_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Foreign journal entries of type copy are skipped."""
    entries = ({"HICACHE_EVENT": "copied"}, {"HICACHE_EVENT": "copied", "HICACHE_POOL": "kv"})
    (tmp_path / "entries").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/entries\n")
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["diagnose", "--journal", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["paths"] == []


def test_a_journal_without_an_entry_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty journal is an error, not a page of undecided hypotheses."""
    journalctl = tmp_path / "journalctl"
    journalctl.write_text("#!/bin/sh\n")
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["diagnose", "--journal"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("hicache-dbg: the journal holds no entry of hicache-dbg for this query;")


def test_a_source_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without journalctl there is no database and no spill folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(JournalError):
        Database(JournalSource(["/nowhere/journalctl"], print))
    assert list(tmp_path.iterdir()) == []


#: Takes seconds, unless it is interrupted.
LONG = "SELECT sum(a.range * b.range) FROM range(200000) a, range(200000) b"


def test_an_interrupt_of_a_query_is_an_interrupt(tmp_path: Path) -> None:
    """An interrupt by another thread is reported as Ctrl-C, not as a DuckDB error."""
    recorded(tmp_path, "run", [copied()])
    over = threading.Event()
    with Database(recordings_at([tmp_path], print)) as database:

        def interrupt() -> None:
            while not over.wait(0.1):  # the first may come before the query
                database._connection.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                database.sql(LONG)
        finally:
            over.set()
            thread.join()


#: Runs a long query; its arguments are the recording's folder and the query.
QUERY = """
import signal, sys
from pathlib import Path
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.places import recordings_at
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
with Database(recordings_at([Path(sys.argv[1])], print)) as database:
    print("asking", flush=True)
    try:
        database.sql(sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_in_a_query_is_an_interrupt(tmp_path: Path) -> None:
    """A real Ctrl-C ends a query, whatever DuckDB's threads are at."""
    recorded(tmp_path, "run", [copied()])
    with subprocess.Popen(
        [sys.executable, "-c", QUERY, str(tmp_path), LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "asking\n"
        with pytest.raises(subprocess.TimeoutExpired):
            asking.wait(0.3)  # the query has begun by then
        asking.send_signal(signal.SIGINT)
        try:
            assert asking.communicate(timeout=60) == ("interrupted\n", "")
        finally:
            asking.kill()


def test_a_quote_in_a_file_name_is_a_quote(tmp_path: Path) -> None:
    """File names reach the database as text, whatever they contain."""
    folder = tmp_path / "o'brien; DROP"
    folder.mkdir()
    recorded(folder, "run", [copied()])
    with Database(recordings_at([folder], print)) as database:
        assert gather(database).tiles.witnessed == 7


def test_the_spill_folder_goes_with_the_database(tmp_path: Path) -> None:
    """No spill file is left behind."""
    recorded(tmp_path, "run", [copied()])
    with Database(recordings_at([tmp_path], print)) as database:
        folder = database.folder
        assert folder.exists()
    assert not folder.exists()


def test_an_empty_folder_is_a_clear_error(tmp_path: Path) -> None:
    """It names the folder and what was expected."""
    with pytest.raises(RecordingError, match="holds no recording"):
        recordings_at([tmp_path], print)


def test_a_folder_that_may_not_be_read_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording belongs to who wrote it: the message says that reading was refused."""
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(os, "scandir", Mock(side_effect=refused))  # root may read any folder
    with pytest.raises(RecordingError, match=r"cannot read .*: Permission denied"):
        recordings_at([tmp_path], print)


@pytest.mark.service
def test_the_journal_tells_what_a_recording_tells(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same events through a real journald and through a recording give the same report."""
    events: list[Event] = [
        started(),
        *[copied(h=count, skipped={"reused": 2}) for count in range(1, 9)],
        copied(**LOAD, verified=7, mismatched=1),
        finding(message='a "message"\nof two lines'),
        health(copies=9),
    ]
    recorded(tmp_path, "run", events)
    sink = JournaldSink(journal.socket)
    sink.emit(events)
    sink.close()
    journal.journalctl("-n", "0")  # everything that was sent is stored
    reports = []
    for arguments in (["--journal", f"--namespace={journal.namespace}"], [str(tmp_path)]):
        assert main(["diagnose", *arguments, "--json"]) == 1
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    assert reports[0]["tiles"]["mismatched"] == 1


@pytest.mark.parametrize("name", ["a*b", "r?n", "run[1]", "it's", "[!a]", "new\nline", "頁 ü"])
def test_a_name_means_itself(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that contains a glob pattern matches no other recording."""
    for other in ("axb", "run", "run1", "rb", "b"):
        recorded(tmp_path, other, [copied(), copied()])
    path = recorded(tmp_path, name, [copied()])
    assert main(["diagnose", str(path), "--json"]) == 2
    assert [row["count"] for row in json.loads(capsys.readouterr().out)["paths"]] == [1]


def test_a_name_without_an_encoding_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file name that is not valid UTF-8 is reported: the database takes only text."""
    path = recorded(tmp_path, "run", [copied()]).rename(tmp_path / "\udcff.jsonl")
    assert main(["diagnose", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its name is no UTF-8; link to it by another name" in line


@pytest.mark.parametrize("number", ["1e300", "1e999"], ids=["too long", "endless"])
def test_a_number_that_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    """A damaged recording is told as such, without a traceback."""
    place = recorded(tmp_path, "run", [started(), copied(duration_us=7.25)])
    place.write_text(place.read_text().replace('"duration_us":7.25', f'"duration_us":{number}'))
    assert main(["diagnose", str(place), "--perfetto", str(tmp_path / "out")]) == 2
    assert "hicache-dbg: cannot read run.jsonl: " in capsys.readouterr().err


def test_a_geometry_without_bytes_and_a_tile_without_a_place_are_borne(tmp_path: Path) -> None:
    """The page shows the rest."""
    (mirror,) = started().mirrors
    (part,) = mirror.device.components
    none = msgspec.structs.replace(part, slot_bytes=0, page_bytes=0)
    device = msgspec.structs.replace(mirror.device, components=(none,))
    start = started(mirrors=(msgspec.structs.replace(mirror, device=device),))
    place = recorded(tmp_path, "run", [start, copied(mismatched=1, bad_tiles=((3, 4),))])
    place.write_text(place.read_text().replace("[[3,4]]", "[[]]"))
    page = tmp_path / "out"
    assert main(["diagnose", str(place), "--html", str(page)]) == 1
    assert "<html" in page.read_text()
