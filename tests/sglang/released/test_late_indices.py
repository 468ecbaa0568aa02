"""Allocator calls whose indices are on a device: kept in order, read later, judged all the same."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import numpy as np
import pytest
import torch
from released_allocators import paged, states, token
from released_driving import backup, controller, operation
from released_late import Device, late, reads_of_ours
from released_rows import mha_of_sglang
from released_streams import Delayed, device_events
from released_traced import Start, Traced

from hicache_dbg.tracer.attach.sglang import late_indices
from hicache_dbg.tracer.events import FaultClass, Finding

BUILT = {"token": (token, 1), "paged": (paged, 4), "states": (states, 1)}


def found(run: Traced) -> list[tuple[FaultClass, tuple[int, ...]]]:
    """Return class and pages of each finding so far."""
    return [(finding.cls, finding.pages) for finding in run.sink.of(Finding)]


def errors(run: Traced) -> dict[str, int]:
    """Return our own failures so far."""
    session = run.attachment.observer.session()
    assert session is not None
    counts: dict[str, int] = session.errors.counts()
    return counts


@pytest.mark.parametrize("name", BUILT)
def test_a_double_free_is_found_late_but_rightly(traced: Start, name: str) -> None:
    """Nothing is known until the device is done; then the second free is found, with both call sites."""
    run = traced()
    device = late(run)
    build, page = BUILT[name]
    allocator = build()
    device.over = False
    first, second = allocator.alloc(2 * page), allocator.alloc(page)
    allocator.free(first)
    allocator.free(first[:page])
    allocator.free(second)
    session = run.attachment.observer.session()
    assert session is not None
    assert session.bus.flush(0.1) is False
    device.over = True
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pages) == (FaultClass.DOUBLE_FREE, (int(first[0]) // page,))
    assert finding.message.count("test_late_indices.py:") >= 3
    assert errors(run) == {}


@pytest.mark.parametrize("name", BUILT)
def test_nothing_is_read_on_the_callers_thread(traced: Start, name: str) -> None:
    """Every index value is read on the bus thread, whatever the allocator does."""
    run = traced()
    late(run)
    build, page = BUILT[name]
    allocator = build()
    with reads_of_ours() as threads:
        for _ in range(3):
            taken = [allocator.alloc(page) for _ in range(4)]
            for one in taken:
                allocator.free(one)
        assert run.sink.of(Finding) == []
    assert threads <= {"hicache-dbg-bus"}


def test_indices_that_are_written_afterwards_are_read_as_they_were(traced: Start) -> None:
    """SGLang frees views of its request table and then overwrites the table."""
    run = traced()
    device = late(run)
    allocator = paged()
    device.over = False
    table = torch.zeros(12, dtype=torch.int64)
    taken = allocator.alloc(12)
    table.copy_(taken)
    allocator.free(table[4:8])
    table.fill_(0)
    taken[8:].zero_()
    page = int(taken[4]) // 4
    allocator.free(taken[4:8].clone())
    device.over = True
    assert found(run) == [(FaultClass.DOUBLE_FREE, (page,))]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_late_is_what_is_found_at_once(traced: Start, seed: int) -> None:
    """Any order of valid and invalid calls gives the same findings in the same order."""

    def play(run: Traced, device: Device | None) -> list[tuple[FaultClass, tuple[int, ...]]]:
        allocator, chance, taken = paged(), np.random.default_rng(seed), []
        for over, what, which in chance.random((60, 3)).tolist():
            if device is not None:
                device.over = over < 0.2
            if what < 0.5 and allocator.available_size() >= 8:
                taken.append(allocator.alloc(8 if which < 0.5 else 4))
            elif taken:
                at = int(which * len(taken))
                allocator.free(taken[at])
                if what < 0.9:
                    taken.pop(at)
        if device is not None:
            device.over = True
        return found(run)

    first = traced()
    at_once = play(first, None)
    assert at_once  # frees of what stays in the list are wrong
    first.attachment.detach()
    run = traced()
    assert play(run, late(run)) == at_once


def test_a_device_that_is_far_behind_is_read_in_one_go(traced: Start) -> None:
    """Pending indices are read together: one copy to the host per poll of the device, not per call."""
    run = traced()
    device = late(run)
    allocator = paged()
    device.over = False
    for _ in range(50):
        allocator.free(allocator.alloc(4))
    device.over = True
    assert found(run) == []
    assert sum(device.batches) == 100
    assert len(device.batches) <= 3


@pytest.mark.parametrize("limit", ["MOST_CALLS", "MOST_BYTES"])
def test_beyond_the_bound_calls_are_skipped_and_counted(
    traced: Start, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str], limit: str
) -> None:
    """Calls without room are counted and the books reset in order, without a finding; then it goes on."""
    monkeypatch.setattr(late_indices, limit, 3 if limit == "MOST_CALLS" else 3 * 4 * 8)
    run = traced()
    device = late(run)
    allocator = paged()
    device.over = False
    taken = [allocator.alloc(4) for _ in range(5)]
    allocator.free(taken[4])  # its hand-out and this free are not known
    device.over = True
    assert found(run) == []
    assert errors(run) == {"attach/indices_skipped": 3}
    internal_errors.clear()
    allocator.free(taken[0])
    assert found(run) == []
    allocator.free(taken[0])
    assert found(run) == [(FaultClass.DOUBLE_FREE, (int(taken[0][0]) // 4,))]


def test_a_device_that_fails_costs_the_host_nothing(
    traced: Start, internal_errors: list[str]
) -> None:
    """Our failure is counted, the lost calls are forgotten, and the next call is read again."""
    run = traced()
    device = late(run)
    allocator = paged()
    device.broken = True
    taken = allocator.alloc(4)
    allocator.free(taken)
    assert found(run) == []
    assert errors(run).keys() == {"bus/ready"}
    internal_errors.clear()
    device.broken = False
    again = allocator.alloc(4)
    allocator.free(again)
    allocator.free(again)
    assert found(run) == [(FaultClass.DOUBLE_FREE, (int(again[0]) // 4,))]


def test_a_device_page_freed_under_a_load_is_found(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load's pages were in use when freed, though both are known only later."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    device_events(monkeypatch)
    run = traced()
    device = late(run)
    setup = mha_of_sglang("layer_first")
    allocator = PagedTokenToKVPoolAllocator(
        *(24, setup.page, torch.bfloat16, "cpu", setup.pool_device), need_sort=False
    )
    device.over = False
    host, pages = setup.pool.alloc(4), allocator.alloc(8)
    backup(setup, host, pages[:4], "kernel")
    owner = controller(setup, "kernel")
    owner.load_queue.append(operation(host, pages[4:]))
    with Delayed.before(1, owner, setup.pool):
        allocator.free(pages[4:])
    allocator.free(pages[:4])
    device.over = True
    assert found(run) == [(FaultClass.SLOT_REUSE, (int(pages[4]) // 4,))]
