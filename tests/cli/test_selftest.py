"""``hicache-dbg selftest`` as a subprocess: the matrix, the table, the exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_dbg.repro.faults import registry
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose.meanings import MEANINGS
from hicache_dbg.tracer.events import FaultClass

CHOSEN = ["--fault", "sidecar_not_loaded", "--fault", "bit_flips_in_index_k"]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Return a function that makes one fault the only one."""

    def install(fault: Fault) -> None:
        monkeypatch.setattr(registry, "ALL_FAULTS", {fault.name: fault})

    return install


def test_the_matrix_has_a_row_for_each_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """Every promised field is there, and the exit code is 0."""
    assert main(["selftest", *CHOSEN, "--json"]) == 0
    matrix = json.loads(capsys.readouterr().out)["matrix"]
    assert [row["fault"] for row in matrix] == CHOSEN[1::2]
    assert [row["class"] for row in matrix] == ["sidecar_missing", "bit_flip"]
    for row in matrix:
        assert (row["found"], row["named"], row["pool_right"], row["pages_right"]) == (True,) * 4
        assert isinstance(row["before_first_read"], bool)
        assert row["clean_findings"] == 0
        assert row["wrong_tiles"] > 0


def test_the_table_ends_in_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows which check found what, and how many faults of how many were found."""
    assert main(["selftest", *CHOSEN]) == 0
    out = capsys.readouterr().out
    assert "sidecar_not_loaded" in out
    assert out.strip().endswith(
        "2 of 2 faults of 2 classes found and named correctly; 0 findings in the clean runs"
    )


def test_a_fault_that_nobody_finds_fails_the_selftest(
    capsys: pytest.CaptureFixture[str], only: Callable[[Fault], None]
) -> None:
    """A fault without effect is not found: exit code 1, and the table says so."""
    only(Fault(name="nothing", cls=FaultClass.BIT_FLIP, summary="changes nothing"))
    assert main(["selftest"]) == 1
    assert "0 of 1 fault of" in capsys.readouterr().out


def test_a_wrong_name_fails_the_selftest(
    capsys: pytest.CaptureFixture[str], only: Callable[[Fault], None]
) -> None:
    """Finding a fault under another class's name is not good enough."""
    real = registry.ALL_FAULTS["sidecar_not_loaded"]
    only(Fault(name="misnamed", cls=FaultClass.BIT_FLIP, summary="another's", install=real.install))
    assert main(["selftest", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["matrix"]
    assert (row["found"], row["named"]) == (False, False)


def test_an_unknown_fault_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says where the names are listed."""
    assert main(["selftest", "--fault", "nope"]) == 2
    assert "hicache-dbg faults lists" in capsys.readouterr().err


def test_faults_lists_every_fault_with_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    """``hicache-dbg faults`` lists what selftest rehearses, and marks what repro can inject."""
    assert main(["faults", "--json"]) == 0
    rows = {row["fault"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(registry.ALL_FAULTS)
    assert {name for name, row in rows.items() if row["repro"]} == set(registry.FAULTS)
    assert {row["class"] for row in rows.values()} <= {cls.value for cls in FaultClass}


def test_what_a_class_means_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The command, the HTML page and the documentation describe every class in the same words."""
    assert set(MEANINGS) == set(FaultClass)
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    assert main(["faults"]) == 0
    out = capsys.readouterr().out
    for cls, meaning in MEANINGS.items():
        assert f"| `{cls}` | {meaning} |" in page
        assert f"{cls}: {meaning}\n" in out
