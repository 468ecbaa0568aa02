"""Unified pools: pages of all layers under logical ids that compaction moves."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from released_base import DEVICE_PAGES, VERSION, Setup, random_bytes
from released_driving import backup, indices, load
from released_traced import Start

from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Started

pytestmark = pytest.mark.skipif(VERSION != "0.5.23", reason="the class came later")
PAGE, ITEM = 4, 96


def device_pool(buffer: torch.Tensor, grows: str) -> Any:
    """Return one side of a unified device pool."""
    return SimpleNamespace(
        get_page_envelope_buffer=lambda: buffer,
        get_contiguous_buf_infos=lambda: ([buffer.data_ptr()], [buffer.nbytes], [ITEM]),
        page_size=PAGE,
        size=(DEVICE_PAGES - 1) * PAGE,
        host_capacity_tokens=None,
        grow_direction=grows,
        start_layer=0,
        end_layer=2,
        layer_num=2,
        device="cpu",
    )


def pair(ratio: float = 2.0) -> tuple[Setup, Setup]:
    """Return a full and a sliding-window pool that grow towards each other in one host memory."""
    from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

    buffer = random_bytes(DEVICE_PAGES, ITEM, dtype=torch.uint8)
    devices = [device_pool(buffer, grows) for grows in ("up", "down")]
    pools = UnifiedPageEnvelopeHostPool.build_hybrid_swa_pool_pair(
        device_pools=devices,
        host_to_device_ratio=ratio,
        host_size=0,
        page_size=PAGE,
        layout="page_first",
        allocator_type="default",
        pin_memory=False,
    )
    full, swa = (
        Setup(pool, PAGE, [buffer], 1, device) for pool, device in zip(pools, devices, strict=True)
    )
    return full, swa


def test_a_page_of_all_layers_is_one_tile(traced: Start) -> None:
    """A round trip through the real engine is verified with one tile per page, for both pools."""
    run = traced()
    full, _ = pair()
    host = full.pool.alloc(2 * PAGE)
    before = full.devices[0].clone()
    backup(full, host, indices([1, 4], PAGE), "kernel")
    load(full, host, indices([0, 3], PAGE), "kernel")
    assert full.devices[0][[0, 3]].equal(before[[1, 4]])
    assert [(e.op, e.verified, e.tiles, e.bytes) for e in run.sink.of(Copied)] == [
        (Op.BACKUP, 2, 2, 2 * ITEM),
        (Op.LOAD, 2, 2, 2 * ITEM),
    ]
    assert run.sink.of(Started)[-1].unrecognised == ()
    assert run.sink.of(Finding) == []


def test_a_changed_page_is_found(traced: Start) -> None:
    """One changed byte of an envelope is found."""
    run = traced()
    full, _ = pair()
    host = full.pool.alloc(2 * PAGE)
    backup(full, host, indices([1, 4], PAGE), "kernel")
    moved = run.sink.of(Copied)[0].host_pages
    full.pool._host_page_buffer_view[moved[1], 5] ^= 0xFF
    load(full, host, indices([0, 3], PAGE), "kernel")
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pages) == (FaultClass.BIT_FLIP, (moved[1],))


def test_pages_that_compaction_moved_are_other_pages(traced: Start) -> None:
    """Pages moved to other pages' old places are loaded correctly, without a finding."""
    run = traced()
    full, _ = pair()
    backing = full.pool._shared_backing
    hosts = [full.pool.alloc(PAGE) for _ in range(3)]
    before = full.devices[0].clone()
    for host, page in zip(hosts, (1, 2, 4), strict=True):
        backup(full, host, indices([page], PAGE), "kernel")
    full.pool.free(hosts[0])
    with backing.lock:
        backing._compact()
    for host, page in zip(hosts[1:], (2, 4), strict=True):
        load(full, host, indices([0], PAGE), "kernel")
        assert full.devices[0][0].equal(before[page])
    assert run.sink.of(Finding) == []
    outcomes = [(e.verified, sum(e.skipped.values())) for e in run.sink.of(Copied)[3:]]
    assert [verified + skipped for verified, skipped in outcomes] == [1, 1]


def test_a_page_that_somebody_else_filled_is_not_compared(traced: Start) -> None:
    """Freed and reallocated in the same place, it has another generation."""
    run = traced()
    full, _ = pair()
    host = full.pool.alloc(PAGE)
    backup(full, host, indices([1], PAGE), "kernel")
    full.pool.free(host)
    again = full.pool.alloc(PAGE)
    full.pool._host_page_buffer_view.zero_()
    load(full, again, indices([2], PAGE), "kernel")
    assert run.sink.of(Copied)[-1].mismatched == 0
    assert run.sink.of(Finding) == []
