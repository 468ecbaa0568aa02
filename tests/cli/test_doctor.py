"""``hicache-dbg doctor``: every part is really checked, and only required parts can be missing."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hicache_dbg.tracer.attach.sglang import survey
from hicache_dbg.tracer.cli import doctor_checks
from hicache_dbg.tracer.cli.doctor_checks import examine
from hicache_dbg.tracer.cli.doctor_parts import State
from hicache_dbg.tracer.cli.main import main


def states(**environ: str) -> dict[str, tuple[State, str]]:
    """Return state and detail of each part under these variables."""
    return {part.name: (part.state, part.detail) for part in examine(environ)}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A listening TCP socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def port(listening: socket.socket) -> int:
    """Return its port."""
    number: int = listening.getsockname()[1]
    return number


@pytest.fixture
def closed_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Return exit code and JSON of the verb."""
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_with_nothing_asked_nothing_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a machine lacks is absent, not missing, until a variable requires it: exit 0."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    code, told = doctor(capsys)
    assert (code, told["missing"]) == (0, [])
    seen = {part["name"]: part for part in told["parts"]}
    assert torch.__version__ in seen["torch"]["detail"]
    assert seen["hicache-dbg"]["state"] == "ok"


def test_what_is_asked_for_and_absent_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit 3, and the part that does not work is named with what to do."""
    monkeypatch.setenv("HICACHE_DBG_SINKS", "journald")
    monkeypatch.setenv("HICACHE_DBG_JOURNALD_SOCKET", str(tmp_path / "socket"))
    code, told = doctor(capsys)
    assert (code, told["missing"]) == (3, ["journald"])
    (part,) = (part for part in told["parts"] if part["name"] == "journald")
    assert str(tmp_path / "socket") in part["detail"]
    assert "HICACHE_DBG_JOURNALD_SOCKET" in part["advice"]


def test_a_bad_variable_is_a_part_that_is_missing() -> None:
    """The error of the settings is reported and every other part is still checked."""
    seen = states(HICACHE_DBG_QUEUE="many")
    assert seen["gate"][0] is State.MISSING
    assert "HICACHE_DBG_QUEUE='many'" in seen["gate"][1]
    assert seen["torch"][0] is State.OK


def test_a_journald_socket_is_one_that_answers(tmp_path: Path) -> None:
    """A listening datagram socket is ok; a socket file without a listener is not."""
    path = tmp_path / "socket"
    asked = {"HICACHE_DBG_SINKS": "journald", "HICACHE_DBG_JOURNALD_SOCKET": str(path)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        assert states(**asked)["journald"][0] is State.OK
    assert path.exists()
    assert states(**asked)["journald"][0] is State.MISSING


def test_a_port_in_use_is_named(port: int) -> None:
    """Of the ports of all ranks, the one in use is named."""
    seen = states(HICACHE_DBG_PROMETHEUS_PORT=str(port - 1), WORLD_SIZE="2")
    assert seen["prometheus port"] == (State.MISSING, f"0.0.0.0:{port}: Address already in use")


def test_a_port_is_tried_at_its_own_address(port: int) -> None:
    """A port in use at another local address is free at the requested one."""
    elsewhere = states(HICACHE_DBG_PROMETHEUS_PORT=f"127.0.0.2:{port}")
    assert elsewhere["prometheus port"] == (State.OK, f"127.0.0.2:{port}: free")
    foreign = states(HICACHE_DBG_PROMETHEUS_PORT=f"203.0.113.9:{port}")
    assert foreign["prometheus port"][0] is State.MISSING
    assert "Cannot assign requested address" in foreign["prometheus port"][1]


def test_ports_end_at_65535() -> None:
    """A rank whose port would exceed the last one is reported, and does not break the check."""
    seen = states(HICACHE_DBG_PROMETHEUS_PORT="65535", WORLD_SIZE="2")
    assert seen["prometheus port"][0] is State.MISSING
    assert "65536: no such port" in seen["prometheus port"][1]


def test_a_free_port_is_free(closed_port: int) -> None:
    """A free port is ok, and still free after the check."""
    for _ in range(2):
        seen = states(HICACHE_DBG_PROMETHEUS_PORT=str(closed_port))
        assert seen["prometheus port"] == (State.OK, f"0.0.0.0:{closed_port}: free")


def test_the_recording_folder_is_looked_at_and_not_made(tmp_path: Path) -> None:
    """A folder that could be created is ok and not created; one below a file can't be."""
    folder = tmp_path / "a" / "b"
    seen = states(HICACHE_DBG_DIR=str(folder))
    assert seen["recordings"][0] is State.OK
    assert "made when needed" in seen["recordings"][1]
    assert not folder.exists()
    (tmp_path / "file").touch()
    below = {"HICACHE_DBG_DIR": str(tmp_path / "file" / "b")}
    assert states(**below)["recordings"][0] is State.ABSENT
    assert states(**below, HICACHE_DBG_SINKS="recording")["recordings"][0] is State.MISSING


def test_a_collector_is_one_that_answers(port: int, closed_port: int) -> None:
    """The endpoint is connected to; its user name and password are never shown."""
    for number, state in ((port, State.OK), (closed_port, State.MISSING)):
        endpoint = f"http://user:secret@127.0.0.1:{number}"
        seen = states(HICACHE_DBG_SINKS="otel", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
        assert seen["otlp endpoint"][0] is state
        assert seen["otlp endpoint"][1].startswith(f"http://127.0.0.1:{number}")
    assert states(HICACHE_DBG_SINKS="otel")["otlp endpoint"][0] is State.MISSING


def test_a_library_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a check raises becomes a missing part with the error's text."""

    def broken() -> bool:
        raise OSError("libcuda.so.1 is truncated")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    missing = {name: seen for name, seen in states().items() if seen[0] is State.MISSING}
    assert missing["torch"][1] == "OSError: libcuda.so.1 is truncated"


@pytest.mark.gpu
def test_memory_can_be_pinned() -> None:
    """On a machine with a GPU, the check registers memory and releases it."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for _ in range(2):
        assert states()["pinned memory"][0] is State.OK


def test_the_table_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    """The table lists the parts of the JSON."""
    _, told = doctor(capsys)
    main(["doctor"])
    text = capsys.readouterr().out
    for part in told["parts"]:
        assert part["name"] in text
    assert text.endswith(
        "nothing is missing; no HICACHE_DBG or OTEL variable asks for what is absent\n"
    )


def test_without_sglang_its_table_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 with the place to run it instead; never a traceback."""
    assert main(["doctor", "--sglang"]) == 3
    assert "sglang is not installed here" in capsys.readouterr().err


def test_a_system_that_is_not_traced_says_so_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An installed vLLM has its version there.

    LMCache, which is not installed, is not mentioned.
    """
    monkeypatch.setattr(doctor_checks, "_version", {"vllm": "0.20.1"}.get)
    seen = states()
    assert seen["vllm"] == (State.OK, "0.20.1; its caches are not traced")
    assert "lmcache" not in seen
    assert seen["sglang"] == (State.ABSENT, "not installed")


@pytest.mark.parametrize("pool", ["missing", "attached"])
def test_modules_of_sglang_that_fail_are_told_once_with_their_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """One row names them all; the last line counts what would be attached to. Exit 3 without a pool."""
    rows = (
        survey.Row("MLATokenToKVPoolHost", pool, "its module cannot be imported here"),
        survey.Row("HiCacheFile", "attached", "mem_cache.hicache_storage: batch_set_v2"),
    )
    why = "ImportError: needs torchvision"
    failed: dict[str, str] = {"mem_cache.a": why, "mem_cache.b": why}
    found = survey.Survey("0.5.23", supported=True, rows=rows, unimportable=failed)
    monkeypatch.setattr(survey, "survey", lambda: found)
    assert main(["doctor", "--sglang"]) == (3 if pool == "missing" else 0)
    text = " ".join(capsys.readouterr().out.split())
    assert "cannot be imported (ImportError: needs torchvision): mem_cache.a, mem_cache.b" in text
    assert text.count("torchvision") == 1
    none = "1 of 2 places would be attached to; no host pool class: nothing would be traced"
    assert text.endswith(none if pool == "missing" else "2 of 2 places would be attached to")


@pytest.mark.parametrize("described", [True, False])
def test_an_sglang_that_cannot_be_imported_has_its_table(tmp_path: Path, described: bool) -> None:
    """Torch makes a folder in HOME while SGLang is imported, which may be refused: exit 3, and why."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text(
        "import pathlib\n"
        "tried = pathlib.Path(__file__).with_name('tried')\n"
        "if tried.exists():\n"
        "    raise KeyError('sglang')  # as of a module of which a half is there\n"
        "tried.touch()\n"
        "raise PermissionError(13, 'Permission denied', '/home/x/.cache')\n"
    )
    if described:
        (tmp_path / "sglang-0.5.23.dist-info").mkdir()
        written = tmp_path / "sglang-0.5.23.dist-info" / "METADATA"
        written.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    # In a process of its own: what else was imported in this one, and how, is not to matter.
    done = subprocess.run(
        [sys.executable, "-m", "hicache_dbg", "doctor", "--sglang", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["missing"] == ["sglang"]
    first, *rows = told["parts"]
    assert ("0.5.23, supported" if described else "unknown, not a version") in first["detail"]
    why = "PermissionError: [Errno 13] Permission denied: '/home/x/.cache'"
    assert f"cannot be imported ({why}): sglang\n" in first["detail"]
    assert "TORCHINDUCTOR_CACHE_DIR" in first["advice"]
    assert rows
    assert {part["detail"] for part in rows} == {"missing: its module cannot be imported here"}


def test_the_expected_cost_grows_with_what_is_digested() -> None:
    """Nothing for off, one read per tile for loads, three for three."""
    state, detail = states()["expected cost"]
    assert state is State.OK
    rate = float(detail.partition("one core hashes ")[2].partition(" GB/s")[0])
    cost = {
        level: int(detail.partition(f"{level} ")[2].split()[0])
        for level in ("off", "loads", "three")
    }
    assert cost["off"] == 0
    assert cost["three"] == pytest.approx(3 * cost["loads"], abs=2)
    assert cost["loads"] == pytest.approx((1 << 20) / (rate * 1e9) * 1e6, rel=0.1)
