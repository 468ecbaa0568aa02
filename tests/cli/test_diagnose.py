"""The report of ``hicache-dbg diagnose`` on a terminal: what is read first, last, and where more is."""

import json
from pathlib import Path

import pytest
import zstandard
from tests.diagnose.test_gather import LOAD, recorded
from tests.exporters.samples import copied, finding, started

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.render import MOST_FINDINGS
from hicache_dbg.tracer.events import Event, FaultClass

REUSED = finding(cls=FaultClass.SLOT_REUSE, pool="mla", message="freed while open", advice="wait")
START = started(mirrors=())
CLEAN = copied(**(LOAD | {"skipped": {}, "verified": 8}))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Return exit code and printed lines."""
    code = main(["diagnose", *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_verdict_and_advice_are_read_first_and_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal shows the last lines: they say what is wrong, what to do, and what shows more."""
    place = str(recorded(tmp_path, "my run", [START, CLEAN, REUSED]))
    code, lines = printed(capsys, place)
    assert code == 1
    assert lines[0].startswith("verdict: ")
    assert "freed while open" in lines[0]
    assert lines[1].startswith("do: ")
    assert lines[-3:-1] == lines[:2]
    assert lines[-1] == (
        f"look: hicache-dbg diagnose '{place}' --html report.html --perfetto report.pftrace "
        "--around slot_reuse"
    )


def test_the_command_that_shows_more_reads_the_same_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the options that chose them, and is not given twice."""
    place = str(recorded(tmp_path, "run", [START, copied(requests=("r 1",)), REUSED]))
    _, lines = printed(capsys, place, "--together", "--request", "r 1")
    assert f"{place} --together '--request=r 1' --html" in lines[-1]
    _, lines = printed(capsys, place, "--html", str(tmp_path / "x"))
    assert lines[-1].startswith("do: ")


def test_a_run_without_a_fault_needs_no_second_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report ends with the verdict and its advice."""
    code, lines = printed(capsys, str(recorded(tmp_path, "run", [START, CLEAN])))
    assert (code, lines[-1].startswith("look: ")) == (0, False)


def test_of_many_findings_the_causes_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows from a cause comes after it, and of very many kinds only their number is printed."""
    follows: list[Event] = [
        finding(cls=FaultClass.BIT_FLIP, pool="mla", check=f"c{n}", message=f"flipped {n}")
        for n in range(MOST_FINDINGS + 5)
    ]
    place = str(recorded(tmp_path, "run", [START, *follows, REUSED]))
    _, lines = printed(capsys, place)
    titles = [line for line in lines if line.startswith(("slot_reuse: ", "bit_flip: "))]
    assert titles[0] == "slot_reuse: mla at backup"
    assert len(titles) == MOST_FINDINGS
    assert "and 6 more kinds of finding (6 bit_flip): --json has them all" in lines


def test_the_accesses_that_conflict_have_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was done, what had been done before and where the page was handed out are found at a glance."""
    told = (
        "host page 7: freed while open; this access: free at a.py:3 f; previous access: load 3 at b.py:9 g; "
        "allocated: alloc at c.py:1 h"
    )
    found = finding(cls=FaultClass.SLOT_REUSE, pool="mla", message=told)
    _, lines = printed(capsys, str(recorded(tmp_path, "run", [START, found])))
    at = next(n for n, line in enumerate(lines) if line.startswith("slot_reuse: "))
    assert [line.rstrip() for line in lines[at + 1 : at + 5]] == [
        "  host page 7: freed while open",
        "  this access: free at a.py:3 f",
        "  previous access: load 3 at b.py:9 g",
        "  allocated: alloc at c.py:1 h",
    ]


@pytest.mark.parametrize("option", ["--html", "--perfetto"])
@pytest.mark.parametrize("target", ["other.jsonl", "other.jsonl.zst", "run.rec"])
def test_a_recording_is_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, target: str
) -> None:
    """An option that is taken for a flag must not cost a recording: nobody can make it again."""
    read = recorded(tmp_path, "run", [START, CLEAN])
    (tmp_path / "run.rec").symlink_to(read)
    place = tmp_path / target
    place.touch()
    before = place.read_bytes()
    named = place if target == "run.rec" else read
    assert main(["diagnose", option, str(place), str(named)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{option} {place} is a recording" in line
    assert place.read_bytes() == before


def test_two_files_are_not_written_one_over_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Page and timeline need a name each."""
    read, out = str(recorded(tmp_path, "run", [START, CLEAN])), str(tmp_path / "out")
    assert main(["diagnose", read, "--html", out, "--perfetto", out]) == 2
    assert "give each a name of its own" in capsys.readouterr().err
    assert not Path(out).exists()


def test_an_empty_file_hides_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that crashed may leave one beside the recordings of all other processes."""
    recorded(tmp_path, "run", [START, CLEAN])
    (tmp_path / "lost.jsonl").touch()
    assert main(["diagnose", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert f"{tmp_path}: 1 empty recording left out" in captured.err
    assert "every copy is proven good" in captured.out
    assert main(["diagnose", str(tmp_path / "lost.jsonl")]) == 2
    assert "is empty, or cut short" in capsys.readouterr().err


def test_a_recording_kept_both_ways_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compressing a copy of it changes no number."""
    place = recorded(tmp_path, "run", [START, CLEAN])
    packed = zstandard.ZstdCompressor().compress(place.read_bytes())
    place.with_name(f"{place.name}.zst").write_bytes(packed)
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiles"]["verified"] == 8
