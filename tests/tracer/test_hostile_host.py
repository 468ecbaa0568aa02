"""What hosts do to whatever runs in their process: exceptions, handlers, defaults, forks, limits."""

import ast
import errno
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pools.forking import held
from tests.tracer.rig import Rig

from hicache_dbg import tracer
from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.events import Health, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.sinks import default_sinks
from hicache_dbg.tracer.switch import listener

ROOT = Path(tracer.__file__).parent


class ThornyError(Exception):
    """An exception that cannot be written down."""

    def __str__(self) -> str:
        raise RuntimeError("nobody may read this")


@pytest.mark.parametrize("checksum", [Checksum.OFF, Checksum.LOADS])
@pytest.mark.parametrize("later", [True, False])
def test_the_host_gets_its_own_exception_back(checksum: Checksum, later: bool) -> None:
    """Whatever its class does when it is asked for its message; the event says what can be said."""
    rig, thorny = Rig(checksum), ThornyError()
    rig.session.probe.describes_later = later

    def fail() -> None:
        raise thorny

    with pytest.raises(ThornyError) as caught:
        rig.session.probe.observe(lambda: [rig.copy(Op.BACKUP, [1], [2])], fail)
    assert caught.value is thorny
    (copied,), _ = rig.finish()
    assert copied.status == "ThornyError: its message raises RuntimeError"


def test_a_handler_of_the_host_that_raises_harms_nobody(internal_errors: list[str]) -> None:
    """Our failure is counted although the host's logging fails on it."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    errors, handler = InternalErrors(), Broken()
    logging.getLogger("hicache_dbg").addHandler(handler)
    try:
        with errors.at("somewhere"):
            raise ValueError("planted")
    finally:
        logging.getLogger("hicache_dbg").removeHandler(handler)
    assert errors.counts() == {"somewhere": 1}
    internal_errors.clear()


def test_a_signal_may_fail_while_a_failure_is_counted(internal_errors: list[str]) -> None:
    """The handler runs on the thread that holds the lock, and must not wait for it."""
    errors = InternalErrors()

    def record() -> None:
        with errors._lock:
            errors.record("handler", ValueError("planted"))

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    internal_errors.clear()


def ends(child: Callable[[], object]) -> bool:
    """Return whether a forked child gets through ``child`` in time."""
    number = os.fork()
    if number == 0:  # pragma: no cover - runs in the child
        threading.Timer(10, os._exit, [1]).start()
        try:
            child()
        finally:
            os._exit(0)
    return os.waitpid(number, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    """Locks that other threads hold at the fork are free in the child."""
    with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.OFF), sinks=[]) as runtime:
        pages, errors = PageAllocator(8, "host"), runtime.session.errors
        pages.free(pages.alloc(1))
        assert isinstance(runtime.attachment, HiCacheAttachment)
        with held(runtime.attachment.lifetimes._pages._in_turn(pages)):
            assert ends(lambda: pages.alloc(1))
        with held(errors._lock):
            assert ends(errors.counts)
        with held(runtime.session._lock):
            assert ends(lambda: runtime.switch(on=False))


def test_every_tensor_of_ours_names_its_device_and_dtype() -> None:
    """Hosts change the defaults: ``torch.set_default_device``, ``with torch.device(...)``, dtypes."""
    makers = {"empty", "zeros", "ones", "full", "tensor", "arange", "as_tensor"}
    unnamed = []
    for file in (ROOT / "digest").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of, name = node.func.value, node.func.attr
            if isinstance(of, ast.Name) and of.id == "torch" and name in makers:
                named = {word.arg for word in node.keywords}
                if not named >= ({"device"} if name == "as_tensor" else {"device", "dtype"}):
                    unnamed.append(f"{file.name}:{node.lineno}")
    assert unnamed == []


def imported(gate: str, *names: str, before: str = "", options: tuple[str, ...] = ()) -> str:
    """Return which of these modules a process has after ``import hicache_dbg``, and what it said."""
    code = f"{before}\nimport sys, hicache_dbg\nprint(*(n for n in {names!r} if n in sys.modules))"
    env = {**os.environ, "HICACHE_DBG": gate}
    run = subprocess.run(
        [sys.executable, *options, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return (run.stdout + run.stderr).strip()


@pytest.mark.parametrize("gate", ["", "0", "off", "armed"])
def test_a_process_that_is_not_traced_imports_next_to_nothing(gate: str) -> None:
    """Neither the wrapping library nor what only tracing needs."""
    heavy = ("wrapt", "torch", "numpy", "multiprocessing", "tempfile", "prometheus_client")
    assert imported(gate, *heavy) == ""


def test_an_import_of_ours_that_fails_does_not_fail_the_hosts() -> None:
    """As in a subinterpreter, or an environment that lacks a part: one line, and tracing stays off."""
    said = imported("1", "hicache_dbg", before="import sys; sys.modules['wrapt'] = None")
    assert said.splitlines()[0] == "hicache_dbg"
    assert "hicache-dbg: cannot start: ModuleNotFoundError: " in said
    assert said.endswith("; tracing stays off")


@pytest.mark.parametrize("gate", ["armed", "1"])
@pytest.mark.parametrize("options", [("-O",), ("-OO",), ("-I",), ("-W", "error"), ("-X", "dev")])
def test_any_mode_of_the_interpreter_will_do(gate: str, options: tuple[str, ...]) -> None:
    """Without asserts and docstrings, isolated, with warnings as errors, in development mode."""
    assert imported(gate, "hicache_dbg", options=options) == "hicache_dbg"


SUBINTERPRETER = """
import _xxsubinterpreters as interpreters
one = interpreters.create(isolated=False)
interpreters.run_string(one, 'import hicache_dbg')
interpreters.destroy(one)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("_xxsubinterpreters") is None, reason="Python 3.13 has other calls"
)
@pytest.mark.parametrize("gate", ["", "armed", "1"])
def test_a_subinterpreter_can_end(gate: str) -> None:
    """With a thread of ours in it, Python would abort the process."""
    env = {**os.environ, "HICACHE_DBG": gate}
    run = subprocess.run([sys.executable, "-c", SUBINTERPRETER], env=env, capture_output=True)
    assert run.returncode == 0
    assert (b"this is a subinterpreter" in run.stderr) == bool(gate)


def test_a_failure_to_detach_does_not_cost_the_end_of_the_recording(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """It is counted, and the last health event says so."""
    sink = MemorySink()
    runtime = Runtime.start(Settings(gate=Gate.ON), sinks=[sink])
    detach = runtime.attachment.detach
    monkeypatch.setattr(runtime.attachment, "detach", lambda: 1 / 0)
    runtime.stop()
    detach()
    last = sink.of(Health)[-1]
    assert (last.closing, last.errors) == (True, {"detach": 1})
    internal_errors.clear()


def test_a_process_without_a_free_descriptor_still_has_sinks_and_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal counts as absent, and the switch says in one line that it cannot listen."""

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", full)
    assert default_sinks(Path("/run/journal")) == ("stderr", "prometheus")
    assert listener._start(lambda _ask, _reply: None) is None
    assert "cannot listen for the switch: [Errno 24]" in capsys.readouterr().err
