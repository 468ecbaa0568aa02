"""``hicache-dbg ab`` runs every combination and reports what the corruption depends on."""

import json
from typing import Any

import pytest

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.tracer.cli.ab_plan import plan, variables
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.repro_options import RunOptions

SMALL = ("--sessions", "8", "--rounds", "2", "--max-tokens", "12", "--device-pages", "10")
FAULT = ("--fault", "host_sized_for_fp8")


def moves(data: dict[str, Any]) -> dict[str, Any]:
    """Return the effect of each variable."""
    return {one["variable"]: one for one in data["moves"]}


def test_the_instrument_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One seed is corrupted in the same tokens whether or not it is traced."""
    assert main(["ab", *SMALL, *FAULT, "--vary", "gate=off,events,three", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [run["settings"] for run in data["runs"]] == [
        {"gate": "off"},
        {"gate": "events"},
        {"gate": "three"},
    ]
    assert data["runs"][0]["tiles"] is None
    assert data["runs"][2]["tiles"]["mismatched"] > 0
    gate = moves(data)["gate"]
    assert not gate["moves"]
    assert gate["same_sessions"]
    assert {counts["total"] for counts in gate["corrupted"].values()} == {8}
    assert len({counts["corrupted"] for counts in gate["corrupted"].values()}) == 1


def test_what_the_corruption_moves_with(capsys: pytest.CaptureFixture[str]) -> None:
    """Every combination is run; the corruption depends on the dtype and not on the layout."""
    varied = ("--vary", "index_dtype=bf16,fp8", "--vary", "layout=page_first,layer_first")
    assert main(["ab", *SMALL, *FAULT, *varied, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert len({tuple(run["settings"].values()) for run in data["runs"]}) == 4
    assert [run["exit_code"] for run in data["runs"]] == [1, 1, 0, 0]
    found = moves(data)
    assert found["index_dtype"]["moves"]
    assert not found["layout"]["moves"]
    assert found["index_dtype"]["corrupted"]["fp8"] == {"corrupted": 0, "total": 16}
    assert found["index_dtype"]["corrupted"]["bf16"]["corrupted"] > 0


def test_clean_runs_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a fault every backend is clean, and the table shows it."""
    varied = ("--layout", "layer_first", "--vary", "io_backend=kernel,direct")
    assert main(["ab", *SMALL, *varied]) == 0
    out = capsys.readouterr().out
    assert (
        "corruption does not depend on io_backend: kernel 0/8, direct 0/8; every session is" in out
    )


def test_what_the_engine_does_not_have_is_left_out() -> None:
    """An impossible combination is named; a value that is never possible is an error."""
    planned = plan(
        RunOptions(), variables(["layout=layer_first,page_first", "io_backend=kernel,direct"])
    )
    assert len(planned.possible) == 3
    ((values, why),) = planned.impossible
    assert values == {"layout": "page_first", "io_backend": "direct"}
    assert "direct" in why
    with pytest.raises(ConfigError, match="sideways"):
        plan(RunOptions(), variables(["layout=layer_first,sideways", "io_backend=kernel,direct"]))


def test_a_run_that_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """If one of the runs brings nothing back, the comparison does not pass as clean."""
    small = (
        "--rounds",
        "2",
        "--max-tokens",
        "12",
        "--device-pages",
        "10",
        "--vary",
        "sessions=1,8",
    )
    assert main(["ab", *small]) == 2
    out = capsys.readouterr().out
    assert "proves nothing" in out
    assert (
        "whether corruption depends on sessions is not known, as a run proves nothing: 1 0/1" in out
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("colour=on,off", "expected NAME=A,B with a NAME of gate"),
        ("sessions", "expected NAME=A,B"),
        ("requests=10,20", "add --trace FILE"),
        ("gate=off", "two or more"),
        ("gate=off,off", "two or more"),
        ("gate=off,loud", "one of off, events"),
        ("sessions=4,many", "a whole number"),
        ("layout=page_first,sideways", "sideways"),
    ],
)
def test_what_cannot_be_varied(wrong: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name, a bad value or a single value is a usage error."""
    assert main(["ab", *SMALL, "--vary", wrong]) == 2
    assert says in capsys.readouterr().err


def test_names_are_those_of_the_options() -> None:
    """A variable may be written with dashes, like its option."""
    assert variables(["index-dtype=bf16,fp8", "sessions=4,30"]) == {
        "index_dtype": ("bf16", "fp8"),
        "sessions": (4, 30),
    }
