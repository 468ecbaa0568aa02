"""The checks attached to the real engine: no finding on clean runs, every misuse found."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import group_of, sequences, turn

from hicache_dbg.pools.allocator import AllocatorError, PageAllocator
from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.radix import RadixTree
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.streams import CudaStream, SimulatedEvent, SimulatedStream, SimulatedStreams
from hicache_dbg.pools.ticket import Load, LoadTicket
from hicache_dbg.pools.transfer import TransferEngine
from hicache_dbg.pools.worker import Worker
from hicache_dbg.repro.faults.page_table import PageTable
from hicache_dbg.repro.faults.rehearsal import rehearse
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.attach.hicache_streams import Kernel, Touch
from hicache_dbg.tracer.events import FaultClass, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

WRAPPED = (
    *((PageAllocator, name) for name in ("alloc", "free", "acquire", "release")),
    *((RadixTree, name) for name in ("lock", "pin", "unlock", "unpin")),
    *((CacheState, name) for name in ("begin", "end")),
    *((TransferEngine, name) for name in ("backup", "load")),
    *((Load, name) for name in ("open", "finish")),
    (LoadTicket, "wait_layer"),
    *((SimulatedStream, name) for name in ("submit", "record", "wait_for")),
    (SimulatedEvent, "synchronize"),
    (SimulatedStreams, "synchronize"),
    (CudaStream, "submit"),
    (Worker, "submit"),
    *((HiCacheController, name) for name in ("__init__", "close", "match", "insert", "load_back")),
)

Traced = Callable[..., tuple[Runtime, MemorySink]]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Starts a runtime with a memory sink; stopped at the end."""
    running: list[Runtime] = []

    def start(**settings: object) -> tuple[Runtime, MemorySink]:
        sink = MemorySink()
        given = {"gate": Gate.ON, "checksum": Checksum.OFF, **settings}
        running.append(Runtime.start(Settings(**given), sinks=[sink]))  # type: ignore[arg-type]
        return running[-1], sink

    yield start
    for runtime in running:
        runtime.stop()


def findings(runtime: Runtime, sink: MemorySink) -> list[Finding]:
    """All findings so far."""
    assert runtime.flush()
    return sink.of(Finding)


def test_detaching_restores_the_very_same_functions() -> None:
    """Every wrapped function is the original object again, even after attaching twice."""
    before = [vars(owner)[name] for owner, name in WRAPPED]
    runtime = Runtime.start(Settings(gate=Gate.ON), sinks=[])
    assert all(vars(o)[n] is not b for (o, n), b in zip(WRAPPED, before, strict=True))
    runtime.attachment.attach()
    runtime.stop()
    assert all(vars(o)[n] is b for (o, n), b in zip(WRAPPED, before, strict=True))


@settings(max_examples=25, deadline=None)
@given(
    choices=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=20),
    policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
    pages=st.tuples(st.integers(5, 9), st.integers(1, 20)),
    layout=st.sampled_from([Layout.LAYER_FIRST, Layout.PAGE_FIRST]),
)
def test_a_clean_engine_is_never_accused(
    choices: list[list[int]], policy: WritePolicy, pages: tuple[int, int], layout: Layout
) -> None:
    """Any readers under any policy and pressure: no finding, no internal error."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.OFF), sinks=[sink]) as runtime:
        with HiCacheController(group_of(*pages, layout), policy=policy) as controller:
            for tokens in sequences(choices):
                turn(controller, tokens)
            controller.flush()
        assert findings(runtime, sink) == []
    assert sink.of(Health)[-1].errors == {}


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_concurrent_readers_are_never_accused(traced: Traced, policy: WritePolicy) -> None:
    """Four threads on one small device with many concurrent copies: no finding."""
    runtime, sink = traced()
    rng = np.random.default_rng(3)
    choices = [[int(page) for page in rng.integers(0, 3, rng.integers(1, 5))] for _ in range(100)]
    with HiCacheController(group_of(device_pages=24, host_pages=40), policy=policy) as controller:
        with ThreadPoolExecutor(4) as readers:
            list(readers.map(lambda tokens: turn(controller, tokens), sequences(choices)))
        controller.flush()
        assert controller.stats.backups > 10
    assert findings(runtime, sink) == []


@pytest.mark.parametrize("seed", range(6))
def test_kernels_and_copies_that_wait_are_never_accused(traced: Traced, seed: int) -> None:
    """In any order of the stream's work each wait is seen, and no wrong byte is read."""
    runtime, sink = traced(checksum=Checksum.THREE)
    assert isinstance(runtime.attachment, HiCacheAttachment)
    seen = rehearse(None, runtime.attachment.lifetimes.host_access, seed=seed)
    assert findings(runtime, sink) == []
    assert (seen.wrong, seen.errors) == ([], [])
    assert (seen.loads, seen.read) == (4, 96)


def test_a_double_free_is_told_though_the_allocator_refuses_it(traced: Traced) -> None:
    """The caller gets the refusal as before; the finding has both frees and the allocation."""
    runtime, sink = traced()
    allocator = PageAllocator(4, "host")
    pages = allocator.alloc(2)
    allocator.free(pages)
    with pytest.raises(AllocatorError, match="double free"):
        allocator.free(pages)
    (found,) = findings(runtime, sink)
    assert (found.cls, found.pool, found.pages) == (FaultClass.DOUBLE_FREE, "host", (0, 1))
    assert found.message.count("test_lifetimes.py") == 3


def test_pages_from_before_tracing_are_no_finding(traced: Traced) -> None:
    """Attached during a run: copies, pages and pins that began earlier are trusted."""
    controller = HiCacheController(group_of(device_pages=6))
    one, two = sequences([[1, 1, 1, 1], [2, 2, 2, 2]])
    turn(controller, one)
    match = controller.match(one)
    runtime, sink = traced()
    controller.unlock(match)
    for tokens in (two, one, two):
        turn(controller, tokens)
        controller.flush()
    assert controller.stats.loads > 0
    controller.close()
    assert findings(runtime, sink) == []


@pytest.mark.parametrize("lost", [False, True])
def test_an_operation_that_its_worker_lost_is_told_at_the_close(
    traced: Traced, *, lost: bool
) -> None:
    """It was submitted and never reported; completed operations are not mentioned."""
    runtime, sink = traced()
    controller = HiCacheController(group_of(device_pages=6))
    (tokens,) = sequences([[1, 1, 1, 1]])
    with pytest.MonkeyPatch.context() as patch:  # over before the runtime puts back what it wrapped
        if lost:
            patch.setattr(Worker, "submit", lambda *_: None)
        turn(controller, tokens)
        controller.close()
    told = [item for item in findings(runtime, sink) if item.check == "completion"]
    assert [item.cls for item in told] == [FaultClass.FAILED_LOAD] * lost
    assert all("never reported as done or failed" in item.message for item in told)
    assert lost or controller.stats.backups > 0


def test_a_gap_makes_the_books_start_over(traced: Traced) -> None:
    """What happened while tracing was off is unknown, so earlier state is discarded."""
    runtime, sink = traced()
    allocator = PageAllocator(4, "host")
    pages = allocator.alloc(2)
    runtime.switch(on=False)
    allocator.free(pages)
    runtime.switch(on=True)
    assert allocator.alloc(2).tolist() == pages.tolist()
    assert findings(runtime, sink) == []
    with pytest.raises(AllocatorError):
        allocator.free([0, 0])
    assert [item.cls for item in findings(runtime, sink)] == [FaultClass.DOUBLE_FREE]


def test_a_full_ring_accuses_nobody(traced: Traced) -> None:
    """Records without room are lost with everything that they would have explained."""
    runtime, sink = traced(queue=4)
    with HiCacheController(group_of(device_pages=6)) as controller:
        for tokens in sequences([[1, 1, 1, 1], [2, 2, 2, 2], [1, 1, 1, 1], [0, 0, 0, 0]]):
            turn(controller, tokens)
            controller.flush()
    assert findings(runtime, sink) == []
    runtime.stop()
    assert sink.of(Health)[-1].dropped["bus/queue_full"] > 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_with_empty_books(traced: Traced) -> None:
    """The child frees and reallocates what the parent allocated: no finding."""
    runtime, sink = traced()
    allocator = PageAllocator(4, "host")
    pages = allocator.alloc(2)
    assert runtime.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        allocator.free(pages)
        allocator.alloc(3)
        runtime.flush()
        os.write(write, str(len(sink.of(Finding))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 8) == b"0"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("same", [True, False])
def test_a_table_is_not_another_of_its_name(traced: Traced, same: bool) -> None:
    """Two caches have a page table each: writing one while the other is copied is no conflict."""
    runtime, sink = traced()
    streams, rows = SimulatedStreams(1), torch.arange(4)
    forward = streams.stream("forward")
    copied, other = PageTable(4), PageTable(4)
    for table in (copied, copied if same else other):
        touch = table.write(rows)
        runtime.attachment.lifetimes.host_access("write", (touch,))  # type: ignore[attr-defined]
        copied.upload(forward, rows)
    streams.synchronize()
    classes = {found.cls for found in findings(runtime, sink)}
    assert classes == ({FaultClass.CONTROL_TABLE} if same else set())


@pytest.mark.parametrize("waits", [True, False])
def test_copies_within_stream_work_belong_to_the_stream(traced: Traced, waits: bool) -> None:
    """A backup carried out by a stream is ordered by that stream's waits, whichever thread runs it."""
    runtime, sink = traced()
    streams = SimulatedStreams(1)
    forward, store = streams.stream("forward"), streams.stream("store")
    with HiCacheController(group_of()) as controller:
        state = controller._state
        (pool, *_) = controller.group.device.values()
        device, host = controller.alloc_device(2), state.host.alloc(2)
        touch = Touch(pool, (0, 1, 2), device.tolist(), writes=True)
        forward.submit(Kernel("write", lambda: None, (touch,)))
        if waits:
            store.wait_for(forward.record())
        with state.changed:
            op = state.begin("backup", host, device)
        store.submit(lambda: TransferEngine().backup(op))
        streams.synchronize()
        with state.changed:
            state.end(host, device)
            state.host.free(host)
    found = findings(runtime, sink)
    assert [(item.cls, item.pool, item.pages) for item in found] == (
        [] if waits else [(FaultClass.STORE_BEFORE_WRITE, pool.geometry.name, (0, 1))]
    )
