"""Exit codes: what each means, whatever ends the command, and in which words it is told."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.cli import exits
from hicache_dbg.tracer.cli.exits import CommandError, of_reports
from hicache_dbg.tracer.cli.interrupts import Ending, kept_interrupts
from hicache_dbg.tracer.cli.main import main

reports = st.builds(
    lambda corrupt, verified: SimpleNamespace(
        corrupt=corrupt, tiles=SimpleNamespace(verified=verified)
    ),
    st.booleans(),
    st.integers(0, 2),
)


def test_the_codes_are_those_that_are_documented() -> None:
    """Scripts compare numbers."""
    names = ("OK", "CORRUPT", "USAGE", "MISSING", "FAULTY", "INTERRUPTED")
    assert [getattr(exits, name) for name in names] == [0, 1, 2, 3, 70, 130]
    assert CommandError("x").code == 2


@given(st.lists(reports, max_size=4))
def test_one_corrupt_report_is_corruption_and_one_that_compared_nothing_is_no_proof(
    reports: list[SimpleNamespace],
) -> None:
    """In this order: corruption is told, whatever else was not looked at."""
    code = of_reports(*reports)  # type: ignore[arg-type]
    if any(report.corrupt for report in reports):
        assert code == 1
    elif any(report.tiles.verified == 0 for report in reports):
        assert code == 2
    else:
        assert code == 0


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CommandError("no such run"), 2, "hicache-dbg: no such run\n"),
        (CommandError("no journal", 3), 3, "hicache-dbg: no journal\n"),
        (CommandError("a\x1b[2J\nb"), 2, "hicache-dbg: a\\x1b[2J b\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            3,
            "hicache-dbg: the system refused: [Errno 28] No space left on device\n",
        ),
        (KeyboardInterrupt(), 130, "hicache-dbg: interrupted\n"),
    ],
)
def test_what_ends_the_command_has_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
) -> None:
    """Nothing of it is on stdout, which a program may read."""

    def ends(_argv: object) -> int:
        raise error

    monkeypatch.setattr("hicache_dbg.tracer.cli.main._dispatch", ends)
    assert main([]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 70])
def test_a_verbs_code_is_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """And nothing is said about it."""
    monkeypatch.setattr("hicache_dbg.tracer.cli.main._dispatch", lambda _argv: code)
    assert main([]) == code
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [
        ("typer", 3, "the command needs typer, which is not installed: pip install 'hicache-dbg[cli]'"),
        ("rich.text", 3, "the command needs rich.text, which is not installed"),
        ("hicache_dbg.tracer.gone", 70, "internal error of the command, not a finding"),
    ],
)  # fmt: skip
def test_a_library_that_is_missing_is_a_part_of_the_environment_and_a_module_of_ours_is_a_fault(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    code: int,
    said: str,
) -> None:
    """What to install is named; what we broke is not put down to the user."""

    def absent(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "hicache_dbg.tracer.cli.app":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return plain(name, *arguments, **options)

    plain = __import__
    monkeypatch.setattr("builtins.__import__", absent)
    assert main([]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "begins", "ends"),
    [
        (["no-such-verb"], "no such command 'no-such-verb': expected one of repro, ", ", schema"),
        (["diagnose", "--no-such"], "no such option", " (see hicache-dbg diagnose --help)"),
        (["schema", "--of", "x"], "invalid value for '--of': ", " (see hicache-dbg schema --help)"),
    ],
)
def test_a_misuse_is_one_line_that_says_where_to_look(
    capsys: pytest.CaptureFixture[str], arguments: list[str], begins: str, ends: str
) -> None:
    """In the list of verbs, or in the help of the one that was found."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"hicache-dbg: {begins}")
    assert err.endswith(f"{ends}\n")


@pytest.mark.parametrize(("arguments", "shown"), [([], "diagnose"), (["dashboards"], "export")])
def test_no_verb_at_all_shows_the_help_as_a_misuse(
    capsys: pytest.CaptureFixture[str], arguments: list[str], shown: str
) -> None:
    """A script that forgot it must not go on as if all were well."""
    assert main(arguments) == 2
    assert shown in "".join(capsys.readouterr())


@pytest.mark.parametrize(("number", "word"), [(15, "terminated"), (1, "hung up")])
def test_a_signal_ends_the_command_once_with_its_own_code(number: int, word: str) -> None:
    """A second one does not cut the cleanup short, and none is raised when all is over."""
    ending = Ending()
    assert (ending.code, ending.word, ending.told) == (130, "interrupted", False)
    with pytest.raises(KeyboardInterrupt):
        ending.on_signal(number, None)
    assert (ending.code, ending.word, ending.told) == (128 + number, word, True)
    ending.on_signal(15, None)
    assert ending.code == 128 + number
    over = Ending()
    over.over = True
    over.on_signal(number, None)
    assert not over.told


def test_no_signal_is_sent_when_the_command_is_over() -> None:
    """It would end the process that called it."""
    with kept_interrupts() as ending:
        assert not ending.over
    assert ending.over
    ending.again()
