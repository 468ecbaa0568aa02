"""Attaching to a running SGLang: pools are found, their copies followed, and nothing is left behind."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from released_base import LAYERS, VERSION, bytes_of
from released_driving import backup, controller, indices, load
from released_objects import functions, group
from released_pages import index_k, v4
from released_rows import mha_of_sglang, mla

from hicache_dbg.tracer.attach.sglang.alive import find
from hicache_dbg.tracer.attach.sglang.classes import host_pool_classes
from hicache_dbg.tracer.switch.client import SwitchError, ask
from hicache_dbg.tracer.switch.messages import Ask, Reply
from hicache_dbg.tracer.switch.switchboard import Switchboard

QUIET = {"HICACHE_DBG_SINKS": "stderr", "HICACHE_DBG_LINES": "paths"}
PAGES = [5, 0, 7]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    """The switch of this process; off again at the end."""
    gc.collect()  # pools of other tests are none of this one's
    one = Switchboard()
    yield one
    one.answer(Ask(do="off"), lambda _: None)


def told(board: Switchboard, do: str) -> Reply:
    """Return the switch's reply."""
    said: list[Reply] = []
    board.answer(Ask(do=do, settings=QUIET), said.append)
    return said[0]


def round_trip(setup: Any) -> None:
    """Back up and load, and check that the bytes are the same."""
    host = indices(PAGES, setup.page)
    before = [bytes_of(tensor, setup.rows)[[1, 4, 2]].clone() for tensor in setup.devices]
    backup(setup, host, indices([1, 4, 2], setup.page), "kernel")
    load(setup, host, indices([0, 3, 5], setup.page), "kernel")
    for tensor, old in zip(setup.devices, before, strict=True):
        assert bytes_of(tensor, setup.rows)[[0, 3, 5]].equal(old)


def test_pools_that_were_there_are_registered_and_their_copies_compared(board: Switchboard) -> None:
    """The geometry of both ends is known at once, a round trip is verified, and detaching restores all."""
    before = functions()
    latent, index = mla("page_first"), index_k("layer_first")
    round_trip(latent)
    on = told(board, "on")
    assert on.done, on.text
    round_trip(latent)
    round_trip(index)
    off = told(board, "off")
    assert functions() == before
    assert off.report is not None
    assert {mirror["pool"] for mirror in off.report["mirrors"]} >= {"kv", "indexer"}
    tiles = off.report["tiles"]
    assert (tiles["verified"], tiles["mismatched"]) == (2 * len(PAGES) * LAYERS, 0)
    assert (off.report["findings"], off.report["internal_errors"]) == ([], {})
    round_trip(latent)
    assert told(board, "on").done  # and once more
    round_trip(index)
    assert told(board, "off").report is not None
    assert functions() == before


def test_what_was_bound_before_is_named(
    board: Switchboard, capfd: pytest.CaptureFixture[str]
) -> None:
    """Storage functions that a controller holds are named in the reply and in the start line."""
    owner = controller(mha_of_sglang("layer_first"), "kernel")
    on = told(board, "on")
    name = "HiCacheController._generic_page_get: bound before we attached, so not followed"
    assert name in on.notes
    assert any("loads and hand-overs that are in flight" in note for note in on.notes)
    told(board, "off")
    assert owner.page_get_func.__func__ is type(owner)._generic_page_get
    started = next(line for line in capfd.readouterr().err.splitlines() if " started " in line)
    assert "_generic_page_get" in started


@pytest.mark.skipif(VERSION == "0.5.23", reason="mended there")
def test_a_wrong_pool_is_found_before_its_next_copy(board: Switchboard) -> None:
    """A mis-sized pool that already exists is reported without a copy."""
    kept = index_k("layer_first", bf16=True)
    told(board, "on")
    report = told(board, "off").report
    assert kept.pool is not None
    assert report is not None
    assert {finding["class"] for finding in report["findings"]} == {"row_width"}


def test_gates_that_were_registered_before_are_known(board: Switchboard) -> None:
    """A device pool and the pools inside it keep the counter that they were given."""
    setup = mha_of_sglang("layer_first")
    owner = controller(setup, "kernel")
    setup.pool_device.register_layer_transfer_counter(owner.layer_done_counter)
    assert told(board, "on").done
    gates = board._runs[0].attachment.observer.gates  # type: ignore[attr-defined]
    assert gates._gates[setup.pool_device] == (owner.layer_done_counter, None)


def test_a_group_that_was_there_tells_whose_pages_a_pool_rides_on(board: Switchboard) -> None:
    """From now on, allocations of the anchor count for the pools that share its pages."""
    from sglang.srt.mem_cache import memory_pool_host

    logical = memory_pool_host.LogicalHostPool(16 * 256, 256)
    c4 = v4("deepseek_v4_c4", 37440, 256)("layer_first").pool
    kept = group({"kv": logical, "deepseek_v4_c4": c4})
    assert told(board, "on").done
    record = board._runs[0].attachment.observer.registry.of(c4)  # type: ignore[attr-defined]
    logical.alloc(512)
    assert record.generation(torch.arange(3).numpy()).tolist() == [1, 1, 0]
    assert kept.entries


def test_frozen_pools_are_found_too() -> None:
    """gc.freeze() hides objects from the collector, but not from the scheduler's attributes."""
    scheduler = mla("layer_first")
    holder = [scheduler.pool]
    gc.freeze()
    try:
        assert scheduler.pool not in gc.get_objects()
        found = find(set(host_pool_classes()))
    finally:
        gc.unfreeze()
    assert any(one is holder[0] for one in found.objects)


CHILD = """
import json, sys, threading, warnings
warnings.simplefilter("ignore")
from sglang.srt.plugins import load_plugins
load_plugins()
ours = [name for name in sys.modules if name.startswith("hicache_dbg.tracer.attach.sglang.")]
threads = [thread.name for thread in threading.enumerate()][1:]
import conftest
from released_driving import indices, operation, controller
from released_rows import mha_of_sglang
from released_base import bytes_of
from released_objects import functions

before = functions()
print(json.dumps([ours, threads]), flush=True)
sys.stdin.read(1)
setup = mha_of_sglang("layer_first")
owner = controller(setup, "kernel")
print("up", flush=True)
asked, trips, wrong = threading.Event(), 0, 0
threading.Thread(target=lambda: (sys.stdin.read(1), asked.set()), daemon=True).start()
host = setup.pool.alloc(3 * setup.page)
wanted = [bytes_of(one, setup.rows)[[1, 4, 2]].clone() for one in setup.devices]
while not asked.is_set():
    owner.write_queue.append(operation(host, indices([1, 4, 2], setup.page)))
    owner.start_writing()
    owner.load_queue.append(operation(host, indices([0, 3, 5], setup.page)))
    owner.start_loading()
    owner.ack_write_queue.clear()
    owner.ack_load_queue.clear()
    there = [bytes_of(one, setup.rows)[[0, 3, 5]] for one in setup.devices]
    wrong += not all(one.equal(other) for one, other in zip(there, wanted))
    trips += 1
print(json.dumps([trips, wrong, functions() == before]), flush=True)
"""


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    """Run an armed process with SGLang's plugins loaded that copies continuously."""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": f"{here}:{os.environ['PYTHONPATH']}",
            "SGLANG_PLUGINS": "hicache_dbg",
            "HICACHE_DBG": "armed",
        },
    )
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_copies_is_traced_for_a_while(running: subprocess.Popen[str]) -> None:
    """Tracing is switched on and off under continuous copies, and none of them fails."""
    assert running.stdout is not None
    assert running.stdin is not None
    assert json.loads(running.stdout.readline()) == [
        ["hicache_dbg.tracer.attach.sglang.plugin"],
        ["hicache-dbg-switch"],
    ]
    with pytest.raises(SwitchError, match=r"built no host pool.*sglang::scheduler"):
        list(ask(running.pid, Ask(do="on", settings=QUIET)))  # as SGLang's other processes
    running.stdin.write("x")
    running.stdin.flush()
    assert running.stdout.readline() == "up\n"
    for _ in range(2):
        first, last = ask(running.pid, Ask(do="on", settings=QUIET, for_s=0.4))
        assert first.done
        assert not [note for note in first.notes if "not attached" in note]
        assert last.report is not None
        assert last.report["tiles"]["verified"] > 0
        assert last.report["tiles"]["mismatched"] == 0
        assert (last.report["findings"], last.report["internal_errors"]) == ([], {})
        assert not last.report["dropped"]
    with pytest.raises(SwitchError, match="off already"):
        list(ask(running.pid, Ask(do="off")))
    out, _ = running.communicate("x", timeout=60)
    trips, wrong, as_before = json.loads(out.splitlines()[-1])
    assert trips > 0
    assert (wrong, as_before) == (0, True)
