"""Comparison of runs: what is new, gone, changed."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.test_gather import LOAD, recorded
from tests.exporters.samples import copied, finding, health, started
from tests.tracer.checks.statements import collective, word

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.events import Event

BROKEN: list[Event] = [started(), copied(), copied(**LOAD, verified=1, mismatched=7), finding()]
MENDED: list[Event] = [
    started(mirrors=()),
    *[copied() for _ in range(3)],
    copied(**LOAD, verified=8),
    copied(**LOAD, token_granular=True, verified=8),
]


def compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, list[str]]:
    """Return exit code and output of comparing the broken run with the fixed one."""
    places = [str(recorded(tmp_path, name, run)) for name, run in (("a", BROKEN), ("b", MENDED))]
    return main(["diagnose", *places, *options]), capsys.readouterr().out, places


def test_two_runs_differ_in_what_was_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding is gone, the share of equal tiles changed, a path is new; run length is ignored."""
    code, out, places = compared(tmp_path, capsys, "--json")
    told = json.loads(out)
    rows = {(row["kind"], row["what"]): row for row in told["rows"]}
    assert code == 1
    assert told["runs"] == places
    gone = rows["finding", "row_width index_k.key backup"]
    assert (gone["change"], gone["values"]) == ("gone", ["expected 256, got 132", "-"])
    changed = rows["tiles", "deepseek_v4_c128 load"]
    assert changed["values"] == ["verified 12.5%, mismatched 87.5%", "verified 100.0%"]
    assert rows["path", "deepseek_v4_c128 load token_granular=True"]["change"] == "new"
    assert rows["tiles", "deepseek_v4_c128 backup"]["change"] == "same"


def test_the_table_shows_what_differs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal rows are counted, not listed."""
    code, out, _ = compared(tmp_path, capsys)
    assert code == 1
    assert "expected 256, got 132" in " ".join(out.split())
    assert "deepseek_v4_c128 backup" not in out
    assert "the same" in out


def test_a_run_differs_in_nothing_from_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row, and exit 0 if the run is clean."""
    place = str(recorded(tmp_path, "a", MENDED))
    assert main(["diagnose", place, place]) == 0
    assert capsys.readouterr().out.startswith("0 different, ")


def test_a_cause_whose_finding_is_in_another_part_is_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later part begins with the geometry, which confirms the cause: the exit code says so too."""
    part = recorded(tmp_path, "run.0005", [started(), copied(**LOAD, verified=8)])
    assert main(["diagnose", str(part), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["findings"], told["hypotheses"][0]["cause"]) == ([], "row_width")


def test_together_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recordings of two ranks are added up instead of compared."""
    places = [
        str(
            recorded(
                tmp_path,
                f"rank{rank}",
                [started(rank=rank, mirrors=()), copied(rank=rank), health(rank=rank)],
            )
        )
        for rank in range(2)
    ]
    assert main(["diagnose", "--together", *places, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["tiles"]["witnessed"] == 14
    (answer,) = [one for one in told["hypotheses"] if one["name"] == "rank_diverges"]
    assert answer["evidence"] == "ranks 0, 1 agree"


def test_a_recording_named_twice_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named directly, by a link and by its folder, its tiles and calls count once."""
    calls: list[Event] = [collective("x"), collective("y")]
    first = recorded(tmp_path, "rank0", [started(mirrors=()), copied(), *calls])
    recorded(
        tmp_path,
        "rank1",
        [started(rank=1, mirrors=()), collective("x", 1), collective("y", 1), word(1)],
    )
    (tmp_path / "link").symlink_to(first)
    places = [str(first), str(tmp_path), str(tmp_path / "link")]
    assert main(["diagnose", "--together", *places, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["tiles"]["witnessed"] == 7


def test_ranks_that_nobody_compared_do_not_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of two ranks is not joined unless requested: whether they agree stays open."""
    for rank in range(2):
        recorded(tmp_path, f"rank{rank}", [started(rank=rank, mirrors=()), copied(rank=rank)])
    assert main(["diagnose", str(tmp_path), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["hypotheses"]
    (answer,) = [one for one in told if one["name"] == "rank_diverges"]
    assert answer["verdict"] == "undecided"


def test_findings_of_two_components_are_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A component that breaks in the second run is new, even if another one broke before."""
    old, new = finding(component="key"), finding(component="scale")
    places = [str(recorded(tmp_path, name, run)) for name, run in (("a", [old]), ("b", [new, old]))]
    assert main(["diagnose", *places, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["change"] for row in rows if row["kind"] == "finding"} == {"new", "same"}


@pytest.mark.parametrize("arguments", [[], ["--journal", "run"]])
def test_recordings_or_the_journal(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Naming neither or both is a usage error of one line."""
    assert main(["diagnose", *arguments]) == 2
    assert "name recordings to read, or --journal" in capsys.readouterr().err


def test_a_rank_that_differs_is_not_hidden_by_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both geometries of a pool are told, and so are both findings of one class and operation."""
    (one,) = started().mirrors
    (part,) = one.host.components
    wider = msgspec.structs.replace(part, slot_bytes=part.slot_bytes + 1)
    host = msgspec.structs.replace(one.host, components=(wider,))
    other = msgspec.structs.replace(one, host=host)
    ends = [finding(got=got, expected="x", check=check) for got, check in (("1", "a"), ("2", "b"))]
    runs: dict[str, list[Event]] = {
        "a": [started(mirrors=(one,)), ends[1]],
        "b": [started(mirrors=(other,)), started(rank=1, mirrors=(one,)), *ends],
    }
    places = [str(recorded(tmp_path, name, run)) for name, run in runs.items()]
    assert main(["diagnose", *places, "--json"]) == 1
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    row = rows[f"{one.pool} host"]
    assert row["change"] == "changed"
    assert f"{wider.slot_bytes} B/slot" in row["values"][1]
    assert row["values"][0] in row["values"][1].split("; also ")
    (found,) = [row for row in rows.values() if row["kind"] == "finding"]
    assert found["values"] == ["expected x, got 2", "expected x, got 1; also expected x, got 2"]
