"""What DuckDB counts over files and journals is what the same events come to one by one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters.journal import Journal
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import RecordingError
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.events import Event, Op, SkipReason

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
    """Everything in it that can be compared; reasons that no tile had say nothing."""
    plain: dict[str, Any] = {
        name: getattr(evidence, name) for name in Evidence.__slots__ if name != "sql"
    }
    return plain | {"skipped": {why: n for why, n in evidence.skipped.items() if n}}


def recorded(folder: Path, run: str, events: Sequence[Event]) -> Path:
    """A recording of ``events``."""
    sink = RecordingSink(folder, run)
    sink.emit(events)
    sink.close()
    return sink.path


@settings(max_examples=25, deadline=None)
@given(events=st.lists(st.one_of(copies, rare), max_size=20))
def test_the_counts_of_a_recording_are_those_of_its_events(
    events: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any mixture, in one file or cut in two, comes to the same evidence as in memory."""
    folder = tmp_path_factory.mktemp("events")
    half = len(events) // 2
    recorded(folder, "a", events[:half])
    recorded(folder, "b", events[half:])
    complaints: list[str] = []
    with Database(recordings_at([folder], complaints.append)) as database:
        found = gather(database)
    assert counted(found) == counted(Evidence.of(events))
    assert not complaints


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_what_is_not_whole_is_skipped_and_told(*, packed: bool, tmp_path: Path) -> None:
    """Garbage, a torn copy and a torn finding cost themselves alone, and one sentence says so."""
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


def test_a_quote_in_a_file_name_is_a_quote(tmp_path: Path) -> None:
    """File names reach the database as text, whatever is in them."""
    folder = tmp_path / "o'brien; DROP"
    folder.mkdir()
    recorded(folder, "run", [copied()])
    with Database(recordings_at([folder], print)) as database:
        assert gather(database).tiles.witnessed == 7


def test_the_spill_folder_goes_with_the_database(tmp_path: Path) -> None:
    """Nothing is left on disk."""
    recorded(tmp_path, "run", [copied()])
    with Database(recordings_at([tmp_path], print)) as database:
        folder = database.folder
        assert folder.exists()
    assert not folder.exists()


def test_an_empty_folder_is_a_clear_error(tmp_path: Path) -> None:
    """It names the folder and what was expected."""
    with pytest.raises(RecordingError, match="holds no recording"):
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
