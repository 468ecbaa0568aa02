"""Pages of every allocator: freed twice, freed under a copy, and reused."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from released_allocators import logical, paged, states, token
from released_driving import backup, controller, indices, load, operation
from released_lane import beside
from released_objects import group
from released_pages import index_k, mamba, v4
from released_rows import mha, mha_of_sglang, mla
from released_streams import Delayed, device_events
from released_traced import Start
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from hicache_dbg.tracer.attach.sglang.owners import Owners
from hicache_dbg.tracer.events import Copied, FaultClass, Finding
from hicache_dbg.tracer.settings import Checksum

ALLOCATORS: dict[str, tuple[Callable[[], Any], int]] = {
    "mha": (lambda: mha("layer_first").pool, 4),
    "mla": (lambda: mla("layer_first").pool, 4),
    "index_k": (lambda: index_k("layer_first").pool, 64),
    "c4": (lambda: v4("deepseek_v4_c4", 37440, 256)("layer_first").pool, 256),
    "mamba": (lambda: mamba("page_first_direct").pool, 1),
    "logical": (logical, 256),
    "token": (token, 1),
    "paged": (paged, 4),
    "states": (states, 1),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_pages_freed_twice_are_found(traced: Start, name: str) -> None:
    """A double free is a finding with both call sites, whether or not the class refuses it."""
    run = traced()
    build, page = ALLOCATORS[name]
    allocator = build()
    first, second = allocator.alloc(2 * page), allocator.alloc(page)
    allocator.free(first)
    with contextlib.suppress(AssertionError):  # some check; the call was made all the same
        allocator.free(first[:page])
    allocator.free(second)
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.DOUBLE_FREE
    assert finding.pages == (int(first[0]) // page,)
    assert "freed though it is free already" in finding.message
    assert finding.message.count("test_allocators.py:") >= 3


@pytest.mark.parametrize("name", ALLOCATORS)
def test_pages_that_come_and_go_are_clean(traced: Start, name: str) -> None:
    """Pages allocated, freed and allocated again, also after a clear, give no finding."""
    run = traced()
    build, page = ALLOCATORS[name]
    allocator = build()
    for _ in range(3):
        taken = [allocator.alloc(page) for _ in range(4)]
        for one in reversed(taken):
            allocator.free(one)
        assert allocator.alloc(1 << 20 << 8) is None
    allocator.alloc(2 * page)
    allocator.clear()
    allocator.free(allocator.alloc(allocator.available_size()))
    assert run.sink.of(Finding) == []


def test_a_call_that_we_failed_to_note_accuses_nobody(
    traced: Start, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """Pages freed, reallocated in a call that we missed, and freed again are no double free."""
    run = traced()
    allocator = paged()
    taken = allocator.alloc(allocator.available_size())
    allocator.free(taken)
    with monkeypatch.context() as patch:
        patch.setattr(Owners, "_given", refuses)
        taken = allocator.alloc(allocator.available_size())
    allocator.free(taken)
    assert run.sink.of(Finding) == []
    assert internal_errors == ["attach/alloc: RuntimeError: out of its own depth"]
    internal_errors.clear()
    with contextlib.suppress(AssertionError):
        allocator.free(taken)
    assert {finding.cls for finding in run.sink.of(Finding)} == {FaultClass.DOUBLE_FREE}


def refuses(*_: Any) -> None:
    """Fail in our own code."""
    raise RuntimeError("out of its own depth")


def test_a_segment_of_a_row_frees_every_page_it_touches(traced: Start) -> None:
    """A request's row is freed in one segment that ends within a page: all its pages are free then."""
    run = traced()
    allocator = paged()
    if not hasattr(allocator, "free_segment"):
        pytest.skip("this version frees rows through free alone")
    taken = torch.empty(0, dtype=torch.int64)
    for _ in range(3):
        taken = allocator.alloc(allocator.available_size())
        allocator.free_segment(taken[:-1], start_pos=0)
    assert run.sink.of(Finding) == []
    allocator.free_segment(taken[:4], start_pos=0)
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pages) == (FaultClass.DOUBLE_FREE, (int(taken[0]) // 4,))


def test_frees_of_a_group_count_when_they_are_asked_for(traced: Start) -> None:
    """A group collects frees and carries them out at its end: each is one free, not two."""
    run = traced()
    allocator = paged()
    taken = allocator.alloc(16)
    allocator.free_group_begin()
    allocator.free(taken[:4])
    allocator.free(taken[4:8])
    allocator.free_group_end()
    assert run.sink.of(Finding) == []
    allocator.free_group_begin()
    allocator.free(taken[8:12])
    allocator.free(taken[8:12])
    allocator.free_group_end()
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pages) == (FaultClass.DOUBLE_FREE, (int(taken[8]) // 4,))


def test_one_call_that_names_a_page_twice_is_found(traced: Start) -> None:
    """The same slots twice in one free enter C4's free list twice, and are found."""
    run = traced()
    pool = v4("deepseek_v4_c4", 37440, 256)("layer_first").pool
    taken, before = pool.alloc(256), pool.available_size()
    pool.free(torch.cat([taken, taken]))
    assert pool.available_size() == before + 512  # SGLang took it
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.DOUBLE_FREE
    assert "named twice in one free" in finding.message


def test_a_host_page_freed_under_a_load_is_found(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freed before the load's event completes, it is slot_reuse with the load; afterwards it is fine."""
    device_events(monkeypatch)
    run = traced()
    setup = mha_of_sglang("layer_first")
    host, early = setup.pool.alloc(setup.page), setup.pool.alloc(setup.page)
    backup(setup, torch.cat([host, early]), indices([1, 2], setup.page), "kernel")
    owner = controller(setup, "kernel")
    owner.load_queue.append(operation(torch.cat([host, early]), indices([4, 5], setup.page)))
    with Delayed.before(1, owner, setup.pool):
        setup.pool.free(early)
    setup.pool.free(host)
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.SLOT_REUSE
    assert finding.pages == (int(early[0]) // setup.page,)
    assert "freed while a copy has it open" in finding.message
    assert "previous access: load" in finding.message


def test_a_device_page_freed_under_a_load_is_found(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the pages that the load writes, with SGLang's own device allocator."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    device_events(monkeypatch)
    run = traced()
    setup = mha_of_sglang("layer_first")
    allocator = PagedTokenToKVPoolAllocator(
        *(24, setup.page, torch.bfloat16, "cpu", setup.pool_device), need_sort=False
    )
    host, device = setup.pool.alloc(4), allocator.alloc(8)
    backup(setup, host, device[:4], "kernel")
    owner = controller(setup, "kernel")
    owner.load_queue.append(operation(host, device[4:]))
    with Delayed.before(1, owner, setup.pool):
        allocator.free(device[4:])
    allocator.free(device[:4])
    findings = run.sink.of(Finding)
    assert [(f.cls, f.pool, f.pages) for f in findings] == [
        (FaultClass.SLOT_REUSE, "kv", (int(device[4]) // 4,))
    ]
    assert "kv: device page" in findings[0].message


@pytest.mark.parametrize("on_device", [False, True])
def test_pools_that_share_an_allocator_do_not_clash(traced: Start, *, on_device: bool) -> None:
    """C4 and C128 share the anchor's pages: one operation writes both, each in its own bytes."""
    run = traced()
    logical = LogicalHostPool(16 * 256, 256)
    riders = [
        v4("deepseek_v4_c4", 37440, 256)("layer_first"),
        v4("deepseek_v4_c128", 1728, 256)("layer_first"),
    ]
    group({"kv": logical, "deepseek_v4_c4": riders[0].pool, "deepseek_v4_c128": riders[1].pool})
    host = logical.alloc(512)
    observer = run.attachment.observer
    session = observer.session()
    assert session is not None
    with observer.frames.operation(session.probe):
        for setup in riders:
            if on_device:
                beside(run, setup)
            setup.pool.backup_from_device_all_layer(
                setup.pool_device, host, indices([1, 2], 256), "kernel"
            )
    logical.free(host)
    assert run.sink.of(Finding) == []


def test_a_host_page_freed_under_a_copy_on_a_gpu_is_found(traced: Start) -> None:
    """Its page ids are read only once the device is done, yet it counts as in use from the start."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    early, late = (setup.pool.alloc(setup.page) for _ in range(2))
    lane.over = False
    setup.pool.backup_from_device_all_layer(
        setup.pool_device, torch.cat([early, late]), indices([1, 2], setup.page), "kernel"
    )
    setup.pool.free(early)
    lane.begun[0].come()
    setup.pool.free(late)
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.SLOT_REUSE
    assert finding.pages == (int(early[0]) // setup.page,)
    assert "freed while a copy has it open" in finding.message
    assert "previous access: backup" in finding.message


def test_copies_on_a_gpu_one_after_the_other_are_clean(traced: Start) -> None:
    """Copies back and forth over the same pages, each complete before the next, give no finding."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    for _ in range(3):
        host = setup.pool.alloc(setup.page)
        backup(setup, host, indices([1], setup.page), "kernel")
        load(setup, host, indices([2], setup.page), "kernel")
        setup.pool.free(host)
    assert run.sink.of(Finding) == []


def test_the_books_say_reused_and_do_not_compare(traced: Start) -> None:
    """A page reallocated under a load is skipped as reused, not called a mismatch."""
    run = traced()
    setup = mla("layer_first")
    host = setup.pool.alloc(setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    setup.pool.free(host)
    setup.pool.alloc(setup.pool.available_size())
    setup.pool.kv_buffer.zero_()
    setup.pool.load_to_device_per_layer(
        setup.pool_device, host, indices([2], setup.page), 0, "kernel"
    )
    assert run.sink.of(Copied)[-1].skipped == {"reused": 1}
