"""Tracing is switched on and off in a running process by its own user, and leaves nothing behind."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from tests.test_gate import SCRIPT

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.transfer import TransferEngine
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.on import finish
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.report import build_report
from hicache_dbg.tracer.switch import client, listener
from hicache_dbg.tracer.switch.client import SwitchError, ask
from hicache_dbg.tracer.switch.messages import Ask, Reply, address, peer, receive, send
from hicache_dbg.tracer.switch.switchboard import Switchboard

WAIT_S = 60.0
COMMAND = [sys.executable, "-m", "hicache_dbg"]
QUIET = {"HICACHE_DBG_SINKS": "stderr", "HICACHE_DBG_LINES": "paths"}


def listens(pid: int) -> bool:
    """Return whether the process's listener answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(address(pid)) == 0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an armed, untraced repro until it is done."""
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [*COMMAND, "repro", "--gate", "off", "--sessions", "30", "--json"],
            stdout=out,
            stderr=err,
            text=True,
            env=os.environ | {"HICACHE_DBG": "armed"},
        )
    deadline = time.monotonic() + WAIT_S
    while not (listens(process.pid) and "hicache_dbg.pools" in _mapped(process.pid)):
        assert process.poll() is None, (tmp_path / "err").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def _mapped(pid: int) -> str:
    """Return the process's answer to a request that it refuses, which names what is not loaded yet."""
    try:
        list(ask(pid, Ask(do="on", settings={"HICACHE_DBG_CHECKSUM": "nothing"})))
    except SwitchError as error:
        return "hicache_dbg.pools" if "HICACHE_DBG_CHECKSUM" in str(error) else ""
    return ""


def test_a_running_repro_is_traced_for_a_while_and_ends_as_if_it_had_not_been(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It is attached to, copies are seen, it is detached with a report, and the repro ends clean."""
    (first,) = ask(running.pid, Ask(do="on", settings=QUIET))
    deadline = time.monotonic() + WAIT_S
    while "op=load" not in (tmp_path / "err").read_text():
        assert running.poll() is None, "it ended before a load was seen"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (last,) = ask(running.pid, Ask(do="off"))
    assert first.text.startswith(f"tracing process {running.pid}")
    assert any("unwitnessed" in note for note in first.notes)
    assert last.report is not None
    assert last.report["tiles"]["moved"] > 0
    assert not last.report["findings"], last.report["findings"]
    assert not last.report["internal_errors"]
    assert running.wait(WAIT_S) == 0, (tmp_path / "err").read_text()
    sessions = json.loads((tmp_path / "out").read_text())["sessions"]
    assert (sessions["corrupted"], sessions["error"]) == (0, 0)


def test_a_run_with_an_end_reports_by_itself(running: subprocess.Popen[str]) -> None:
    """There are two replies: at the begin, and the report when the time is over."""
    first, last = ask(running.pid, Ask(do="on", settings=QUIET, for_s=0.5))
    assert (first.report, last.done) == (None, True)
    assert last.report is not None
    with pytest.raises(SwitchError, match="off already"):
        list(ask(running.pid, Ask(do="off")))


def test_an_armed_script_imports_nothing_and_says_nothing() -> None:
    """Armed means one sleeping thread: no torch, no exporter, no output."""
    code = (
        "import hicache_dbg, sys, threading\n"
        "print([t.name for t in threading.enumerate()][1:], [n for n in ('torch', 'numpy', "
        "'hicache_dbg.pools', 'hicache_dbg.tracer.runtime', 'prometheus_client') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"HICACHE_DBG": "armed"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "['hicache-dbg-switch'] []"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env=os.environ | {"HICACHE_DBG": "armed"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_switching_restores_the_very_functions() -> None:
    """After off, the classes hold the objects from before on; a second round works too."""
    board = Switchboard()
    before = {owner: dict(owner.__dict__) for owner in (TransferEngine, HiCacheController)}
    for _ in range(2):
        said: list[Reply] = []
        board.answer(Ask(do="on", settings=QUIET), said.append)
        board.answer(Ask(do="on", settings=QUIET), said.append)
        assert TransferEngine.backup is not before[TransferEngine]["backup"]
        board.answer(Ask(do="off"), said.append)
        board.answer(Ask(do="off"), said.append)
        assert [reply.done for reply in said] == [True, False, True, False]
        assert said[2].report is not None
        for owner, held in before.items():
            assert all(owner.__dict__[name] is value for name, value in held.items())


@pytest.fixture
def armed() -> Iterator[int]:
    """The pid of a small process that listens."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import hicache_dbg, time; print('up', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HICACHE_DBG": "armed"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"import os\n", "not a request"),
        (b'{"do": "exec"}\n', "'exec' is not a request, expected on or off"),
        (b'{"do": "on", "code": "1"}\n', "unknown field"),
        (b'{"do": "on"}\n', "holds no pools"),
    ],
)
def test_a_listener_takes_requests_and_nothing_else(armed: int, line: bytes, says: str) -> None:
    """Anything else is refused in one sentence, and the next request is served."""
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address(armed))
            connection.sendall(line)
            reply = json.loads(receive(connection, WAIT_S))
        assert reply["done"] is False
        assert says in reply["text"]


def test_another_user_is_refused(armed: int) -> None:
    """The kernel identifies the client; only the process's own user and root are served."""
    code = (
        "import os, socket\nos.setuid(65534)\n"
        "with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:\n"
        f"    connection.connect({address(armed)!r})\n"
        "    print(connection.recv(4096).decode())\n"
    )
    if os.geteuid() != 0:
        pytest.skip("changing the user needs root")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "user 65534 may not switch" in json.loads(done.stdout)["text"]


def test_a_client_that_goes_away_leaves_the_listener_alone(armed: int) -> None:
    """A connection closed in the middle of a line affects nothing else."""
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address(armed))
            connection.sendall(b'{"do":')
    with pytest.raises(SwitchError, match="holds no pools"):
        list(ask(armed, Ask(do="on")))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["on", "--pid", str(os.getppid())], 3, "start it with HICACHE_DBG=armed"),
        (["off", "--pid", "4194304"], 3, "there is no process"),
        (["off", "--pid", "99999999999"], 3, "there is no process 99999999999"),
        (["off", "--pid", "0"], 3, "there is no process 0"),
        (["on", "--pid", "1", "--for", "soon"], 2, "expected a time such as 60s"),
        (["on", "--pid", "1", "--for", "0s"], 2, "--for is '0s', expected a time"),
    ],
)
def test_the_command_says_in_one_line_what_was_wrong(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of the kind of error."""
    assert main(arguments) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_process_that_speaks_for_another_is_not_trusted() -> None:
    """A process that binds another one's address gets no request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(address(1))
        server.listen()
        with pytest.raises(SwitchError, match="in the name of 1"):
            list(ask(1, Ask(do="off")))


class Answered(threading.Thread):
    """A listener in this process that replies the same bytes to everybody unread, and closes."""

    def __init__(self, server: socket.socket, line: bytes) -> None:
        super().__init__()
        self._server, self._line = server, line
        server.bind(address(os.getpid()))
        server.listen()
        self.start()

    def run(self) -> None:
        """Answer once."""
        connection, _ = self._server.accept()
        with connection:
            connection.sendall(self._line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"done": false, "text": "user 1 may not"}\n', "user 1 may not"),
        (b"hello\n", "of another version"),
    ],
)
def test_a_refusal_before_the_request_is_heard_is_told(
    line: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener has closed before the request is sent: its reply is read all the same."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        there = Answered(server, line)

        def late(connection: socket.socket) -> tuple[int, int]:
            there.join(WAIT_S)
            return peer(connection)

        monkeypatch.setattr(client, "peer", late)
        with pytest.raises(SwitchError, match=says):
            list(ask(os.getpid(), Ask(do="off")))


def test_a_request_that_fails_is_answered() -> None:
    """On any failure in the host the client is told the error, not that the process has ended."""

    def fails(_request: Ask, _reply: object) -> None:
        raise RuntimeError("no such stream")

    ours, theirs = socket.socketpair()
    with ours:
        send(ours, Ask(do="off"))
        listener._talk(theirs, fails)
        reply = json.loads(receive(ours, WAIT_S))
    assert reply["done"] is False
    assert reply["text"] == "failed: RuntimeError: no such stream"


def test_a_host_without_descriptors_keeps_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """If accept fails, the listener pauses before it retries."""
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        raise SystemExit  # seen enough

    monkeypatch.setattr(time, "sleep", rest)
    closed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    closed.close()  # accepting on it fails at once, as it does without a free descriptor
    with pytest.raises(SystemExit):
        listener._serve(closed, lambda _request, _reply: None)
    assert rests == [listener.PAUSE_S]


def test_a_host_without_threads_keeps_its_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started for a connection, the listener survives and serves later ones."""
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        raise SystemExit  # seen enough

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(time, "sleep", rest)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("")  # an abstract name of the kernel's choice
        server.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(server.getsockname())
            with pytest.raises(SystemExit):
                listener._serve(server, lambda _request, _reply: None)
    assert rests == [listener.PAUSE_S]


@pytest.mark.parametrize("seconds", [-1.0, 1e15, float("inf"), float("nan")])
def test_a_span_that_nobody_could_wait_for_is_refused(seconds: float) -> None:
    """It is refused before anything is attached: such a run would never end."""
    replies: list[Reply] = []
    Switchboard().answer(Ask(do="on", for_s=seconds), replies.append)
    (reply,) = replies
    assert not reply.done
    assert "expected 0 to 2.6784e+06 s" in reply.text


def test_messages_come_back_as_they_were_sent() -> None:
    """They arrive unchanged, at any length and in any number of pieces."""
    ours, theirs = socket.socketpair()
    message: Any = Reply(done=True, text="x" * 100_000)
    with ours, theirs:
        theirs.settimeout(WAIT_S)
        thread = threading.Thread(target=send, args=(theirs, message))
        thread.start()
        assert json.loads(receive(ours, WAIT_S))["text"] == message.text
        thread.join()


FORKED = """
import os, sys
from hicache_dbg.tracer.switch.listener import listen
listen(lambda ask, reply: None)
child = os.fork()
if child == 0:
    print(os.getppid(), os.getpid(), flush=True)
    sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_answer_in_its_parents_name() -> None:
    """A worker that outlives its parent blocks no client, and listens under its own pid."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        parent, child = map(int, process.stdout.readline().split())
        process.wait(WAIT_S)
        assert (listens(parent), listens(child)) == (False, True)


def test_the_report_of_a_process_that_runs_older_code_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The package may be upgraded under a server: its report lacks what was added since."""
    report = msgspec.to_builtins(build_report(Evidence()))
    del report["advice"]
    for answer in report["hypotheses"]:
        answer.pop("cause", None)
    with pytest.raises(typer.Exit):
        finish(Reply(done=True, text="over", report=report), as_json=False)
    assert "verdict: " in capsys.readouterr().out


def test_a_run_that_was_ended_early_does_not_end_the_next() -> None:
    """A late timer of an ended run does not end the run that followed."""
    board, first, second = Switchboard(), threading.Event(), threading.Event()
    on = Ask(do="on", settings=QUIET)
    assert board._on(on, first).done
    assert board._off().done
    assert board._on(on, second).done
    assert not board._off(first).done
    assert not second.is_set()
    assert board._off(second).done


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_with_an_end_ends_in_a_forked_child_too() -> None:
    """A worker that was forked meanwhile runs as before at the same time as its parent."""
    board, bare, said = Switchboard(), vars(TransferEngine)["backup"], list[Reply]()
    on = Ask(do="on", settings=QUIET, for_s=0.5)
    parent = threading.Thread(target=lambda: board.answer(on, said.append))
    parent.start()
    while not said:
        time.sleep(0.001)
    child = os.fork()
    if not child:
        board.continue_in_child()
        deadline, over = time.monotonic() + 20, False
        while not over and time.monotonic() < deadline:
            time.sleep(0.01)
            over = vars(TransferEngine)["backup"] is bare
        os._exit(0 if over else 1)
    parent.join(WAIT_S)
    assert said[-1].report is not None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
