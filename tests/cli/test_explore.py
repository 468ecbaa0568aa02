"""``hicache-dbg repro --explore``: its output and exit codes."""

import json
import sys

import pytest

from hicache_dbg.tracer.cli.main import main

FAULT = ("--fault", "all_gates_opened_with_the_first")


def test_a_broken_schedule_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The listing marks both conflicting accesses, and ends with the fix and how to reproduce it."""
    assert main(["repro", "--explore", "1000", *FAULT]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line[:3] for line in lines if line[:3] in {"==>", "-->"}] == ["==>", "-->"]
    assert any(line.startswith("read_before_load: ") for line in lines)
    assert lines[-2].startswith("do: ")
    seed = lines[-1].removeprefix("again: hicache-dbg repro --explore 1 --seed ").split()[0]
    assert main(["repro", "--explore", "1", "--seed", seed, *FAULT]) == 1


def test_json_has_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get the seed, the simplest case, its steps, and the finding as other verbs have it."""
    assert main(["repro", "--explore", "1000", "--json", *FAULT]) == 1
    data = json.loads(capsys.readouterr().out)
    broken = data["broken"]
    assert broken["shrunk"]
    assert len(broken["case"]["operations"]) <= 6
    assert sorted(step["mark"] for step in broken["steps"] if step["mark"]) == ["previous", "this"]
    (finding,) = data["findings"]
    assert finding["class"] == broken["what"] == "read_before_load"


def test_a_fault_that_no_schedule_shows_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Unpinned host memory harms nobody in this cache: exit code 2, with the place where it does."""
    fault = "host_register_refused"
    assert main(["repro", "--explore", "2", "--fault", fault]) == 2
    assert f"hicache-dbg selftest --fault {fault} always injects it" in capsys.readouterr().out


def test_clean_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    """Without findings the exit code is 0."""
    assert main(["repro", "--explore", "20"]) == 0
    assert "20 schedules" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--explore", "0"), "explore"),
        (("--explore", "99999999999999"), "explore"),
        (("--explore", "5", "--sessions", "3"), "explore"),
        (("--explore", "5", "--fault", "no_such_fault"), "no_such_fault"),
    ],
)
def test_what_cannot_be_explored(
    wrong: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A count of zero, an option of another kind of run, or an unknown fault is a usage error."""
    assert main(["repro", *wrong]) == 2
    assert named in capsys.readouterr().err


def test_without_hypothesis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without hypothesis the failing schedule is still shown, unshrunk."""
    for name in [name for name in sys.modules if name.endswith("explore_shrink")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert main(["repro", "--explore", "1000", *FAULT]) == 1
    assert "not shrunk" in capsys.readouterr().out
