"""The command as a shell sees it: stable exit codes, one line per error, no traceback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.test_compare import BROKEN, MENDED
from tests.diagnose.test_gather import recorded
from tests.exporters.samples import finding, started

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.repro_output import Outcome
from hicache_dbg.tracer.cli.traced import traced_run

COMMAND = [sys.executable, "-m", "hicache_dbg"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A recording of a corrupt run."""
    return str(recorded(tmp_path, "broken", BROKEN))


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``line`` in a shell, with ``$H`` for the command and its exit status after ``|`` first."""
    return subprocess.run(
        ["bash", "-c", f'H="{" ".join(COMMAND)}"; {line}'],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("more", ["", " --json", " 2>&1"])
def test_whoever_stops_reading_changes_no_exit_code(broken: str, tmp_path: Path, more: str) -> None:
    """Behind ``| head``, a clean run still exits as clean and a corrupt one as corrupt."""
    clean = recorded(tmp_path, "clean", MENDED)
    for place, code in ((broken, 1), (clean, 0)):
        done = shell(f'$H diagnose {place}{more} | true; echo "${{PIPESTATUS[0]}}"')
        assert (done.stdout, done.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize("verb", ["faults", "schema", "--help", "diagnose"])
def test_output_that_cannot_be_kept_is_one_line(broken: str, verb: str) -> None:
    """A full disk is a missing part of the environment, not corruption."""
    done = shell(f"$H {verb} {broken if verb == 'diagnose' else ''} > /dev/full")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("hicache-dbg: cannot write to standard output: No space left")


def test_closed_streams_change_no_exit_code(broken: str) -> None:
    """A daemon may run with closed streams."""
    assert shell(f"$H diagnose {broken} >&- 2>&-").returncode == 1


@pytest.mark.parametrize("verb", ["ab --help", "doctor", "diagnose"])
def test_a_terminal_without_an_alphabet_gets_what_it_can_show(broken: str, verb: str) -> None:
    """A limited encoding does not end the command."""
    done = shell(f"$H {verb} {broken if verb == 'diagnose' else ''}", **ASCII)
    assert done.stdout.isascii()
    assert (done.returncode, done.stderr) == (int(verb == "diagnose"), "")


def test_json_is_utf_8_whatever_the_terminal(tmp_path: Path) -> None:
    """JSON keeps every character."""
    place = recorded(tmp_path, "run", [started(), finding(message="größer als 頁")])
    done = shell(f"$H diagnose {place} --json", **ASCII)
    assert json.loads(done.stdout)["findings"][0]["message"] == "größer als 頁"


def test_a_text_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request id with control characters is shown escaped; it cannot forge a verdict."""
    text = "x\x1b[2J\nverdict: every copy is proven good"
    place = recorded(tmp_path, "run", [started(), finding(message=text, pool=text)])
    assert main(["diagnose", str(place)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[2J" in out
    assert not [line for line in out.splitlines() if line.startswith("verdict: every")]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["diagnos"], 2, "no such command 'diagnos'"),
        (["diagnos"], 2, "did you mean diagnose?"),
        (["diagnose", "--jurnal"], 2, "no such option: --jurnal"),
        (["diagnose", "--jurnal"], 2, "(see hicache-dbg diagnose --help)"),
        (["diagnose", "PLACE", "--since", "1h"], 2, "add --journal"),
        (
            ["bundle", "PLACE"],
            2,
            "missing option '--output' / '-o' (see hicache-dbg bundle --help)",
        ),
        (["dashboards", "import"], 2, "no such command 'import'"),
        (
            ["repro", "--gate", "ajar"],
            2,
            "invalid value for '--gate': 'ajar' is not one of 'off', ",
        ),
        (["repro", "--requests", "3"], 2, "add --trace FILE"),
        (
            ["repro", "--fault", "stored_bit_flips"],
            2,
            "add --storage file, or run hicache-dbg self",
        ),
        (
            ["repro", "--pd", "--fault", "stored_bit_flips"],
            2,
            "does not have; run hicache-dbg self",
        ),
        (["repro", "--fault", "tile_lost_on_the_wire"], 2, "add --pd, or run hicache-dbg selftest"),
        (
            ["repro", "--fault", "rank_with_fewer_pages"],
            2,
            "does not have; run hicache-dbg selftest",
        ),
        (["selftest", "--fault", "bit_flip_in_index_k"], 2, "did you mean bit_flips_in_index_k"),
        (["diagnose", "PLACE", "--html", "none/x.html"], 2, "the folder none does not exist"),
        (["diagnose", "PLACE", "--html", "."], 2, "is a folder: name a file in it"),
        (["diagnose", "PLACE", "--hypothesis", "none.py"], 2, "there is no file none.py"),
        (["bundle", "PLACE", "-o", "none/x.tar.gz"], 2, "the folder none does not exist"),
        (["repro", "--record", "FILE"], 2, "it is a file, expected a folder"),
        (["run", "--record", "FILE", "--", "true"], 2, "it is a file, expected a folder"),
        (["run", "--", "./none"], 3, "not found on PATH, or not executable"),
    ],
)
def test_every_error_is_one_line_that_says_what_to_do(
    broken: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    """Each error says what happened, with which values, and what was expected."""
    named = {"PLACE": broken, "FILE": broken}
    assert main([named.get(argument, argument) for argument in arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hicache-dbg: ")
    assert words in line


def test_a_run_of_which_nothing_was_compared_is_not_called_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 needs evidence; a run without comparisons has none, alone or beside another."""
    nothing = str(recorded(tmp_path, "nothing", [started(mirrors=())]))
    clean = str(recorded(tmp_path, "clean", MENDED))
    assert main(["diagnose", nothing]) == 2
    assert "too little was checked to say anything" in capsys.readouterr().out
    assert main(["diagnose", clean, nothing]) == 2
    assert main(["diagnose", clean]) == 0


def test_what_the_system_refuses_is_one_line(
    broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no folder for temporary files."""

    def refuse(**_options: str) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert main(["diagnose", broken]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hicache-dbg: the system refused: ")


def test_a_hypothesis_that_ends_the_interpreter_ends_nothing(
    broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code does not become the command's."""
    mine = tmp_path / "mine.py"
    mine.write_text("raise SystemExit(0)\n")
    assert main(["diagnose", broken, "--hypothesis", str(mine)]) == 2
    assert "mine.py failed: SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("after_s", [0.3, 1.5, 2.2])
def test_interrupted_is_one_line_and_130(after_s: float) -> None:
    """Ctrl-C leaves no traceback, even during the import of a verb or between two threads."""
    process = subprocess.Popen(
        [*COMMAND, "repro", "--explore", "1000000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(after_s)
    said = ""
    try:
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):  # Python lost it in a callback: once more
                _, said = process.communicate(timeout=15)
                break
    finally:
        process.kill()
    assert said.strip() == "hicache-dbg: interrupted"
    # Where a library ran Python while it was imported, Python itself ends by the signal; a shell
    # calls both 130.
    assert process.returncode in {130, -signal.SIGINT}


def test_a_fault_of_the_command_is_not_taken_for_corruption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error has its own exit code, and its traceback is shown."""

    def broken(_argv: object) -> int:
        raise ValueError("not thought of")

    monkeypatch.setattr("hicache_dbg.tracer.cli.main._dispatch", broken)
    assert main([]) == 70
    *traced, last = capsys.readouterr().err.splitlines()
    assert traced[-1] == "ValueError: not thought of"
    assert last.startswith("hicache-dbg: internal error of the command, not a finding")


def test_an_interrupt_that_python_wraps_is_one_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 wraps an interrupt during class creation in a RuntimeError."""

    def import_interrupted(_argv: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("hicache_dbg.tracer.cli.main._dispatch", import_interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "hicache-dbg: interrupted\n"


def test_runs_that_were_interrupted_prove_nothing_about_what_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted comparison says nothing about what the corruption depends on."""

    def interrupted(*arguments: Any, **options: Any) -> Outcome:
        outcome = traced_run(*arguments, **options)
        return replace(outcome, result=replace(outcome.result, interrupted=True))

    monkeypatch.setattr("hicache_dbg.tracer.cli.ab_runs.traced_run", interrupted)
    few = ["--sessions", "1", "--rounds", "1", "--max-tokens", "2", "--ctx", "64"]
    assert main(["ab", "--vary", "gate=off,events", *few]) == 130
    out = capsys.readouterr().out
    assert "interrupted in run 1 of 2" in out
    assert "does not depend" not in out
    assert main(["ab", "--vary", "gate=off,events", *few, "--json"]) == 130
    told = json.loads(capsys.readouterr().out)
    assert (told["interrupted"], told["moves"]) == (True, [])


def test_a_run_is_recorded_beside_the_sinks_that_the_environment_names(tmp_path: Path) -> None:
    """A requested recording is made in addition to the named sinks, and its folder is created."""
    folder = tmp_path / "deep" / "folder"
    script = "import os; print(os.environ['HICACHE_DBG_SINKS'], os.environ['HICACHE_DBG_DIR'])"
    done = shell(f'$H run --record {folder} -- python -c "{script}"', HICACHE_DBG_SINKS="stderr")
    assert done.stdout.split() == ["stderr,recording", str(folder)]
    assert folder.is_dir()


def test_without_standard_error_no_error_goes_into_the_output() -> None:
    """Who closes it does not want the message among the results."""
    done = shell("$H nosuch 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        ("echo a --sinks b --help --record c -x", "a --sinks b --help --record c -x"),
        ("--sinks stderr echo --checksum", "--checksum"),
        ("-- echo a -- b", "a -- b"),
    ],
)
def test_a_command_runs_as_it_would_alone(arguments: str, out: str) -> None:
    """Its options are its own, also without --."""
    done = shell(f"$H run {arguments}")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, out, "")


def test_a_misspelt_option_of_run_is_not_taken_for_a_command() -> None:
    """What stands before the command is ours."""
    done = shell("$H run --snks stderr echo a")
    assert done.returncode == 2
    assert "no such option: --snks" in done.stderr


#: Prints many lines, one with a byte that is no text.
JOURNALCTL = """#!/bin/sh
case "$*" in *--lines=1*) n=1;; *) n=20000;; esac
printf '[HICACHE_DBG] pool=\\377 op=load token_granular=False layout=x h=1 d=2 slot_page=4\\n'
exec seq -f '[HICACHE_DBG] pool=p op=load token_granular=False layout=x h=%.0f d=2 slot_page=4' $n
"""


@pytest.fixture
def journalctl(tmp_path: Path) -> str:
    """A search path with a stand-in for journalctl."""
    program = tmp_path / "journalctl"
    program.write_text(JOURNALCTL)
    program.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.fixture(params=[False, True], ids=["", "blocked"])
def sigpipe(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGPIPE as usual, and blocked in what is started, as a library may leave it behind."""
    blocked = {signal.SIGPIPE} if request.param else set[signal.Signals]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("sigpipe")
def test_a_journal_that_nobody_reads_on_is_no_failure(journalctl: str) -> None:
    """Behind ``| head``, logs ends as it would have."""
    done = shell('$H logs | head -2 | tail -1; echo "${PIPESTATUS[0]}"', PATH=journalctl)
    line, code = done.stdout.splitlines()
    assert "pool=p op=load" in line
    assert code == "0"
    assert "ended with status" not in done.stderr


def test_a_count_that_breaks_is_not_an_empty_journal(journalctl: str, tmp_path: Path) -> None:
    """Without room to sort, nothing is known of the paths."""
    program = tmp_path / "sort"
    program.write_text("#!/bin/sh\necho no room >&2; exit 2\n")
    program.chmod(0o755)
    done = shell("$H logs --paths", PATH=journalctl)
    assert done.returncode == 2
    assert "no room" in done.stderr
    assert "holds no such" not in done.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_line_that_is_no_text_hides_no_path(journalctl: str, locale: str) -> None:
    """Anyone may write to the journal."""
    done = shell("$H logs --paths --json", PATH=journalctl, LC_ALL=locale)
    assert done.returncode == 0, done.stderr
    assert [row["count"] for row in json.loads(done.stdout) if row["pool"] == "p"] == [20000]
