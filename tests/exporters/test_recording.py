"""Recordings on disk, after clean and other exits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import (
    FORMAT,
    RecordingError,
    read,
    read_header,
    recordings_in,
)
from hicache_dbg.tracer.events import SCHEMA_VERSION, Copied, Event

EVENTS: list[Event] = [started(), copied(), finding(), health(closing=True)]

#: Records batches of one event and says so after each, until it is killed.
WRITER = """
import sys
from pathlib import Path
import msgspec
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.tracer.events import Copied
event = msgspec.json.decode(sys.argv[2], type=Copied)
sink = RecordingSink(Path(sys.argv[1]), "killed")
for n in range(100_000):
    sink.emit([msgspec.structs.replace(event, op_id=n)])
    print(n, flush=True)
"""

#: Records with room for 4,000 bytes, loses the rest, and gets room again.
FULL_DISK = """
import resource, sys
from pathlib import Path
import msgspec
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.tracer.events import Copied
from hicache_dbg.tracer.sink import SinkError
event = msgspec.json.decode(sys.argv[2], type=Copied)
sink = RecordingSink(Path(sys.argv[1]), "full")
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
events = [msgspec.structs.replace(event, op_id=n) for n in range(20)]
try:
    sink.emit(events)
except SinkError as error:
    print(error.lost, error.reason, str(error).partition(": ")[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.emit([msgspec.structs.replace(event, op_id=99)])
sink.close()
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The path of a recording of one event of each kind."""
    sink = RecordingSink(tmp_path, "run")
    sink.emit(EVENTS[:2])
    sink.emit(EVENTS[2:])
    sink.close()
    return sink.path


def copies(events: Iterable[Event]) -> Iterator[Copied]:
    """The copies among ``events``."""
    return (event for event in events if isinstance(event, Copied))


@contextmanager
def run(script: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a script in its own process with a copy to record, and return its output."""
    event = msgspec.json.encode(copied()).decode()
    command = [sys.executable, "-c", script, str(folder), event]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout


def test_events_come_back_as_they_were(recorded: Path) -> None:
    """Events are read in order and unchanged, and the header identifies the file."""
    assert list(read(recorded)) == EVENTS
    header = read_header(recorded)
    assert (header.format, header.schema, header.run_id) == (FORMAT, SCHEMA_VERSION, "run")


def test_a_recording_is_private_and_one_line_an_event(recorded: Path) -> None:
    """The file is accessible only to its owner and has a line for the header and each event."""
    assert recorded.stat().st_mode & 0o777 == 0o600
    assert recorded.name == "run.jsonl"
    assert len(recorded.read_text().splitlines()) == 1 + len(EVENTS)


def test_a_kill_costs_nothing_that_was_emitted(tmp_path: Path) -> None:
    """After SIGKILL every batch whose emit returned is readable, in order and without a gap."""
    with run(WRITER, tmp_path) as (writer, output):
        told = [int(output.readline()) for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in output if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    words: list[str] = []
    found = [event.op_id for event in copies(read(tmp_path / "killed.jsonl", say=words.append))]
    assert found[: len(told)] == told
    assert found == list(range(len(found)))
    assert len(words) <= 1


def test_a_torn_last_line_is_skipped_with_a_word(recorded: Path) -> None:
    """A truncated last line costs only itself, and the reader reports it."""
    recorded.write_bytes(recorded.read_bytes()[:-20])
    words: list[str] = []
    assert list(read(recorded, say=words.append)) == EVENTS[:-1]
    assert words == [f"{recorded}, line 5: skipped, cut short: the writer was stopped in it"]


def test_a_damaged_line_is_skipped_with_a_word(recorded: Path) -> None:
    """A damaged line in the middle costs only itself, and the reader names it."""
    lines = recorded.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"event":"copied","time_ns":"when"}\n'
    recorded.write_bytes(b"".join(lines))
    words: list[str] = []
    assert list(read(recorded, say=words.append)) == [EVENTS[0], *EVENTS[2:]]
    assert [word.split(":")[0] for word in words] == [f"{recorded}, line 3"]


def test_the_word_goes_to_the_log_by_default(
    recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the reader's messages are log warnings."""
    recorded.write_bytes(recorded.read_bytes()[:-20])
    list(read(recorded))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_newer_schema_is_refused_with_a_word(recorded: Path) -> None:
    """A recording of a newer schema is refused at once, with both versions and what to do."""
    text = recorded.read_text().replace(f'"schema":{SCHEMA_VERSION}', '"schema":99', 1)
    recorded.write_text(text)
    with pytest.raises(RecordingError, match=r"schema 99, .* up to 1: read it with a newer"):
        read(recorded)


def test_a_field_that_is_not_known_does_not_matter(recorded: Path) -> None:
    """An older reader ignores a field that was added within a schema version."""
    recorded.write_text(recorded.read_text().replace('"pool":', '"colour":1,"pool":'))
    assert list(read(recorded)) == EVENTS


@pytest.mark.parametrize("text", ["\n", "hello\n", "[]\n", '{"format":"other","schema":1}\n'])
def test_another_file_is_no_recording(tmp_path: Path, text: str) -> None:
    """A file without our header is named and refused."""
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=r"other\.jsonl is not a recording"):
        read(path)


def test_a_missing_recording_is_one_clear_error(tmp_path: Path) -> None:
    """A file that is not there is an error that names it."""
    with pytest.raises(RecordingError, match=r"cannot read .*none\.jsonl: No such file"):
        read(tmp_path / "none.jsonl")


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    """A missing folder is refused at construction, with what to do."""
    with pytest.raises(RecordingError, match=r"folder .*nowhere does not exist: create it"):
        RecordingSink(tmp_path / "nowhere", "run")


def test_a_file_in_the_folders_place_is_one_clear_error(tmp_path: Path) -> None:
    """A file in place of the folder is refused at construction."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="is not a folder"):
        RecordingSink(tmp_path / "file", "run")


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path) -> None:
    """A folder that is not writable is refused at construction, even if root created it."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from hicache_dbg.exporters.recording import RecordingSink, RecordingError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: RecordingSink(Path(sys.argv[1]), 'run')\n"
        "except RecordingError as error: print(error)\n"
    )
    folder = tmp_path / "read_only"
    folder.mkdir(mode=0o555)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    assert "is not writable: change its mode, or name another one" in done.stdout


def test_a_run_is_never_overwritten(recorded: Path) -> None:
    """A second recording under the same run id is refused; the first stays as it was."""
    before = recorded.read_bytes()
    with pytest.raises(RecordingError, match="was recorded before: choose another run id"):
        RecordingSink(recorded.parent, "run")
    assert recorded.read_bytes() == before


def test_a_full_disk_loses_exactly_what_it_says(tmp_path: Path) -> None:
    """On a full disk the loss is counted exactly, and later events are complete."""
    with run(FULL_DISK, tmp_path) as (_, output):
        lost, reason, message = output.readline().split(maxsplit=2)
    assert reason == "efbig"
    assert message.strip() == f"File too large; {lost} of 20 events lost"
    words: list[str] = []
    found = [event.op_id for event in copies(read(tmp_path / "full.jsonl", say=words.append))]
    assert 0 < int(lost) < 20
    assert found == [*range(20 - int(lost)), 99]
    assert len(words) == 1


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    """A process killed before the first line leaves an empty file; it is reported as empty."""
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(RecordingError, match="is empty, or cut short"):
        read(tmp_path / "run.jsonl")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe could be read only once, and opening one without a writer would block."""
    os.mkfifo(tmp_path / "run.jsonl")
    with pytest.raises(RecordingError, match="write it to a file first"):
        read(tmp_path / "run.jsonl")


def test_a_file_that_somebody_removed_is_begun_anew(tmp_path: Path) -> None:
    """Lines written to an unlinked file could never be read."""
    sink = RecordingSink(tmp_path, "run")
    sink.emit([started(), copied(op_id=1)])
    sink.path.unlink()
    sink.emit([copied(op_id=2)])
    sink.close()
    (path,) = recordings_in(tmp_path)
    assert list(read(path)) == [started(), copied(op_id=2)]


def test_a_first_line_that_was_cut_is_told_from_a_foreign_file(tmp_path: Path) -> None:
    """An incomplete copy, or a full disk, is not another program's file."""
    path = tmp_path / "run.jsonl"
    path.write_text('{"format":"hicache-dbg-recording","schema":1,"run_id":"20')
    with pytest.raises(RecordingError, match="is cut short in its first line"):
        read_header(path)
