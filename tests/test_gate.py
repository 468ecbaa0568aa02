"""The gate: off costs nothing and imports nothing; on, a script needs no further line."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

SCRIPT = """
import numpy as np
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like
from hicache_dbg.pools.kinds import mla

pool = DevicePool(mla(2, 64), 8)
mirror = Mirror(pool, LatentHostPool(host_geometry_like(pool), 16, Layout.PAGE_FIRST))
with HiCacheController((mirror,)) as cache:
    tokens = np.arange(128, dtype=np.int32)
    pages = cache.alloc_device(2)
    for layer in range(2):
        pool.layer("latent", layer)[pages] = 1.5
    cache.insert(tokens, pages)
    cache.flush()
"""


def run(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a fresh interpreter with these variables."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=100,
    )


@pytest.mark.parametrize("gate", [{}, {"HICACHE_DBG": "0"}, {"HICACHE_DBG": "1"}])
def test_importing_the_package_imports_nothing_heavy(gate: dict[str, str]) -> None:
    """With any gate, importing hicache_dbg imports neither torch nor an exporter."""
    heavy = "torch|triton|opentelemetry|prometheus_client|structlog|hicache_dbg.exporters|hicache_dbg.pools"
    done = run(
        "import sys, hicache_dbg\n"
        f"heavy = '{heavy}'.split('|')\n"
        "print([n for n in heavy if n in sys.modules])",
        **gate,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_a_script_that_only_uses_pools_emits() -> None:
    """HICACHE_DBG=1 alone gives the start line, the copies' paths, and the final summary."""
    done = run(SCRIPT, HICACHE_DBG="1", HICACHE_DBG_SINKS="stderr")
    assert done.returncode == 0, done.stderr
    start, copy, health = done.stderr.splitlines()
    assert start.startswith("hicache-dbg started")
    assert "LatentHostPool" in start
    assert copy == (
        "[HICACHE_DBG] pool=mla op=backup token_granular=False layout=page_first h=128 d=128 slot_page=64"
    )
    assert "witnessed=4 mismatched=0" in health


def test_the_same_script_is_silent_with_the_gate_off() -> None:
    """Off means off."""
    done = run(SCRIPT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_a_host_without_standard_error_runs(where: str) -> None:
    """A line that cannot be written neither stops the host nor ends up in its output."""
    command = f"{sys.executable} -c 'import hicache_dbg; print(1)' 2{where}"
    environ = os.environ | {"HICACHE_DBG": "maybe"}
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, env=environ, timeout=100)
    assert (done.returncode, done.stdout) == (0, b"1\n")


def test_an_attachment_that_fails_later_does_not_fail_the_hosts_import() -> None:
    """Each further module of the pools is attached to on import; a failure is counted."""
    done = run(
        SCRIPT
        + """
from hicache_dbg.tracer import autoattach
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
def fails(self):
    raise RuntimeError("a bug of ours")
HiCacheAttachment.attach = fails
import hicache_dbg.pools.storage.mooncake, hicache_dbg.pools.storage.store
import hicache_dbg.pools.transformers_cache
print(autoattach.current().session.errors.counts())
""",
        HICACHE_DBG="1",
        HICACHE_DBG_SINKS="recording",
        HICACHE_DBG_DIR="/nowhere",
    )
    assert done.returncode == 0, done.stderr
    assert "{'attach': " in done.stdout


def test_a_bad_value_is_one_line_and_the_host_runs() -> None:
    """The tracer reports the error and stays off."""
    done = run(SCRIPT, HICACHE_DBG="1", HICACHE_DBG_CHECKSUM="crc")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "HICACHE_DBG_CHECKSUM='crc' is not allowed" in line


def test_a_recording_is_left_behind(tmp_path: Path) -> None:
    """The recording sink writes under HICACHE_DBG_DIR and its header is the first line."""
    done = run(
        SCRIPT,
        HICACHE_DBG="1",
        HICACHE_DBG_SINKS="recording",
        HICACHE_DBG_DIR=str(tmp_path / "deep" / "folder"),
    )
    assert done.returncode == 0, done.stderr
    (recording,) = (tmp_path / "deep" / "folder").glob("*.jsonl")
    assert '"copied"' in recording.read_text()


def test_a_tracer_that_cannot_start_is_one_line_and_the_host_runs() -> None:
    """Whatever keeps the tracer from starting, the host's own import succeeds."""
    planted = """
import hicache_dbg.tracer.runtime as runtime
def start(*_):
    raise RuntimeError("planted")
runtime.Runtime.start = start
"""
    done = run(planted + SCRIPT, HICACHE_DBG="1")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines
    assert {line for line in lines if "cannot start: RuntimeError: planted" not in line} == set()


def test_a_forked_worker_has_its_last_word(tmp_path: Path) -> None:
    """A multiprocessing child exits without atexit: its copies and its end are recorded anyway."""
    forked = f"""
import multiprocessing
import hicache_dbg.pools.controller
def work():
    exec({SCRIPT!r})
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
raise SystemExit(child.exitcode)
"""
    done = run(
        forked, HICACHE_DBG="1", HICACHE_DBG_SINKS="recording", HICACHE_DBG_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    recordings = sorted(tmp_path.glob("*.jsonl"), key=lambda path: "-child" in path.name)
    parents, childs = (
        [msgspec.json.decode(line).get("event") for line in recording.read_text().splitlines()]
        for recording in recordings
    )
    assert parents == [None, "health"]
    assert childs == [None, "started", "copied", "health"]


@pytest.mark.parametrize(
    "module", ["transfer", "state", "loads", "controller", "storage.tier", "transformers_cache"]
)
def test_whatever_is_imported_first_one_runtime_starts(module: str) -> None:
    """Attaching imports more of the pools, which must not start a second runtime."""
    done = run(f"import hicache_dbg.pools.{module}", HICACHE_DBG="1", HICACHE_DBG_SINKS="stderr")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["health"]
