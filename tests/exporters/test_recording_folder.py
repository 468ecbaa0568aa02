"""Recordings of many processes in one folder: their total size, and which are removed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from tests.exporters.samples import copied, finding, started

from hicache_dbg.exporters import recording_format, recording_stamps
from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_folder import Tenant, prune
from hicache_dbg.exporters.recording_format import (
    SUFFIX,
    Header,
    read,
    read_header,
    recordings_in,
    run_of,
)
from hicache_dbg.exporters.recording_part import compressor, pack
from hicache_dbg.tracer.events import Copied, Event, Finding

PART = 4096
NO_ROOM = 0.0

#: Records what it is given, says so, and waits to be ended.
PROCESS = """
import sys
from pathlib import Path
import msgspec
from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_folder import Tenant
from hicache_dbg.tracer.events import Event
folder = Path(sys.argv[1])
sink = RecordingSink(folder, sys.argv[2], rotation=Rotation(4096), tenant=Tenant(folder, 1e12))
sink.emit(msgspec.json.decode(sys.argv[3], type=list[Event]))
print("recorded", flush=True)
sys.stdin.read()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts recording processes, which end after the test."""
    with ExitStack() as running:

        def begin(run_id: str, events: Sequence[Event]) -> subprocess.Popen[str]:
            data = msgspec.json.encode(events).decode()
            command = [sys.executable, "-c", PROCESS, str(tmp_path), run_id, data]
            process = running.enter_context(
                subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "recorded\n"
            return process

        yield begin


def record(folder: Path, run_id: str, events: Sequence[Event], age_s: float) -> None:
    """Write a run that ended so many seconds ago, and touch its files in the opposite order."""
    tenant = Tenant(folder, 1e12)
    sink = RecordingSink(folder, run_id, rotation=Rotation(PART), tenant=tenant)
    then = time.time_ns() - int(age_s * 1e9)
    for event in events:
        sink.emit([msgspec.structs.replace(event, time_ns=then)])
    sink.close()
    for path in folder.glob(f"{run_id}.*{SUFFIX}"):
        _begun(path, time_ns=then, boot_id="")
        os.utime(path, (age_s, age_s))


def _begun(path: Path, **clocks: int | str) -> None:
    """Change when a recording says that it was begun."""
    header, _, rest = path.read_bytes().partition(b"\n")
    began = msgspec.structs.replace(msgspec.json.decode(header, type=Header), **clocks)
    path.write_bytes(msgspec.json.encode(began) + b"\n" + rest)


def runs(folder: Path) -> set[str]:
    """Return the runs that exist."""
    return {run_of(path) for path in recordings_in(folder)}


def test_ended_runs_go_oldest_first_until_the_rest_fits(tmp_path: Path) -> None:
    """Complete runs are removed with their locks, and no more than necessary."""
    for number, age in enumerate([30.0, 10.0, 20.0]):
        record(tmp_path, f"run{number}", [started(), *[copied()] * 20], age)
    sizes = [
        sum(path.stat().st_size for path in tmp_path.glob(f"run{n}.*.jsonl")) for n in range(3)
    ]
    assert prune(tmp_path, sum(sizes)) == []
    assert prune(tmp_path, sizes[1] + sizes[2]) == ["run0"]
    assert prune(tmp_path, sizes[1]) == ["run2"]
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"run1"}
    assert prune(tmp_path, NO_ROOM) == ["run1"]
    assert list(tmp_path.iterdir()) == []


def test_the_age_of_a_run_is_what_its_last_readable_part_says(tmp_path: Path) -> None:
    """A compressed part is as old as its begin; a file that cannot be read, as its last change."""
    for run_id, age in (("packed", 30.0), ("plain", 20.0), ("torn", 10.0)):
        record(tmp_path, run_id, [started()], age)
    pack(tmp_path / "packed.0000.jsonl", compressor())
    torn = tmp_path / "torn.0000.jsonl"
    torn.write_bytes(b"{")
    now = time.time()
    os.utime(torn, (now, now))
    assert prune(tmp_path, NO_ROOM) == ["packed", "plain", "torn"]


def test_a_file_that_another_process_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many processes make room in one folder; the others' files are still put in order."""
    for run_id, age in (("first", 30.0), ("second", 20.0)):
        record(tmp_path, run_id, [started()], age)
    asked = read_header

    def overtaken(path: Path) -> Header:
        header = asked(path)
        if run_of(path) == "first":
            path.unlink()
        return header

    monkeypatch.setattr(recording_stamps, "read_header", overtaken)
    assert prune(tmp_path, NO_ROOM) == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_was_set_back_makes_no_run_older(tmp_path: Path) -> None:
    """Runs of one boot are ordered by the machine's own clock."""
    for number, age in enumerate((10.0, 99.0)):
        record(tmp_path, f"run{number}", [started()], age)
        (path,) = tmp_path.glob(f"run{number}.*{SUFFIX}")
        _begun(path, boot_id="boot", boot_ns=(number + 1) * 10**9)
    assert prune(tmp_path, NO_ROOM) == ["run0", "run1"]


def test_what_may_be_wanted_stays(tmp_path: Path, start: Start) -> None:
    """Whatever the bound, live runs, runs with a finding and files copied here are kept."""
    living = start("living", [started(), copied()])
    killed = start("killed", [started(), finding()])
    killed.kill()
    killed.wait()
    record(tmp_path, "found", [started(), finding(), copied()], 99.0)
    brought = RecordingSink(tmp_path, "brought")
    brought.emit([started()])
    brought.close()
    record(tmp_path, "clean", [started(), copied()], 1.0)
    assert prune(tmp_path, NO_ROOM) == ["clean"]
    assert runs(tmp_path) == {"living", "killed", "found", "brought"}
    living.kill()
    living.wait()
    assert prune(tmp_path, NO_ROOM) == ["living"]


def test_a_run_makes_room_for_its_own_parts(tmp_path: Path) -> None:
    """Each new part makes room by removing other runs; its own run is never cut."""
    record(tmp_path, "old", [started(), *[copied()] * 20], 50.0)
    sink = RecordingSink(tmp_path, "new", rotation=Rotation(PART), tenant=Tenant(tmp_path, PART))
    sink.emit([started()])
    for number in range(30):
        sink.emit([copied(op_id=number)])
    sink.close()
    assert runs(tmp_path) == {"new"}
    events = [event for path in recordings_in(tmp_path) for event in read(path)]
    ids = [event.op_id for event in events if isinstance(event, Copied)]
    assert ids == list(range(30))


def test_a_run_whose_descriptors_the_host_closed_is_still_its_own(tmp_path: Path) -> None:
    """A host that daemonizes closes all descriptors: its files are not touched, and the run goes on."""
    sink = RecordingSink(tmp_path, "run", rotation=Rotation(1 << 20), tenant=Tenant(tmp_path, 1e12))
    sink.emit([started(), finding()])
    ours = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if _leads_to(tmp_path, fd)]
    assert len(ours) == 2
    for fd in ours:
        os.close(fd)
    hosts = [os.open(tmp_path / f"host{n}", os.O_CREAT | os.O_RDWR) for n in range(len(ours))]
    assert sorted(hosts) == sorted(ours)  # the very numbers
    sink.emit([copied()])
    assert prune(tmp_path, NO_ROOM) == []  # held again, and still marked
    sink.close()
    assert [os.fstat(fd).st_size for fd in hosts] == [0, 0]  # open, and nothing was written
    for fd in hosts:
        os.close(fd)
    assert prune(tmp_path, NO_ROOM) == []
    events = [event for path in recordings_in(tmp_path) for event in read(path)]
    assert [type(event).__name__ for event in events] == ["Started", "Finding", "Started", "Copied"]


def _leads_to(folder: Path, fd: Path) -> bool:
    try:
        return fd.readlink().is_relative_to(folder)
    except OSError:  # the one that lists them
        return False


def test_a_forked_childs_run_is_its_own(tmp_path: Path) -> None:
    """The parent's lock ends with the parent although its child lives, and the child has its own."""
    sink = RecordingSink(tmp_path, "run", rotation=Rotation(1 << 20), tenant=Tenant(tmp_path, 1e12))
    sink.emit([started()])
    told, tell = os.pipe()
    wait, let = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(let)
            sink.emit([copied()])
            os.write(tell, b"1")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.read(told, 1)
    sink.close()
    assert prune(tmp_path, NO_ROOM) == ["run"]
    assert runs(tmp_path) == {f"run-child{child}"}
    for end in (told, tell, wait, let):
        os.close(end)
    os.waitpid(child, 0)
    assert prune(tmp_path, NO_ROOM) == [f"run-child{child}"]


def test_trouble_with_the_folder_costs_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that cannot be locked is still recorded, and is not removed."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fcntl.flock", refuse)
    sink = RecordingSink(tmp_path, "run", rotation=Rotation(PART), tenant=Tenant(tmp_path, PART))
    sink.emit([started(), finding()])
    sink.close()
    monkeypatch.undo()
    assert prune(tmp_path, NO_ROOM) == []
    (path,) = recordings_in(tmp_path)
    assert any(isinstance(event, Finding) for event in read(path))


def test_a_file_kept_both_ways_is_one_recording_that_goes_as_a_whole(tmp_path: Path) -> None:
    """It is read once, from what the writer appends to, and nothing of it stays behind."""
    rotation = Rotation(part_bytes=PART, keep=9)
    sink = RecordingSink(tmp_path, "run", rotation=rotation, tenant=Tenant(tmp_path, 1e9))
    sink.emit([started()])
    sink.close()
    (plain,) = recordings_in(tmp_path)
    packed = plain.with_name(f"{plain.name}.zst")
    packed.write_bytes(compressor()(plain.read_bytes()))
    assert recordings_in(tmp_path) == [plain]
    assert prune(tmp_path, NO_ROOM) == ["run"]
    assert not list(tmp_path.glob("run*"))


def test_what_is_compressed_while_a_folder_is_listed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has both files, and one of them is gone."""
    plain, packed = tmp_path / "run.0000.jsonl", tmp_path / "run.0000.jsonl.zst"
    packed.touch()
    monkeypatch.setattr(recording_format, "files_of_recordings", lambda _: [plain, packed])
    assert recordings_in(tmp_path) == [packed]


def test_an_empty_file_hides_no_compressed_one(tmp_path: Path) -> None:
    """Such as what an unpacking leaves behind on a full disk."""
    plain, packed = tmp_path / "run.0000.jsonl", tmp_path / "run.0000.jsonl.zst"
    plain.touch()
    packed.write_bytes(compressor()(b"{}"))
    assert recordings_in(tmp_path) == [packed]
