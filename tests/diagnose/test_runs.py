"""Several runs in one folder are told apart by the time of their writing."""

import os
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.test_compare import BROKEN, MENDED

from hicache_dbg.exporters.recording_format import FORMAT, Header
from hicache_dbg.exporters.recording_part import compressor, pack
from hicache_dbg.tracer.cli import diagnose
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose import runs as diagnose_runs
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.held import HeldFiles
from hicache_dbg.tracer.diagnose.runs import runs_of
from hicache_dbg.tracer.events import SCHEMA_VERSION, Copied, Event, Health


def recording(
    folder: Path, name: str, began: int, ended: int, events: Sequence[Event] = MENDED
) -> Path:
    """Write a recording of ``events``, all but the last at ``began``."""
    header = Header(format=FORMAT, schema=SCHEMA_VERSION, run_id=name, time_ns=began)
    timed = [msgspec.structs.replace(event, time_ns=began) for event in events]
    timed[-1] = msgspec.structs.replace(events[-1], time_ns=ended)
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *timed)))
    return path


def test_ranks_that_run_together_are_one_run(tmp_path: Path) -> None:
    """Ranks begin and end at different times; recordings that overlap belong together."""
    ranks = [recording(tmp_path, f"r{rank}", 10 + rank, 90 - rank) for rank in range(4)]
    (run,) = runs_of(ranks)
    assert (set(run.files), run.began_ns, run.ended_ns) == (set(ranks), 10, 90)


def test_a_process_that_died_and_came_back_is_of_the_run_that_went_on(tmp_path: Path) -> None:
    """Prefill may be restarted while decode keeps running."""
    decode = recording(tmp_path, "decode", 10, 90)
    prefills = [recording(tmp_path, f"p{at}", at, at + 20) for at in (15, 50)]
    assert len(runs_of([decode, *prefills])) == 1


def test_parts_of_one_recording_are_one_run(tmp_path: Path) -> None:
    """A part may begin long after the last event of the one before."""
    parts = [recording(tmp_path, f"r.{n:04}", 10 * n + 1, 10 * n + 3) for n in range(3)]
    (run,) = runs_of(parts)
    assert (set(run.files), run.began_ns, run.ended_ns) == (set(parts), 1, 23)


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_ends_with_its_last_event_whatever_was_done_to_the_file(
    tmp_path: Path, packed: bool
) -> None:
    """A copy is as new as its events, even if the last one is longer than the tail that is read."""
    large = msgspec.structs.replace(
        next(event for event in MENDED if isinstance(event, Copied)),
        host_pages=tuple(range(20_000)),
    )
    file = recording(tmp_path, "killed", 10, 20, [*MENDED, large])
    if packed:
        file = pack(file, compressor())
    os.utime(file, ns=(5000, 5000))
    (run,) = runs_of([file])
    assert (run.began_ns, run.ended_ns) == (10, 20)


def test_a_compressed_part_that_is_cut_short_ends_with_what_can_be_read(tmp_path: Path) -> None:
    """Its reader says that it is damaged; which run it belongs to is still known."""
    copy = next(event for event in MENDED if isinstance(event, Copied))
    pages = iter(range(10**9, 10**12, 123_456_789))
    large = [
        msgspec.structs.replace(copy, host_pages=tuple(islice(pages, 700)), time_ns=n)
        for n in range(11, 90)
    ]
    file = pack(recording(tmp_path, "r", 10, 90, large), compressor())
    file.write_bytes(file.read_bytes()[:-9])
    (run,) = runs_of([file])
    assert (run.began_ns, run.ended_ns) == (10, 10)


@pytest.mark.parametrize("options", [(), ("--together",)])
def test_a_recording_may_lose_its_oldest_part_at_any_time(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """A part removed before it was opened is left out; what is removed later is read all the same."""
    parts = [recording(tmp_path, f"r.{n:04}", 10 * n + 1, 10 * n + 3) for n in range(4)]
    parts[0].unlink()
    listed = {(tmp_path,): parts}
    monkeypatch.setattr(diagnose_runs, "files_at", lambda at: listed.get(tuple(at), at))

    def gather_removed(database: Database) -> Evidence:
        for part in parts:
            part.unlink(missing_ok=True)
        return gather(database)

    monkeypatch.setattr("hicache_dbg.tracer.cli.diagnose.gather", gather_removed)
    assert main(["diagnose", str(tmp_path), "--json", *options]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["tiles"]["verified"] == 3 * sum(e.verified for e in MENDED if isinstance(e, Copied))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["RecordingSource", "processes_of"])
def test_a_part_that_goes_before_it_is_opened_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its writer may remove it after the files were chosen, and again before they are joined."""
    parts = [recording(tmp_path, f"r.{n:04}", 10 * n + 1, 10 * n + 3) for n in range(3)]
    original = getattr(diagnose, step)

    def late(files: Sequence[Path], *more: Any) -> Any:
        parts[0].unlink()
        return original(files, *more)

    monkeypatch.setattr(diagnose, step, late)
    assert main(["diagnose", str(tmp_path), "--together"]) == 0


@pytest.mark.parametrize("last", [(), ("--last",)])
def test_a_folder_whose_recordings_all_went_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    last: tuple[str, ...],
) -> None:
    """Between the listing of its files and the first look at one."""
    gone = tmp_path / "r.jsonl"
    monkeypatch.setattr(diagnose_runs, "files_at", lambda _: [gone])
    assert main(["diagnose", str(tmp_path), *last]) == 2
    assert "its writer has removed all recordings meanwhile" in capsys.readouterr().err


def test_with_too_many_files_open_none_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holding files never uses up what the process may open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2, 2))
    file, held = recording(tmp_path, "r", 1, 2), HeldFiles()
    held.hold(str(file))
    assert held.readable(str(file), tmp_path) == file


@settings(max_examples=30, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 15)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_runs_are_what_time_parts(
    spans: list[tuple[int, int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two recordings are one run if a chain of overlapping recordings connects them, in any order."""
    folder = tmp_path_factory.mktemp("runs")
    files = [recording(folder, f"r{n}", *span) for n, span in enumerate(spans)]
    busy = sorted({moment for began, ended in spans for moment in range(2 * began, 2 * ended + 1)})
    gaps = sum(after > before + 1 for before, after in pairwise(busy))
    runs = runs_of(data.draw(st.permutations(files)))
    assert len(runs) == 1 + gaps
    assert sorted(file for run in runs for file in run.files) == sorted(files)
    assert all(a.ended_ns < b.began_ns for a, b in pairwise(runs))


@dataclass
class Machine:
    """A machine whose wall clock may be set, and what its processes record."""

    folder: Path
    boot: str = "b0"
    boot_ns: int = 10**9
    ahead_ns: int = 10**15

    def begin(self, name: str) -> Path:
        """Begin a recording."""
        header = Header(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            run_id=name,
            time_ns=self.boot_ns + self.ahead_ns,
            boot_id=self.boot,
            boot_ns=self.boot_ns,
        )
        path = self.folder / f"{name}.jsonl"
        path.write_bytes(msgspec.json.encode(header) + b"\n")
        return path

    def beat(self, path: Path) -> None:
        """Record a health event now."""
        event = Health(time_ns=self.boot_ns + self.ahead_ns, boot_ns=self.boot_ns, events=1)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")


STEP_NS = st.integers(-(10**13), 10**13)


@settings(max_examples=25, deadline=None)
@given(
    lives=st.lists(
        st.tuples(st.integers(1, 10**12), st.integers(0, 10**12), STEP_NS, STEP_NS),
        min_size=1,
        max_size=6,
    )
)
def test_a_clock_that_is_set_merges_no_runs_and_splits_none(
    lives: list[tuple[int, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Between runs and during them: a run's ranks stay together, and the newest is the last one."""
    machine, expected = Machine(tmp_path_factory.mktemp("set")), list[set[Path]]()
    for number, (pause, lasts, between, during) in enumerate(lives):
        machine.boot_ns += pause
        machine.ahead_ns += between
        ranks = []
        for rank in range(2):
            machine.boot_ns += 1
            ranks.append(machine.begin(f"{number}-rank{rank}"))
        machine.ahead_ns += during
        machine.boot_ns += lasts
        for path in ranks:
            machine.beat(path)
        expected.append(set(ranks))
    runs = runs_of([path for ranks in expected for path in ranks])
    assert [set(run.files) for run in runs] == expected


def test_a_clock_that_was_set_back_over_a_restart(tmp_path: Path) -> None:
    """Killed before its first health event, the earlier run ends by the wall clock; so do old recordings."""
    machine = Machine(tmp_path)
    hour = 3600 * 10**9
    first = machine.begin("first")
    machine.boot_ns += hour
    with first.open("ab") as file:
        event = msgspec.structs.replace(MENDED[-1], time_ns=machine.boot_ns + machine.ahead_ns)
        file.write(msgspec.json.encode(event) + b"\n")
    machine.boot_ns += 10**9
    machine.ahead_ns -= hour // 2
    second = machine.begin("second")
    machine.beat(second)
    (one, other) = runs_of([second, first])
    assert (one.files, other.files) == ((first,), (second,))
    for path in (first, second):  # as they were before the boot clock was recorded
        path.write_bytes(re.sub(rb',"boot_(id|ns)":("b0"|\d+)', b"", path.read_bytes()))
    assert len(runs_of([first, second])) == 1


def test_other_boots_and_other_machines_have_the_wall_clock_in_common(tmp_path: Path) -> None:
    """Prefill and decode on two machines are one run; a machine that booted anew began another."""
    prefill, decode = (
        Machine(tmp_path),
        Machine(tmp_path, boot="b1", boot_ns=5, ahead_ns=10**15 + 10**9),
    )
    files = [one.begin(name) for one, name in ((prefill, "prefill"), (decode, "decode"))]
    for one, file in zip((prefill, decode), files, strict=True):
        one.boot_ns += 10**9
        one.beat(file)
    later = Machine(tmp_path, boot="b2", boot_ns=7, ahead_ns=10**15 + 10**12).begin("later")
    assert [len(run.files) for run in runs_of([*files, later])] == [2, 1]


def test_what_was_wrong_before_the_last_run_is_no_verdict_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All runs of a folder are read as one, and that is said; ``--last`` reads the newest."""
    recording(tmp_path, "before", 1_000_000_000, 2_000_000_000, BROKEN)
    recording(tmp_path, "after", 3_000_000_000, 4_000_000_000, MENDED)
    assert main(["diagnose", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 runs, one after the other, are read as one; --last reads that of 1970-01-01" in line
    for more in ([], ["--together"]):
        assert main(["diagnose", str(tmp_path), "--last", *more]) == 0
        assert capsys.readouterr().err == ""


def test_of_each_of_two_folders_the_last_run_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the newest runs do not differ, no difference is reported."""
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        recording(folder, "before", 1, 2, BROKEN)
        recording(folder, "after", 3, 4, MENDED)
    places = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["diagnose", *places, "--last"]) == 0
    assert "0 different" in capsys.readouterr().out
