"""``hicache-dbg bundle``: complete enough for a diagnosis, free of names of people and requests."""

import getpass
import io
import json
import re
import socket
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.exporters.samples import copied, finding, health, started
from tests.tracer.checks.statements import hits

from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.tracer.boot import boot_id
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.events import Event, Stated

Capture = pytest.CaptureFixture[str]
TRACE, SPAN = "ab" * 16, "cd" * 8
OTHER = "ef" * 16
REQUEST = "somebodys-request"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder whose name must not leak."""
    folder = tmp_path / "secret-user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def record(folder: Path, events: Sequence[Event], run: str = "run", **options: Any) -> None:
    """Write a recording."""
    folder.mkdir(exist_ok=True)
    sink = RecordingSink(folder, run, **options)
    sink.emit(events)
    sink.emit([health(closing=True)])
    sink.close()


def events(folder: Path) -> list[Event]:
    """Return events of every kind, with ids and with a user's path in a message."""
    return [
        started(),
        copied(trace_id=TRACE, span_id=SPAN, shared_with=((OTHER, SPAN),)),
        copied(),
        finding(trace_id=TRACE, message=f"read from {folder}/kv and {folder}-other"),
        hits(REQUEST, 5, 0),
    ]


def unpack(path: Path, into: Path) -> dict[str, bytes]:
    """Return the files of an archive by name."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")
        assert {(m.uid, m.gid, m.uname, m.gname) for m in archive.getmembers()} == {(0, 0, "", "")}
    root = into / "hicache-dbg-bundle"
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.zst"])
def test_a_bundle_holds_what_a_colleague_needs(
    capsys: Capture, tmp_path: Path, home: Path, suffix: str
) -> None:
    """Recordings, doctor's findings, settings and versions are included and readable."""
    record(tmp_path / "runs", events(home))
    out = tmp_path / f"run{suffix}"
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
    files = unpack(out, tmp_path / "out")
    assert set(files) == {
        *("recordings/run.jsonl", "doctor.json", "settings.json", "versions.json", "README.txt")
    }
    assert {part["name"] for part in json.loads(files["doctor.json"])} >= {"torch", "journald"}
    assert json.loads(files["settings.json"])["checksum"] == "loads"
    assert json.loads(files["versions.json"])["msgspec"]
    assert "6 events in 5 files" in capsys.readouterr().out


def test_no_ids_and_no_names_get_out(capsys: Capture, tmp_path: Path, home: Path) -> None:
    """Trace ids, home folder, user name and host name are in no file of the archive."""
    record(home / "runs", events(home))
    out = tmp_path / "run.tar.gz"
    assert main(["bundle", str(home / "runs"), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    files = unpack(out, tmp_path / "out")
    text = b"\n".join(files.values()).decode()
    for name in (TRACE, SPAN, OTHER, REQUEST, f"{home}/", f'{home}"'):
        assert name not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert f'"{getpass.getuser()}"' not in text
    (message,) = (e.message for e in read_all(tmp_path / "out") if hasattr(e, "message"))
    assert message == f"read from ~/kv and {home}-other"
    assert "trace and span ids, and the names of requests, of 3 events" in told["left_out"]
    for line in told["left_out"]:
        assert f"- {line}" in files["README.txt"].decode()


def test_a_request_has_one_name_in_all_recordings_of_a_bundle(tmp_path: Path, home: Path) -> None:
    """Statements of several ranks about one request can still be joined, under an alias."""
    for rank in range(2):
        record(tmp_path / "runs", [hits(REQUEST, 5, rank), hits("another", 1, rank)], f"rank{rank}")
    names = set()
    for number in range(2):
        out = tmp_path / f"{number}.tar.gz"
        assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
        unpack(out, tmp_path / f"out{number}")
        told = [e.request for e in read_all(tmp_path / f"out{number}") if isinstance(e, Stated)]
        assert told[:2] == told[2:]
        names |= set(told)
    assert len(names) == 4


def test_the_machines_boot_has_one_name_in_all_recordings_of_a_bundle(
    tmp_path: Path, home: Path
) -> None:
    """Runs can still be told apart by its clock, and nobody learns the machine's own id."""
    for run in ("one", "other"):
        record(tmp_path / "runs", events(home), run)
    out = tmp_path / "run.tar.gz"
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
    files = unpack(out, tmp_path / "out")
    packed = [
        json.loads(files[f"recordings/{run}.jsonl"].splitlines()[0]) for run in ("one", "other")
    ]
    assert packed[0]["boot_id"] == packed[1]["boot_id"] != ""
    assert boot_id().encode() not in b"".join(files.values())


def test_a_user_without_a_home_can_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user may be a bare number without an account."""

    def nobody(_user: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    record(tmp_path / "runs", [started()])
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(tmp_path / "b.tar.gz")]) == 0


def read_all(folder: Path) -> list[Any]:
    """Return every event of the unpacked recordings."""
    paths = sorted((folder / "hicache-dbg-bundle" / "recordings").iterdir())
    return [event for path in paths for event in read(path)]


def test_a_bundle_diagnoses_as_the_original_does(
    capsys: Capture, tmp_path: Path, home: Path
) -> None:
    """Nothing that affects the verdict is lost: both give the same report."""
    record(tmp_path / "runs", events(home))
    record(tmp_path / "runs", [copied(rank=1, mismatched=2)], "second")
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(tmp_path / "b.tar.zst")]) == 0
    unpack(tmp_path / "b.tar.zst", tmp_path / "out")
    capsys.readouterr()
    reports = []
    for place in (tmp_path / "runs", tmp_path / "out" / "hicache-dbg-bundle" / "recordings"):
        assert main(["diagnose", str(place), "--json"]) == 1
        reports.append(capsys.readouterr().out.replace(str(home), "~"))
    assert reports[0].replace("~-other", f"{home}-other") == reports[1].replace(
        "~-other", f"{home}-other"
    )


def test_packed_parts_are_unpacked_and_torn_lines_are_told(capsys: Capture, tmp_path: Path) -> None:
    """Compressed parts become plain lines; a truncated line is left out and reported."""
    runs = tmp_path / "runs"
    runs.mkdir()
    sink = RecordingSink(runs, "long", rotation=Rotation(part_bytes=1, compress=True))
    sink.emit([copied()])
    sink.emit([copied()])
    sink.close()
    last = max(runs.glob("*.jsonl"))
    last.write_bytes(last.read_bytes()[:-20])
    (runs / "notes.txt").write_text("not for others")
    (runs / "long.lock").touch()  # the run's own
    assert main(["bundle", str(runs), "-o", str(tmp_path / "b.tar.gz"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert any(f"{last.name}, line" in line and "cut short" in line for line in told["left_out"])
    assert "1 file: not a recording" in told["left_out"]
    files = unpack(tmp_path / "b.tar.gz", tmp_path / "out")
    assert {name for name in files if name.startswith("recordings/")} == {
        f"recordings/{path.name.removesuffix('.zst')}" for path in runs.glob("*.jsonl*")
    }
    assert len(read_all(tmp_path / "out")) == told["events"]
    assert "notes.txt" not in files


def test_a_recording_may_lose_parts_while_it_is_bundled(
    capsys: Capture, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is bundled, and the removed part is told."""
    record(home, [copied()], "a")
    parts = [home / "gone.jsonl", *recordings_in(home)]
    monkeypatch.setattr("hicache_dbg.tracer.cli.bundle.recordings_in", lambda _: parts)
    archive = tmp_path / "b.tar.gz"
    assert main(["bundle", str(home), "-o", str(archive)]) == 0
    assert "left out: 1 file: removed by its writer meanwhile" in capsys.readouterr().out
    assert "recordings/a.jsonl" in unpack(archive, tmp_path / "out")


def test_a_single_recording_can_be_bundled(tmp_path: Path, home: Path) -> None:
    """A file instead of a folder."""
    record(tmp_path / "runs", events(home))
    path = tmp_path / "runs" / "run.jsonl"
    assert main(["bundle", str(path), "-o", str(tmp_path / "b.tar.gz")]) == 0
    assert "recordings/run.jsonl" in unpack(tmp_path / "b.tar.gz", tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "output", "words"),
    [
        ("runs", "b.zip", ("b.zip", ".tar.zst")),
        ("runs", "taken.tar.gz", ("taken.tar.gz", "it exists")),
        ("runs", "no/such/b.tar.gz", ("no/such", "does not exist: create it")),
        ("empty", "b.tar.gz", ("holds no recording",)),
        ("taken.tar.gz", "b.tar.gz", ("is not a recording",)),
        ("absent", "b.tar.gz", ("cannot read", "absent")),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(
    capsys: Capture, tmp_path: Path, place: str, output: str, words: Sequence[str]
) -> None:
    """Exit 2 with the file and the reason; no partial archive is left behind."""
    record(tmp_path / "runs", [copied()])
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken.tar.gz").write_text("taken")
    before = sorted(tmp_path.rglob("*"))
    assert main(["bundle", str(tmp_path / place), "-o", str(tmp_path / output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in line
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken.tar.gz").read_text() == "taken"


@pytest.mark.parametrize("verb", ["bundle", "doctor", "logs"])
def test_the_verbs_have_help_with_an_example(capsys: Capture, verb: str) -> None:
    """``--help`` shows how the verb is used."""
    assert main([verb, "--help"]) == 0
    assert f"hicache-dbg {verb}" in capsys.readouterr().out


def test_a_request_is_named_in_no_text(capsys: Capture, tmp_path: Path, home: Path) -> None:
    """A finding and a failed operation tell of a request by the alias that its statements have."""
    text = f"prefill reallocated 2 pages of request {REQUEST} before its handover was over"
    told: list[Event] = [
        finding(requests=(REQUEST,), message=text, expected=text, got=text),
        copied(requests=(REQUEST,), status=f"TimeoutError: request {REQUEST}: not taken over"),
        hits(REQUEST, 5, 0),
    ]
    record(tmp_path / "runs", told)
    out = tmp_path / "run.tar.gz"
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
    (name,) = (each for each in unpack(out, tmp_path / "out") if each.endswith(".jsonl"))
    (place,) = (tmp_path / "out").rglob(Path(name).name)
    assert REQUEST not in place.read_text()
    said = next(event for event in read(place) if isinstance(event, Stated))
    assert place.read_text().count(f"request {said.request}") == 4


def test_a_request_whose_id_begins_as_anothers_has_its_own_alias(
    capsys: Capture, tmp_path: Path, home: Path
) -> None:
    """An operation for requests s1 and s12 failed for s12."""
    told: list[Event] = [
        copied(requests=("s1", "s12"), status="TimeoutError: request s12: not taken over"),
        hits("s12", 5, 0),
    ]
    record(tmp_path / "runs", told)
    out = tmp_path / "run.tar.gz"
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
    unpack(out, tmp_path / "out")
    (place,) = (tmp_path / "out").rglob("*.jsonl")
    said = next(event for event in read(place) if isinstance(event, Stated))
    assert f"request {said.request}: not taken over" in place.read_text()


def test_an_empty_recording_keeps_no_other_out(capsys: Capture, tmp_path: Path, home: Path) -> None:
    """It counts among what is left out."""
    record(tmp_path / "runs", events(home))
    (tmp_path / "runs" / "lost.jsonl").touch()
    out = tmp_path / "run.tar.gz"
    assert main(["bundle", str(tmp_path / "runs"), "-o", str(out)]) == 0
    assert "left out: 1 file: not a recording" in capsys.readouterr().out
