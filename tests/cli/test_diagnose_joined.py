"""``hicache-dbg diagnose --together`` over recordings of several processes."""

import json
from pathlib import Path

import pytest
from tests.tracer.checks.statements import contract, hits, mirror, started

from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_format import recordings_in
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.events import Event


def recorded(folder: Path, name: str, events: list[Event]) -> str:
    """Record ``events`` and return the folder."""
    (folder / name).mkdir()
    sink = RecordingSink(folder / name, name)
    sink.emit(events)
    sink.close()
    return str(folder / name)


def diagnosed(capsys: pytest.CaptureFixture[str], *places: str) -> tuple[int, list[dict[str, str]]]:
    """Return exit code and findings."""
    code = main(["diagnose", "--together", *places, "--json"])
    return code, json.loads(capsys.readouterr().out)["findings"]


def test_ranks_that_disagree_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two recordings of one run: a hit of one rank that the other missed is a finding."""
    places = [
        recorded(tmp_path, f"rank{rank}", [started(mirror(), rank=rank), hits("r", pages, rank)])
        for rank, pages in enumerate((5, 3))
    ]
    code, (finding,) = diagnosed(capsys, *places)
    assert (code, finding["class"]) == (1, "rank_divergence")
    assert "rank 0: 5, rank 1: 3" in finding["message"]
    assert diagnosed(capsys, places[0]) == (2, [])


def test_prefill_and_decode_are_two_rank_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both roles have a rank 0: their geometry is compared, not merged into one process."""
    places = [
        recorded(tmp_path, role, [contract(role, "v", 1), started(mirror(slot_bytes=width))])
        for role, width in (("prefill", 256), ("decode", 132))
    ]
    code, (finding,) = diagnosed(capsys, *places)
    assert (code, finding["class"], finding["pool"]) == (1, "pd_contract", "kv")
    assert finding["expected"] == "row.slot_bytes=256"


def test_a_recording_whose_first_part_was_removed_accuses_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of long runs the oldest parts go: what a rank said in them it did not leave out."""
    places = []
    for rank in range(2):
        place = tmp_path / f"rank{rank}"
        place.mkdir()
        sink = RecordingSink(place, "run", rotation=Rotation(1))
        for event in (started(mirror(), rank=rank), hits("r", 5, rank), hits("r", 3, rank)):
            sink.emit([event])
        sink.close()
        places.append(str(place))
    assert diagnosed(capsys, *places) == (2, [])
    parts = recordings_in(tmp_path / "rank1")
    (first,) = (part for part in parts if '"values":["5"]' in part.read_text())
    first.unlink()
    assert diagnosed(capsys, *places) == (2, [])
