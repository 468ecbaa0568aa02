"""SGLang processes that load plugins twice, fork, are killed, or never have a host pool."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from hicache_dbg.tracer.events import Copied, Event, Finding, Health, Started

LIMIT_S = 120
BEGIN = """
import os, sys, warnings
warnings.simplefilter("ignore")
from sglang.srt import plugins
plugins.load_plugins()
"""
POOL = """
from released_driving import backup, indices, load
from released_rows import mha_of_sglang, mla
import conftest
setup = mla("layer_first")
def there_and_back(pages=(1,)):
    host = setup.pool.alloc(setup.page * len(pages))
    backup(setup, host, indices(pages, setup.page), "kernel")
    load(setup, host, indices([page + 2 for page in pages], setup.page), "kernel")
    setup.pool.free(host)
"""


def started(script: str, folder: Path, **gate: str) -> subprocess.Popen[str]:
    """Start the script in its own process, traced into ``folder``."""
    path = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"
    environ = {
        "PYTHONPATH": path,
        "SGLANG_PLUGINS": "hicache_dbg",
        "HICACHE_DBG": "1",
        "HICACHE_DBG_SINKS": "recording",
        "HICACHE_DBG_DIR": str(folder),
    }
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ | gate,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for its successful exit and return its output."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return out, err


def recordings(folder: Path) -> list[list[Event]]:
    """Return the events of each recording, the longest first."""
    found = []
    for file in folder.glob("*.jsonl"):
        lines = file.read_bytes().splitlines()
        found.append([msgspec.json.decode(line, type=Event) for line in lines[1:]])
    return sorted(found, key=len, reverse=True)


def of(events: list[Event], kind: type) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if isinstance(event, kind)]


def test_plugins_that_are_loaded_twice_attach_once(tmp_path: Path) -> None:
    """With SGLang's own guard, without it, or called by hand: one wrapper, one line per copy."""
    twice = """
plugins.load_plugins()
plugins._plugins_loaded = False
plugins.load_plugins()
from hicache_dbg.tracer.attach.sglang.plugin import register
register()
"""
    ended(started(BEGIN + twice + POOL + "register(); there_and_back()", tmp_path))
    (events,) = recordings(tmp_path)
    assert len(of(events, Copied)) == 2
    assert len(of(events, Started)) == 1


def test_a_child_of_a_fork_goes_on_and_its_copies_are_its_own(tmp_path: Path) -> None:
    """After a fork while serving, neither hangs, both copy, and each records only its own copies."""
    fork = """
there_and_back()
child = os.fork()
for _ in range(2 if child else 3):
    there_and_back((1, 2))
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""
    ended(started(BEGIN + POOL + fork, tmp_path))
    runs = recordings(tmp_path)
    copies = [len(of(events, Copied)) for events in runs]
    assert sorted(copies) == [2 * 3, 2 * 3]
    assert [of(events, Finding) for events in runs] == [[], []]


def test_a_signal_ends_it_as_it_would_without_us(tmp_path: Path) -> None:
    """It ends at once with the signal's own status, during copies, and the recording is readable."""
    on_and_on = """
there_and_back()
print("going", flush=True)
while True:
    there_and_back()
"""
    process = started(BEGIN + POOL + on_and_on, tmp_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "going\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_bytes().splitlines()[1:-1]:
            msgspec.json.decode(line, type=Event)  # but for the last, every line is whole


def test_a_process_that_ends_with_copies_open_ends(tmp_path: Path) -> None:
    """Their events never complete: the process does not wait, and writes its final summary."""
    stuck = """
from types import SimpleNamespace
from hicache_dbg.tracer.attach.sglang.start import current
there_and_back()
observer = current().observer
copies = observer.owners.copies
settle = SimpleNamespace(query=lambda: False, synchronize=lambda: None)
import released_driving
engine = released_driving.ENGINE
from hicache_dbg.tracer.attach.sglang import wrappers
wrappers.events_of = lambda *_: (None, settle, False)
for _ in range(5):
    there_and_back()
print("done", flush=True)
"""
    out, _ = ended(started(BEGIN + POOL + stuck, tmp_path))
    assert out.endswith("done\n")
    (events,) = recordings(tmp_path)
    assert len(of(events, Copied)) == 12
    (word,) = of(events, Health)
    assert isinstance(word, Health)
    assert word.closing


def test_a_scheduler_without_a_host_cache_says_so_and_runs_as_it_would(tmp_path: Path) -> None:
    """With device pools, allocators, trees and batches only, nothing starts, and one line says why."""
    without = """
import threading
import conftest, test_trees, torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
given = {"dtype": torch.bfloat16, "head_num": 2, "head_dim": 8, "layer_num": 2, "device": "cpu"}
device = MHATokenToKVPool(size=24, page_size=4, enable_memory_saver=False, **given)
allocator = test_trees.allocator_over(device)
tree = test_trees.radix(allocator)
test_trees.insert(tree, 12, allocator.alloc(12))
test_trees.look_up(tree, "a", 20)
allocator.free(allocator.alloc(8))
device.get_key_buffer(0)
for _ in range(3):
    try:
        ScheduleBatch.prepare_for_extend(test_trees.batch("a"))
    except (AttributeError, ValueError):
        pass  # there is more to a batch than its requests
print(threading.active_count())
"""
    out, err = ended(started(BEGIN + without, tmp_path))
    assert out.splitlines()[-1] == "1"
    assert recordings(tmp_path) == []
    (said,) = [line for line in err.splitlines() if "hicache" in line.lower()]
    assert "built no host pool; is --enable-hierarchical-cache set?" in said
