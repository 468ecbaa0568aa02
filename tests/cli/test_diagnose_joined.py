"""``hicache-dbg diagnose --together`` over recordings of several processes."""

import json
from pathlib import Path

import pytest
from tests.tracer.checks.statements import contract, hits, mirror, started

from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.events import Event


def recorded(folder: Path, name: str, events: list[Event]) -> str:
    """A recording of ``events``; its folder."""
    (folder / name).mkdir()
    sink = RecordingSink(folder / name, name)
    sink.emit(events)
    sink.close()
    return str(folder / name)


def diagnosed(capsys: pytest.CaptureFixture[str], *places: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings."""
    code = main(["diagnose", "--together", *places, "--json"])
    return code, json.loads(capsys.readouterr().out)["findings"]


def test_ranks_that_disagree_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two recordings, one run: what one rank found and the other did not is a finding."""
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
    """Both are rank 0 of their own role: geometry is compared, not taken for one process's."""
    places = [
        recorded(tmp_path, role, [contract(role, "v", 1), started(mirror(slot_bytes=width))])
        for role, width in (("prefill", 256), ("decode", 132))
    ]
    code, (finding,) = diagnosed(capsys, *places)
    assert (code, finding["class"], finding["pool"]) == (1, "pd_contract", "kv")
    assert finding["expected"] == "row.slot_bytes=256"
