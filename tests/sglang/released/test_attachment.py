"""Attaching and detaching, the extent of an operation, and what is reported as not recognised."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gc
import logging
import weakref

import pytest
import torch
from released_base import DECLARED, ENGINE, LAYERS, VERSION, anchor, bytes_of
from released_driving import LAYER_COUNT, backup, controller, indices, load, operation
from released_objects import functions, group
from released_pages import index_k, v4
from released_rows import mha, mla
from released_traced import Start

from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.attachment import SglangAttachment
from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.events import Copied, Finding, Op, Started
from hicache_dbg.tracer.settings import Checksum


def test_detaching_restores_the_very_same_functions(traced: Start) -> None:
    """Afterwards every wrapped function is the original object."""
    before = functions()
    run = traced()
    wrapped = {name for name, value in functions().items() if value is not before[name]}
    assert {name.rpartition(".")[2] for name in wrapped} >= {
        "__init__",
        "alloc",
        "free",
        "get_key_buffer",
        "wait_until",
        "_generic_page_get",
        "batch_get_v2",
        "backup_from_device_all_layer",
        "load_to_device_per_layer",
    }
    run.attachment.attach()  # once more changes nothing
    run.attachment.detach()
    assert functions() == before


def test_every_operation_of_this_version_is_wrapped(traced: Start) -> None:
    """The methods in the table exist, and are wrapped while attached."""
    traced()
    import importlib

    mine = [op for op in versions.OPERATIONS if VERSION in op.versions]
    assert mine
    for one in mine:
        try:
            module = importlib.import_module(one.module)
        except ImportError:  # needs what a CPU has not
            continue
        assert is_ours(getattr(getattr(module, one.cls), one.method)), one


def test_nothing_of_ours_runs_before_the_first_pool(traced: Start) -> None:
    """A process that never builds a host pool has no session, thread or event."""
    run = traced()
    assert run.attachment.observer.session() is None
    mla("layer_first")
    assert run.attachment.observer.session() is not None


@pytest.mark.parametrize("checksum", list(Checksum))
def test_a_load_is_one_event_however_many_layers(traced: Start, checksum: Checksum) -> None:
    """A load of two layers is one event; a layer's gate opens after its bytes have arrived."""
    run = traced(checksum=checksum)
    setup = mla("page_first")
    before = bytes_of(setup.devices[0], setup.rows).clone()
    host = indices([5], setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    seen = []
    load(
        setup,
        host,
        indices([2], setup.page),
        "kernel",
        lambda layer: seen.append((layer, len(run.sink.of(Copied)))),
    )
    assert seen == [(layer, 1) for layer in range(LAYERS)]  # the load's own event comes after
    assert bytes_of(setup.devices[0], setup.rows)[2].equal(before[1])
    events = run.sink.of(Copied)
    assert [(event.op, event.layers) for event in events] == [(Op.BACKUP, 2), (Op.LOAD, 2)]
    assert run.sink.of(Finding) == []


def test_pools_of_one_operation_share_its_number(traced: Start) -> None:
    """One submission for several pools is one operation, with an event per pool."""
    if not ENGINE:
        pytest.skip(f"{VERSION} moves one pool an operation here")
    from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine

    run = traced()
    latent, index = mla("layer_first"), index_k("layer_first")
    transfers = [
        L2Transfer(
            setup.pool, setup.pool_device, indices([5], setup.page), indices([1], setup.page)
        )
        for setup in (latent, index)
    ]
    engine = L2TransferEngine("kernel")
    engine.submit_device_to_host(transfers)
    engine.submit_host_to_device(transfers, **{LAYER_COUNT: LAYERS})
    events = run.sink.of(Copied)
    assert [(event.pool, event.op) for event in events] == [
        ("kv", Op.BACKUP),
        ("indexer", Op.BACKUP),
        ("kv", Op.LOAD),
        ("indexer", Op.LOAD),
    ]
    assert [event.op_id - events[0].op_id for event in events] == [0, 0, 1, 1]


def test_the_start_is_said_once_for_all_pools(traced: Start) -> None:
    """Pools built before the first copy are announced once, with the geometry of both ends."""
    run = traced()
    latent, index = mla("layer_first"), index_k("layer_first")
    for setup in (latent, index):
        backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
    (started,) = run.sink.of(Started)
    assert [mirror.pool for mirror in started.mirrors] == ["kv", "indexer"]
    assert [mirror.host.cls for mirror in started.mirrors] == [
        "MLATokenToKVPoolHost",
        "DSAIndexerPoolHost",
    ]
    (component,) = started.mirrors[1].host.components
    assert (component.slot_bytes, component.page_bytes) == (132, 8448)


def test_a_class_without_a_view_is_named_and_its_copies_are_seen(
    traced: Start,
) -> None:
    """An unknown host pool class is reported; its operations are events, but no tile is judged."""
    setup = mla("layer_first")
    setup.pool.__class__ = type("OtherPoolHost", (type(setup.pool),), {})
    run = traced()  # so the pool is met at its first copy
    host = indices([5], setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    load(setup, host, indices([2], setup.page), "kernel")
    (started,) = run.sink.of(Started)
    (unrecognised,) = started.unrecognised
    assert unrecognised.startswith("OtherPoolHost (pool ")
    assert started.classes_built == ("OtherPoolHost",)
    events = run.sink.of(Copied)
    assert [(event.op, event.cls, event.h, event.layers) for event in events] == [
        (Op.BACKUP, "OtherPoolHost", 4, LAYERS),
        (Op.LOAD, "OtherPoolHost", 4, LAYERS),
    ]
    assert all(event.skipped == {"unreadable": LAYERS} for event in events)


def test_a_pool_that_reads_otherwise_is_not_recognised(traced: Start) -> None:
    """A known class whose tensors are not in the expected place loses only its view."""
    run = traced()
    setup = mla("layer_first")
    kept = setup.pool.kv_buffer
    setup.pool.kv_buffer = None
    run.attachment.observer.registry.add(setup.pool)
    setup.pool.kv_buffer = kept
    (unrecognised,) = run.attachment.observer.registry.inventory.unrecognised
    assert unrecognised.startswith("MLATokenToKVPoolHost (pool kv#2): ")


@pytest.mark.skipif(VERSION != "0.5.23", reason="the parameter came later")
def test_a_rank_that_keeps_no_bytes_says_so(traced: Start) -> None:
    """A deduplicated latent pool has an allocator and no bytes, and the start line says why."""
    from sglang.srt.mem_cache.pool_host.mla import MLAHostAllocation, MLATokenToKVPoolHost

    run = traced()
    shape = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "kv_cache_dim": 24}
    pool = MLATokenToKVPoolHost(
        MLAHostAllocation(dtype=torch.bfloat16, size_per_token=96, **shape),
        *(2.0, 0, 4, "layer_first"),
        pin_memory=False,
        device_capacity_tokens=24,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=LAYERS,
    )
    pool.free(pool.alloc(8))
    (said,) = run.attachment.observer.registry.inventory.unrecognised
    assert said.endswith("no bytes on this rank, another one loads and broadcasts them")
    assert run.sink.of(Finding) == []


def test_an_unknown_version_says_so(traced: Start) -> None:
    """A version outside the tables is attached to anyway, and named."""
    attachment = SglangAttachment("0.6.1", lambda: pytest.fail("no pool, no session"))
    assert attachment.observer.registry.inventory.unrecognised == [
        "sglang 0.6.1: written for 0.5.13 to 0.5.23"
    ]
    assert "MLATokenToKVPoolHost" in attachment.host_classes()


def test_what_sglang_refuses_goes_on_to_sglang(traced: Start) -> None:
    """A pool's exception reaches its caller, and the event records it."""
    run = traced()
    pool = index_k("layer_first").pool
    with pytest.raises(ValueError, match="page-aligned"):
        pool.backup_from_device_all_layer(
            pool.device_pool, torch.arange(3), torch.arange(3), "kernel"
        )
    (event,) = run.sink.of(Copied)
    assert event.status.startswith("ValueError")
    assert (event.h, event.pages) == (3, 0)


def test_a_page_that_was_given_away_again_is_not_compared(traced: Start) -> None:
    """Freed, reallocated and filled elsewhere: a load of it is reused, never a mismatch."""
    run = traced()
    setup = mla("layer_first")
    host = setup.pool.alloc(setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    setup.pool.free(host)
    taken = setup.pool.alloc(setup.pool.available_size())  # all there is, so this page too
    assert set(host.tolist()) <= set(taken.tolist())
    setup.pool.kv_buffer.zero_()
    load(setup, host, indices([2], setup.page), "kernel")
    assert run.sink.of(Copied)[-1].skipped == {"reused": LAYERS}
    assert run.sink.of(Finding) == []


def test_a_pool_follows_the_allocations_of_its_anchor(traced: Start) -> None:
    """The group says whose indices a pool uses: its pages are allocated with the anchor's."""
    from sglang.srt.mem_cache import memory_pool_host

    run = traced()
    logical = memory_pool_host.LogicalHostPool(16 * 256, 256)
    swa = v4("swa", 149760, 256)("layer_first").pool
    c4 = v4("deepseek_v4_c4", 37440, 256)("layer_first").pool
    group({"kv": logical, "swa": swa, "deepseek_v4_c4": c4})
    generation = run.record(c4).generation
    pages = torch.arange(3).numpy()
    assert generation(pages).tolist() == [0, 0, 0]
    logical.alloc(512)
    swa.alloc(256)
    assert generation(pages).tolist() == [1, 1, 0]


@pytest.mark.skipif(not ENGINE, reason="bytes are counted from 0.5.18 on")
def test_bytes_that_moved_stand_beside_sglangs_count(
    traced: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Two pages of C4 in two layers: 149,760 B moved, 19,169,280 B by SGLang's own rule."""
    run = traced()
    setup = v4("deepseek_v4_c4", 37440, 256)("page_first")
    with caplog.at_level(logging.WARNING, "hicache_dbg"):
        for _ in range(2):
            backup(setup, indices([5, 0], 256), indices([1, 4], 256), "kernel")
    moved = run.attachment.observer.bytes.moved["deepseek_v4_c4"]
    assert (moved.real, moved.counted) == (2 * 149760, 2 * 19169280)
    (record,) = (record for record in caplog.records if record.name == "hicache_dbg")  # said once
    assert "moved 149760 B and counts there as 19169280 B (128 times)" in record.getMessage()
    assert [event.bytes for event in run.sink.of(Copied)] == [149760, 149760]


@pytest.mark.skipif(not ENGINE, reason="bytes are counted from 0.5.18 on")
def test_both_totals_are_told_at_the_end(traced: Start, caplog: pytest.LogCaptureFixture) -> None:
    """SGLang's own counter, read from its metric, is reported beside the bytes that moved."""
    from prometheus_client import REGISTRY
    from sglang.srt.observability.metrics_collector import RadixCacheMetricsCollector

    run = traced()
    setup = v4("deepseek_v4_c4", 37440, 256)("page_first")
    owner = controller(setup, "kernel")
    owner.write_queue.append(operation(indices([5, 0], 256), indices([1, 4], 256)))
    owner.start_writing()
    collector = RadixCacheMetricsCollector(labels={"model": "m"})
    collector.increment_backup_num_bytes(owner.ack_write_queue[-1].num_bytes)  # as the tree does
    value = REGISTRY.get_sample_value("sglang:hicache_backup_bytes_total", {"model": "m"})
    with caplog.at_level(logging.INFO, "hicache_dbg"):
        run.attachment.detach()
    assert f"sglang:hicache_backup_bytes_total has {value:.0f} B (128 times)" in caplog.text
    assert "backups moved 149760 B (deepseek_v4_c4 149760 B)" in caplog.text


def test_an_anchor_given_to_the_constructor_is_followed(traced: Start) -> None:
    """Index-K uses the indices of the pool that it was constructed with."""
    if DECLARED:
        pytest.skip("built through a declaration")

    run = traced()
    latent = mha("layer_first").pool
    device = index_k("layer_first").pool_device
    shape = anchor()
    latent.page_size, latent.size, latent.page_num = shape.page_size, shape.size, shape.page_num
    pool = type(index_k("layer_first").pool)(device, latent, "layer_first", pin_memory=False)
    assert len(run.record(pool).sources) == 2


def test_a_pool_that_is_let_go_takes_its_memory_along(traced: Start) -> None:
    """Its tensors are freed without a garbage collection, which servers disable."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    host = setup.pool.alloc(setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    load(setup, host, indices([2], setup.page), "kernel")
    assert len(run.sink.of(Copied)) == 2
    gone = weakref.ref(setup.pool)
    memory = weakref.ref(setup.pool.kv_buffer.untyped_storage())
    gc.collect()
    gc.disable()
    try:
        del setup, host
        assert gone() is None
        assert memory() is None
    finally:
        gc.enable()
