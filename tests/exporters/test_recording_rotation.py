"""Recordings in parts: split by size, compressed, bounded, and without loss."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters.samples import copied, finding, started

from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_format import (
    RecordingError,
    read,
    read_header,
    recordings_in,
)
from hicache_dbg.tracer.events import Copied, Event, Finding, Started

#: A header or a copy is a few hundred bytes, so that each part takes one batch or two.
SMALL = 2000


def record(folder: Path, rotation: Rotation, batches: list[list[Event]]) -> list[Path]:
    """Record ``batches`` and return the parts."""
    sink = RecordingSink(folder, "run", rotation=rotation)
    for batch in batches:
        sink.emit(batch)
    sink.close()
    return recordings_in(folder)


def op_ids(parts: list[Path]) -> list[int]:
    """Return the ids of the copies of all parts, in order."""
    return [event.op_id for part in parts for event in read(part) if isinstance(event, Copied)]


def batches_of(count: int) -> list[list[Event]]:
    """Yield a start, then ``count`` batches of two copies."""
    pairs: list[list[Event]] = [
        [copied(op_id=2 * n), copied(op_id=2 * n + 1)] for n in range(count)
    ]
    return [[started()], *pairs]


def test_parts_are_cut_by_size_and_read_alone(tmp_path: Path) -> None:
    """Every part has a header, its number and the start; together they hold each event once."""
    parts = record(tmp_path, Rotation(part_bytes=SMALL), batches_of(10))
    assert len(parts) > 3
    assert [read_header(part).part for part in parts] == list(range(len(parts)))
    assert op_ids(parts) == list(range(20))
    for part in parts:
        assert next(read(part)) == started()
        assert part.stat().st_size < 2 * SMALL


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), max_size=30), part_bytes=st.integers(1, 20_000))
def test_no_event_falls_between_two_parts(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], part_bytes: int
) -> None:
    """Whatever the batches and the size, the parts hold every event once and in order."""
    ids = iter(range(sum(sizes)))
    batches: list[list[Event]] = [[copied(op_id=next(ids)) for _ in range(n)] for n in sizes]
    folder = tmp_path_factory.mktemp("parts")
    assert op_ids(record(folder, Rotation(part_bytes), batches)) == list(range(sum(sizes)))


def test_closed_parts_are_packed(tmp_path: Path) -> None:
    """With compression every closed part is compressed, private and smaller, and reads the same."""
    pytest.importorskip("zstandard")
    batches = batches_of(40)
    parts = record(tmp_path, Rotation(part_bytes=10_000, compress=True), batches)
    assert [part.name for part in parts] == [
        *(f"run.{n:04}.jsonl.zst" for n in range(len(parts) - 1)),
        f"run.{len(parts) - 1:04}.jsonl",
    ]
    assert len(parts) > 2
    assert op_ids(parts) == list(range(80))
    assert all(part.stat().st_size < 3000 for part in parts[:-1])
    assert all(part.stat().st_mode & 0o777 == 0o600 for part in parts)
    assert sorted(tmp_path.iterdir()) == parts


def test_old_parts_go_and_the_start_stays(tmp_path: Path) -> None:
    """With a bound on the parts the newest stay, and each still has the start record."""
    rotation = Rotation(part_bytes=SMALL, keep=2)
    parts = record(tmp_path, rotation, batches_of(10))
    assert len(parts) == 2
    kept = op_ids(parts)
    assert kept == list(range(kept[0], 20))
    assert [event for event in read(parts[0]) if isinstance(event, Started)] == [started()]


def test_a_finding_outlives_the_clean_parts_around_it(tmp_path: Path) -> None:
    """Clean parts are removed first, whatever their age, so that old findings remain readable."""
    batches = batches_of(20)
    batches[3].append(finding())
    parts = record(tmp_path, Rotation(part_bytes=SMALL, keep=3), batches)
    assert len(parts) == 3
    first, *newest = (op_ids([part]) for part in parts)
    assert 4 in first
    assert [op_id for ids in newest for op_id in ids] == list(range(newest[0][0], 40))


def test_of_many_findings_the_first_stays(tmp_path: Path) -> None:
    """If every part has a finding the bound still holds, and the first part is kept with the newest."""
    batches = [[*batch, finding()] for batch in batches_of(20)]
    parts = record(tmp_path, Rotation(part_bytes=1, keep=4), batches)
    numbers = [read_header(part).part for part in parts]
    assert numbers == [1, *range(19, 22)]  # part 0 is its head alone
    assert all(any(isinstance(event, Finding) for event in read(part)) for part in parts)


def test_each_rank_keeps_its_own_start(tmp_path: Path) -> None:
    """A part begins with the latest start of each rank."""
    newer = started(rank=0, checksum="ends")
    batches: list[list[Event]] = [
        [started(rank=0), started(rank=1), newer],
        *batches_of(3)[1:],
    ]
    parts = record(tmp_path, Rotation(part_bytes=1), batches)
    heads = [event for event in read(parts[-1]) if isinstance(event, Started)]
    assert heads == [newer, started(rank=1)]


def test_trouble_with_a_rotation_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the next part can't be created the current one goes on, and the log says so once."""
    (tmp_path / "run.0001.jsonl").write_text("another's")
    sink = RecordingSink(tmp_path, "run", rotation=Rotation(part_bytes=1))
    for batch in batches_of(5):
        sink.emit(batch)
    sink.close()
    assert op_ids([tmp_path / "run.0000.jsonl"]) == list(range(10))
    assert (tmp_path / "run.0001.jsonl").read_text() == "another's"
    assert len(caplog.records) == 1


def test_a_damaged_packed_part_is_named(tmp_path: Path) -> None:
    """The readable prefix of a damaged compressed part is read, then the part is named."""
    pytest.importorskip("zstandard")
    parts = record(tmp_path, Rotation(part_bytes=SMALL, compress=True), batches_of(5))
    parts[0].write_bytes(b"nothing of the kind")
    with pytest.raises(RecordingError, match=r"run\.0000\.jsonl\.zst is damaged"):
        list(read(parts[0]))


def test_without_the_package_compression_is_one_clear_error(tmp_path: Path) -> None:
    """Without zstandard, asking for compression says what to install."""
    script = (
        "import sys; sys.modules['zstandard'] = None\n"
        "from pathlib import Path\n"
        "from hicache_dbg.exporters.recording import RecordingError, RecordingSink, Rotation\n"
        "try: RecordingSink(Path(sys.argv[1]), 'run', rotation=Rotation(1, compress=True))\n"
        "except RecordingError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("compressed recordings need the zstandard package")
    assert not list(tmp_path.iterdir())


def test_the_parts_of_a_very_long_run_come_in_their_order(tmp_path: Path) -> None:
    """The ten-thousandth part, which has one more digit in its name, is still sorted last."""
    names = ["a.jsonl", "r-1.9998.jsonl.zst", "r-1.9999.jsonl", "r-1.10000.jsonl", "r-2.0000.jsonl"]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert [path.name for path in recordings_in(tmp_path)] == names
