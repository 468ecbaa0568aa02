"""``HICACHE_DBG_ACTION=raise`` in a run of the command's own."""

import pytest

from hicache_dbg.tracer.cli.main import main

SMALL = ["--sessions", "4", "--rounds", "1", "--max-tokens", "8"]


@pytest.mark.parametrize(
    "verb", [["repro"], ["ab", "--vary", "seed=0,1"]], ids=lambda verb: str(verb[0])
)
def test_a_run_that_a_finding_stops_is_corrupt_and_no_internal_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    """A mirror of the wrong size is refused while the engine is built: one line, and exit code 1."""
    monkeypatch.setenv("HICACHE_DBG_ACTION", "raise")
    assert main([*verb, *SMALL, "--fault", "host_sized_for_fp8"]) == 1
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "HICACHE_DBG_ACTION=raise stopped the run: dsa_index_k.index_k: the host mirror" in said


def test_its_clean_twin_runs_to_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the fault nothing is raised; nothing came back either, which is exit code 2."""
    monkeypatch.setenv("HICACHE_DBG_ACTION", "raise")
    assert main(["repro", *SMALL]) == 2
    assert "stopped the run" not in capsys.readouterr().err
