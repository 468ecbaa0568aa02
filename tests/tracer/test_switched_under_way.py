"""Tracing begins and ends in a host that keeps copying: half-seen calls accuse nobody."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from tests.pools.caching import P, group_of

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.events import Copied, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.switch.messages import Ask, Reply
from hicache_dbg.tracer.switch.switchboard import Switchboard

TOKENS = np.arange(2 * P, dtype=np.int32)


def test_a_page_that_is_written_after_tracing_ended_accuses_no_backup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A late read of the host end allows for writes that are no longer counted."""
    sink, held = MemorySink(), threading.Event()
    runtime = Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.ENDS), sinks=[sink])
    cache = HiCacheController(group_of())
    detach = runtime.attachment.detach

    def and_write() -> None:
        detach()
        for mirror in cache.group.mirrors:
            for buffer in mirror.host.buffers.values():
                buffer.flat(0).fill_(7)  # another backup's bytes, say
        held.set()

    monkeypatch.setattr(runtime.attachment, "detach", and_write)
    assert runtime.flush()
    runtime.session.check(lambda: [] if held.wait(10.0) else pytest.fail("it never ended"))
    cache.insert(TOKENS, cache.alloc_device(2))
    cache.flush()
    runtime.stop(timeout=0.1)
    cache.close()
    assert [found.message for found in sink.of(Finding)] == []
    assert {copy.witnessed for copy in sink.of(Copied)} == {6}


def test_a_call_that_began_before_tracing_did_unbalances_no_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An allocator's books start once every call of it is recorded."""
    allocator = PageAllocator(8, "host")
    pages, free = allocator.alloc(2), allocator.free  # the function that is not wrapped yet

    ended: list[float] = []

    def under_way(seconds: float) -> None:
        allocator.alloc(1)
        free(pages)
        ended.append(seconds)

    monkeypatch.setattr("hicache_dbg.tracer.switch.switchboard.time.sleep", under_way)
    report = _switched(lambda: allocator.alloc(1))
    assert (report["findings"], len(ended)) == ([], 1)


def test_a_copy_that_ends_after_tracing_did_is_no_failure_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker may leave a wrapped call after tracing has ended: nothing is looked up then."""
    cache = HiCacheController(group_of())
    sink = MemorySink()
    runtime = Runtime.start(Settings(gate=Gate.ON), sinks=[sink])
    backup = type(cache._state.engine).backup  # the wrapper, as a worker has it in hand
    detach = runtime.attachment.detach

    def and_copy() -> None:
        detach()
        monkeypatch.setattr(type(cache._state.engine), "backup", backup)
        cache.insert(TOKENS, cache.alloc_device(2))
        cache.flush()

    monkeypatch.setattr(runtime.attachment, "detach", and_copy)
    runtime.stop()
    monkeypatch.undo()
    cache.close()
    assert sink.of(Health)[-1].dropped == {}
    assert sink.of(Copied) == []


def _switched(meanwhile: Callable[[], object]) -> dict[str, object]:
    """Return the report of a run that is switched on and off around a call."""
    board, said = Switchboard(), list[Reply]()
    board.answer(Ask(do="on", settings={"HICACHE_DBG_SINKS": "stderr"}), said.append)
    meanwhile()
    board.answer(Ask(do="off"), said.append)
    assert said[-1].report is not None, said
    return said[-1].report
