"""``repro --pd``: two processes, clean text; each injected fault is named with page and layer."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.handover.pair import require_nixl

from hicache_dbg.tracer.cli.main import main

pytestmark = pytest.mark.service

SMALL = ["--sessions", "4", "--rounds", "2", "--max-tokens", "12", "--pd"]


@pytest.fixture(autouse=True)
def _nixl() -> None:
    require_nixl()


def repro(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and JSON of a small run."""
    code = main(["repro", *SMALL, *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_clean_run_hands_over_and_every_received_tile_is_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text is the same as without a handover, there is no finding, and outcomes add up."""
    code, data = repro(capsys)
    assert code == 0
    assert data["sessions"]["corrupted"] == 0
    assert data["findings"] == []
    tiles = data["tiles"]
    assert tiles["moved"] == sum(
        tiles[k] for k in ("verified", "witnessed", "mismatched", "skipped")
    )
    assert tiles["verified"] == data["engine"]["handed_pages"] * 2 * 3  # two pools of three layers
    assert {path["op"] for path in data["paths"]} >= {"send", "recv"}
    answers = {one["name"]: one["verdict"] for one in data["hypotheses"]}
    assert answers["prefill_and_decode_disagree"] == "falsified"


@pytest.mark.parametrize(
    ("fault", "pool", "layer", "page"),
    [
        ("tile_lost_on_the_wire", "mla", 1, 2),
        ("tile_cut_short_on_the_wire", "dsa_index_k", 2, 1),
        ("layers_mixed_up_on_the_wire", "dsa_index_k", 1, 0),
    ],
)
def test_a_tile_that_arrives_different_is_named(
    capsys: pytest.CaptureFixture[str], fault: str, pool: str, layer: int, page: int
) -> None:
    """The text is wrong, and one finding names request, pool, page and layer."""
    code, data = repro(capsys, "--fault", fault)
    assert code == 1
    assert data["sessions"]["corrupted"] > 0
    (finding,) = data["findings"]
    assert (finding["class"], finding["pool"], finding["layer"]) == ("pd_contract", pool, layer)
    assert page in finding["pages"]
    assert data["tiles"]["mismatched"] > 0


def test_another_dtype_at_decode_is_refused_before_a_byte_moves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every differing field is reported with both values."""
    code, data = repro(capsys, "--fault", "decode_has_fp8_index_k")
    assert code == 1
    assert data["engine"]["handed_pages"] == data["tiles"]["moved"] == 0
    (finding,) = data["findings"]
    assert "index_k.page_bytes=16384" in finding["expected"]
    assert "index_k.page_bytes=8448" in finding["got"]
    assert "page_bytes: prefill has 16384, decode has 8448" in data["engine_error"]


def test_a_killed_prefill_harms_no_text_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a request had arrived: its tiles are named, none is read, and a new process takes over."""
    code, data = repro(capsys, "--kill")
    assert code == 1
    assert data["sessions"]["corrupted"] == 0
    assert data["engine"]["prefills_lost"] == 1
    told = {finding["message"].partition(":")[0]: finding for finding in data["findings"]}
    assert all(finding["class"] == "pd_contract" for finding in told.values())
    assert "(peer lost)" in told["mla+dsa_index_k"]["message"]
    assert told["dsa_index_k.index_k"]["layer"] >= 0
    assert data["skipped"]["failed"] == 36  # six pages of two pools of three layers


def test_a_fault_in_prefills_cache_is_told_from_the_handover(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text is wrong at decode although every handed tile is right: the cause is the host mirror."""
    code, data = repro(capsys, "--fault", "host_sized_for_fp8", "--device-pages", "9")
    assert code == 1
    assert {finding["class"] for finding in data["findings"]} == {"row_width"}
    assert data["sessions"]["corrupted"] > 0


@pytest.mark.parametrize("options", [["--storage", "file"], ["--fault", "stored_bit_flips"]])
def test_what_has_no_place_in_it_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Unsupported options exit with 2 before anything is started."""
    assert main(["repro", *SMALL, *options]) == 2
    capsys.readouterr()


def test_a_trace_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trace has requests and no sessions: it is refused, not ignored."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 64, "output_length": 4, "hash_ids": [1]}\n')
    assert main(["repro", *SMALL, "--trace", str(trace)]) == 2
    assert "leave --trace out" in capsys.readouterr().err
