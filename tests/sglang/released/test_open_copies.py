"""Open copies are closed exactly once, by whichever SGLang thread comes first."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from released_driving import backup, indices
from released_lane import HostSlot, beside
from released_rows import mla
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies, OpenCopy
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import Copied, FaultClass, Finding
from hicache_dbg.tracer.settings import Checksum

#: How long the first thread lets the second one try.
TRY_S = 0.2


class Over:
    """An event that has come; whoever asks first lets somebody else ask meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = [threading.Thread(target=meanwhile)]

    def query(self) -> bool:
        """It has come."""
        if self._meanwhile:
            other = self._meanwhile.pop()
            other.start()
            other.join(TRY_S)
        return True


def _after_a_backup(traced: Start) -> tuple[Any, Any, Any]:
    """Return a run, its pools, and the plan of backups, made by the first one."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
    assert run.sink.of(Copied)
    known = run.attachment.observer.devices.by_pool[id(setup.pool)]
    return run, setup, next(iter(known.plans.values()))


def test_a_copy_is_closed_once_by_two_threads(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage thread and the scheduler free host pages at once: the copy's pages close once."""
    run = traced()
    mla("layer_first")
    closed: list[OpenCopy] = []
    monkeypatch.setattr(OpenCopies, "_close", lambda _, copy: closed.append(copy))
    copies = run.attachment.observer.owners.copies
    copy = OpenCopy("kv", "backup", Access("backup", "t", ()), over=Over(copies.settle))
    copies.submitted([copy], None)
    copies.settle()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(10.0)
    assert closed == [copy]


@pytest.mark.parametrize("ms", [-0.5, 0.0, 0.5])
def test_copies_clash_where_one_began_before_the_other_was_over(
    traced: Start, monkeypatch: pytest.MonkeyPatch, ms: float
) -> None:
    """Two backups write one host page: the device's clock decides whether they overlapped."""
    monkeypatch.setattr(HostSlot, "ms", ms)
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    lane.over = False
    for page in (1, 2):
        backup(setup, indices([5], setup.page), indices([page], setup.page), "kernel")
    for slot in lane.begun:
        slot.come()
    assert len(run.sink.of(Copied)) == 2
    found = [(one.cls, one.pages) for one in run.sink.of(Finding)]
    assert found == ([(FaultClass.SLOT_REUSE, (5,))] if ms < 0 else [])


def test_a_copy_that_the_bus_has_seen_to_be_over_is_closed_by_the_next(traced: Start) -> None:
    """Without a free or a query of the event, a finished copy is still removed from the books."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    for _ in range(5):
        backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
        assert run.sink.of(Copied)
    copies = run.attachment.observer.owners.copies
    assert [len(under_way) for under_way in copies.under_way.values()] == [1]
    assert run.sink.of(Finding) == []
    assert len(lane.begun) == 5


def test_a_copy_that_a_full_ring_dropped_is_not_kept(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped copy is never read, so nothing may hold its device memory."""
    run, setup, plan = _after_a_backup(traced)
    monkeypatch.setattr(plan, "push", lambda _: False)
    backup(setup, indices([6], setup.page), indices([2], setup.page), "kernel")
    assert [
        len(under_way) for under_way in run.attachment.observer.owners.copies.under_way.values()
    ] == [1]


def test_a_copy_that_another_thread_closes_before_the_bus_has_it_is_not_left_open(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage thread frees pages while the scheduler hands a copy to the bus: the next free closes it."""
    run, setup, plan = _after_a_backup(traced)
    settle, push, pushed = run.attachment.observer.owners.copies.settle, plan.push, list[DeviceOp]()

    def late(op: DeviceOp) -> bool:
        pushed.append(op)
        settle()
        return bool(push(op))

    monkeypatch.setattr(plan, "push", late)
    backup(setup, indices([6], setup.page), indices([2], setup.page), "kernel")
    assert len(run.sink.of(Copied)) == 2
    (op,) = pushed
    assert op.opened is not None
    assert op.opened.ends
    settle()
    assert len(run.sink.of(Copied)) == 2  # the bus has closed it
    assert not op.opened.ends


def test_operations_that_are_over_leave_nothing_to_the_garbage_collector(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their indices' device memory is free as soon as the last of us lets go of them."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    made = list[weakref.ref[DeviceOp]]()
    init = DeviceOp.__init__

    def noted(op: DeviceOp, *args: Any) -> None:
        init(op, *args)
        made.append(weakref.ref(op))

    monkeypatch.setattr(DeviceOp, "__init__", noted)
    gc.disable()
    try:
        for page in range(4):
            backup(setup, indices([page], setup.page), indices([1], setup.page), "kernel")
            assert run.sink.of(Copied)
        left = sum(op() is not None for op in made)
    finally:
        gc.enable()
    assert left <= 2, "the last one is open, the one before it perhaps"
