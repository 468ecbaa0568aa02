"""Signals that users and supervisors send: the command cleans up and exits as a shell expects."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.handover.pair import require_nixl

from hicache_dbg.tracer.cli.interrupts import kept_interrupts

SMALL = ["--sessions", "12", "--rounds", "3"]
WAIT_S = 100.0


@pytest.fixture(autouse=True)
def _default_signals() -> Iterator[None]:
    """Let signals end a process, also where whoever started the tests ignores them (``nohup``)."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    usual = {signal.SIGINT: signal.default_int_handler}
    before = {
        number: signal.signal(number, usual.get(number, signal.SIG_DFL)) for number in numbers
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _threads(process: "subprocess.Popen[str]", _folder: Path) -> bool:
    return len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1


def _stored(_process: "subprocess.Popen[str]", folder: Path) -> bool:
    return any(path.is_file() for path in folder.glob("hicache-dbg-*/**/*"))


def _handed(_process: "subprocess.Popen[str]", folder: Path) -> bool:
    return any('"copied"' in path.read_text() for path in folder.glob("*/*.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "under_way", "number", "to_all"),
    [
        (["repro", "--explore", "100000"], _threads, signal.SIGHUP, False),
        (["repro", *SMALL, "--storage", "file"], _stored, signal.SIGTERM, False),
        (["repro", *SMALL, "--storage", "file", "--kill"], _stored, signal.SIGINT, True),
        pytest.param(
            ["repro", *SMALL, "--pd"], _handed, signal.SIGHUP, False, marks=pytest.mark.service
        ),
        pytest.param(
            ["repro", *SMALL, "--pd"], _handed, signal.SIGTERM, True, marks=pytest.mark.service
        ),
    ],
    ids=["explore", "storage", "kill", "pd", "pd-all"],
)
def test_a_signal_leaves_nothing_behind(
    tmp_path: Path,
    arguments: list[str],
    under_way: Callable[["subprocess.Popen[str]", Path], bool],
    number: signal.Signals,
    *,
    to_all: bool,
) -> None:
    """No folder, no process, no traceback; ``to_all`` sends it to the children as well."""
    if "--pd" in arguments:
        require_nixl()
    process = subprocess.Popen(
        [sys.executable, "-m", "hicache_dbg", *arguments],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _await(lambda: process.poll() is not None or under_way(process, tmp_path))
        (os.killpg if to_all else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + number, said
        words = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
        assert said == f"hicache-dbg: {words.get(number, 'hung up')}\n"
        assert not list(tmp_path.iterdir())
        _await(lambda: _gone(process.pid))  # multiprocessing's tracker ends behind its parent
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _gone(group: int) -> bool:
    """Return whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _await(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_unwinds_and_later_ones_do_not_disturb_it(number: signal.Signals) -> None:
    """A supervisor sends several; the handlers of before are back afterwards."""
    before = signal.getsignal(number)
    with kept_interrupts() as ending:
        assert not ending.told
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        for later in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(later)
        assert (ending.told, ending.code) == (True, 128 + number)
        with pytest.raises(KeyboardInterrupt):  # it was lost in a finalizer
            ending.again()
    assert signal.getsignal(number) is before


def test_an_ignored_hangup_stays_ignored() -> None:
    """``nohup`` means it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with kept_interrupts():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_is_over_is_not_interrupted() -> None:
    """An interrupt that was lost at its end is not sent again."""
    with kept_interrupts() as ending:
        pass
    ending.again()
    ending.on_signal(signal.SIGTERM, None)
