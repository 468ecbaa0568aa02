"""The entry point as SGLang's own load_plugins() calls it, in separate processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

PLUGINS = """
import sys, warnings
warnings.simplefilter("ignore")
from sglang.srt.plugins import load_plugins
before = set(sys.modules)
load_plugins()
"""
OURS = "print(sorted(m for m in sys.modules if m.startswith('hicache_dbg')))\n"
POOL = """
from released_driving import backup, indices
from released_rows import mla
import conftest
setup = mla("page_first")
backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
"""


@pytest.fixture
def run() -> Run:
    """Run a script in a process in which SGLang finds only our entry point."""
    path = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"
    environ = os.environ | {"PYTHONPATH": path, "SGLANG_PLUGINS": "hicache_dbg"}

    def start(script: str, **gate: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=environ | gate,
            timeout=200,
        )

    return start


def ours(text: str) -> list[str]:
    """Return our lines of an output that SGLang writes to as well."""
    return [line for line in text.splitlines() if "hicache" in line.lower()]


def test_with_the_gate_off_nothing_is_imported(run: Run) -> None:
    """SGLang runs the plugin, and only the entry point's module and its packages are imported."""
    done = run(PLUGINS + OURS)
    assert done.returncode == 0, done.stderr
    name, parts = "hicache_dbg", ("tracer", "attach", "sglang", "plugin")
    folders = [name, *(f"{name}.{'.'.join(parts[: n + 1])}" for n in range(len(parts)))]
    assert done.stdout.splitlines()[-1] == str(folders)


def test_one_variable_is_all_it_takes(run: Run) -> None:
    """HICACHE_DBG=1 gives the start line with both ends' geometry, the copy's path, the final summary."""
    engine = "print('hicache_dbg.pools' in sys.modules)\n"
    done = run(PLUGINS + POOL + engine, HICACHE_DBG="1", HICACHE_DBG_SINKS="stderr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"  # and our own engine stays out of it
    start, copy, health = ours(done.stderr)
    assert start.startswith("hicache-dbg started rank=0 system=sglang version=0.5.")
    assert "built=MLATokenToKVPoolHost unbuilt=" in start
    assert "unrecognised=- pools=1; kv: 4 tokens/page" in start
    assert copy == (
        "[HICACHE_DBG] pool=kv op=backup token_granular=False layout=page_first h=4 d=4 slot_page=4"
    )
    assert health.startswith("hicache-dbg health rank=0 closing copies=1 verified=0 witnessed=2")
    assert "errors=0" in health


def test_a_process_without_pools_says_nothing(run: Run) -> None:
    """Detokenizer and HTTP server load plugins too: no line, no thread, no import of SGLang's pools."""
    done = run(
        PLUGINS
        + "import threading\n"
        + "print(threading.active_count(), 'sglang.srt.mem_cache.memory_pool_host' in set(sys.modules) - before)",
        HICACHE_DBG="1",
        HICACHE_DBG_SINKS="stderr",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 False"
    assert ours(done.stderr) == []


def test_a_bad_value_is_said_and_sglang_runs(run: Run) -> None:
    """The server starts anyway, and the line names variable, value and what is allowed."""
    done = run(PLUGINS + POOL, HICACHE_DBG="1", HICACHE_DBG_CHECKSUM="crc")
    assert done.returncode == 0, done.stderr
    (line,) = ours(done.stderr)  # once, though both the package and the plugin read it
    assert "HICACHE_DBG_CHECKSUM='crc' is not allowed" in line
