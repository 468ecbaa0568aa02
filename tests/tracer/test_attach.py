"""Attaching to our own engine: symmetric, early, and read off the real tensors."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import (
    HostPool,
    IndexKHostPool,
    Mirror,
    host_geometry_like,
    host_pool_for,
)
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.lookups import ENDS
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Started
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import CorruptionFoundError
from hicache_dbg.tracer.settings import Action, Checksum, Gate, Settings
from hicache_dbg.tracer.sink import LookedUp, PoolPages

Traced = Callable[..., tuple[Runtime, MemorySink]]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Starts a runtime with a memory sink; stopped at the end."""
    running: list[Runtime] = []

    def start(**settings: object) -> tuple[Runtime, MemorySink]:
        sink = MemorySink()
        given = {"gate": Gate.ON, **settings}
        running.append(Runtime.start(Settings(**given), sinks=[sink]))  # type: ignore[arg-type]
        return running[-1], sink

    yield start
    for runtime in running:
        runtime.stop()


def mirror_of(
    geometry: PoolGeometry, layout: Layout = Layout.PAGE_FIRST, *, host: PoolGeometry | None = None
) -> Mirror:
    """A mirror of 6 device and 8 host pages with random device bytes."""
    pool = DevicePool(geometry, 6)
    generator = np.random.default_rng(3)
    for buffer in pool.buffers.values():
        for at in range(len(buffer.tensors)):
            flat = buffer.flat(at).numpy()
            flat[:] = generator.integers(0, 256, flat.shape, np.uint8)
    if host is not None:
        return Mirror(pool, IndexKHostPool(host, 8, layout))
    return Mirror(pool, host_pool_for(host_geometry_like(pool), 8, layout))


def operation(
    mirror: Mirror, kind: str, host: list[int], device: list[int], backend: IoBackend
) -> CopyOp:
    """Whole pages of one mirror."""
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(host, mirror.host.geometry),
        device=Indices.pages(device, mirror.device.geometry),
        token_granular=False,
        io_backend=backend,
        layers=tuple(range(mirror.device.geometry.layers)),
    )
    return CopyOp(1, kind, (copy,), np.ones(len(host), np.uint32))  # type: ignore[arg-type]


def test_detaching_restores_the_very_same_functions() -> None:
    """With the gate off, and after it was on, the engine runs the objects it always ran."""
    names = ((TransferEngine, "backup"), (TransferEngine, "load"), (HiCacheController, "__init__"))
    before = [vars(owner)[name] for owner, name in names]
    runtime = Runtime.start(Settings(gate=Gate.ON), sinks=[])
    assert all(vars(o)[n] is not b for (o, n), b in zip(names, before, strict=True))
    runtime.attachment.attach()  # idempotent: nothing is wrapped twice
    runtime.stop()
    assert all(vars(o)[n] is b for (o, n), b in zip(names, before, strict=True))
    runtime.attachment.detach()
    assert all(vars(o)[n] is b for (o, n), b in zip(names, before, strict=True))


KINDS = {
    "mla": mla(2, 4),
    "index_k_bf16": index_k(2, 64, "bf16"),
    "index_k_fp8": index_k(2, 64, "fp8"),
    "mha": mha(2, 4, heads=2, head_dim=8, v_head_dim=4),
    "c4": deepseek_v4_c4(2),
    "c128": deepseek_v4_c128(2),
}
LAYOUTS = [
    (Layout.LAYER_FIRST, IoBackend.KERNEL),
    (Layout.LAYER_FIRST, IoBackend.DIRECT),
    (Layout.PAGE_FIRST, IoBackend.KERNEL),
    (Layout.PAGE_FIRST_DIRECT, IoBackend.DIRECT),
    (Layout.PAGE_HEAD, IoBackend.KERNEL),
]


@pytest.mark.parametrize(
    ("kind", "layout", "backend"),
    [
        (kind, layout, backend)
        for kind in KINDS
        for layout, backend in LAYOUTS
        if layout is not Layout.PAGE_HEAD or kind == "mha"  # only MHA keeps heads apart
    ],
)
def test_every_pool_and_layout_verifies_both_ends(
    traced: Traced, kind: str, layout: Layout, backend: IoBackend
) -> None:
    """A clean round trip: each tile verified at both ends through its own tensor, no finding."""
    mirror = mirror_of(KINDS[kind], layout)
    runtime, sink = traced(checksum=Checksum.THREE)
    engine = TransferEngine()
    engine.backup(operation(mirror, "backup", [5, 0, 7], [1, 4, 2], backend))
    engine.load(operation(mirror, "load", [5, 0, 7], [0, 3, 5], backend), lambda _: None)
    assert runtime.flush()
    backup, load = sink.of(Copied)
    tiles = 3 * 2 * len(KINDS[kind].components)
    assert (backup.verified, load.verified) == (tiles, tiles)
    assert sink.of(Finding) == []
    for buffer in mirror.device.buffers.values():
        for tensor in buffer.tensors:
            pages = tensor.view(torch.uint8)  # random bytes are NaN now and then
            assert pages[0].equal(pages[1])
            assert pages[3].equal(pages[4])
            assert not pages[0].equal(pages[2])


def test_the_storys_line_comes_out(traced: Traced) -> None:
    """Two pages of C128 under the full-token index are 512 indices of both ends, 256 a page."""
    from hicache_dbg.exporters.line import line

    mirror = mirror_of(KINDS["c128"])
    runtime, sink = traced()
    TransferEngine().backup(operation(mirror, "backup", [5, 0], [1, 4], IoBackend.KERNEL))
    assert runtime.flush()
    (event,) = sink.of(Copied)
    assert line(event) == (
        "[HICACHE_DBG] pool=deepseek_v4_c128 op=backup token_granular=False layout=page_first "
        "h=512 d=512 slot_page=256"
    )
    assert event.item_bytes == 1728


def fp8_sized() -> Mirror:
    """A bf16 device under a host sized by the fp8 formula."""
    return mirror_of(index_k(2, 64, "bf16"), host=index_k(2, 64, "fp8"))


def test_a_wrong_width_is_found_before_the_first_copy(traced: Traced) -> None:
    """The finding is there when the controller is built, ahead of every copy event."""
    runtime, sink = traced()
    with HiCacheController((fp8_sized(),)) as cache:
        tokens = np.arange(64, dtype=np.int32)
        cache.insert(tokens, cache.alloc_device(1))
        cache.flush()
    assert runtime.flush()
    kinds = [type(event) for event in sink.events]
    assert kinds == [Started, Finding, Copied]
    (finding,) = sink.of(Finding)
    assert finding.cls is FaultClass.ROW_WIDTH
    assert all(number in finding.message for number in ("132", "256", "8448", "16384", "33..63"))


def test_action_raise_stops_the_host_at_registration(traced: Traced) -> None:
    """HICACHE_DBG_ACTION=raise: the controller is refused with the finding's message."""
    traced(action=Action.RAISE)
    threads = set(threading.enumerate())
    with pytest.raises(
        CorruptionFoundError, match=r"tokens 33\.\.63 of each page are never copied"
    ):
        HiCacheController((fp8_sized(),))
    assert set(threading.enumerate()) <= threads


def test_one_rank_of_many_never_raises(traced: Traced) -> None:
    """Ranks that disagree about stopping hang each other, so a rank only logs."""
    runtime, sink = traced(action=Action.RAISE, ranks=8)
    with HiCacheController((fp8_sized(),)):
        pass
    assert runtime.flush()
    assert len(sink.of(Finding)) == 1


def test_pools_and_ops_select_what_is_traced(traced: Traced) -> None:
    """The globs leave other pools and operations alone: no event, no digest."""
    runtime, sink = traced(pools=("*index_k*",), ops=("load",))
    for mirror in (mirror_of(KINDS["mla"]), mirror_of(KINDS["index_k_fp8"])):
        engine = TransferEngine()
        engine.backup(operation(mirror, "backup", [5], [1], IoBackend.KERNEL))
        engine.load(operation(mirror, "load", [5], [0], IoBackend.KERNEL), lambda _: None)
    assert runtime.flush()
    assert [(event.pool, event.op) for event in sink.of(Copied)] == [("dsa_index_k", Op.LOAD)]


def test_a_view_reads_strides_off_the_tensor() -> None:
    """A page-first host of 2 layers and 4 slots: rows of one page lie a row of all layers apart."""
    views = mirror_views(mirror_of(KINDS["mla"]), None)
    host, device = views.host["latent"], views.device["latent"]
    (run,) = host.runs
    assert (run.slot_stride, run.row_bytes, host.page_stride) == (2 * 1152, 1152, 4 * 2 * 1152)
    assert device.segments() == [(0, 4 * 1152)]
    assert len(host.segments()) == 4
    assert host.tile_bytes() == device.tile_bytes() == host.page_span


def test_the_engine_knows_its_host_classes() -> None:
    """Every subclass of HostPool is listed, built or not."""
    from hicache_dbg.tracer.attach.hicache import host_classes

    assert {cls.__name__ for cls in HostPool.__subclasses__()} <= set(host_classes())


def test_pools_that_are_not_traced_are_not_announced(traced: Traced) -> None:
    """A pool that the globs leave out would look like one that never moves."""
    runtime, sink = traced(pools=("mla",))
    with HiCacheController((mirror_of(KINDS["mla"]), fp8_sized_beside_mla())):
        pass
    assert runtime.flush()
    (start,) = sink.of(Started)
    assert [mirror.pool for mirror in start.mirrors] == ["mla"]
    assert start.classes_built == ("IndexKHostPool", "LatentHostPool")
    assert sink.of(Finding) == []


def fp8_sized_beside_mla() -> Mirror:
    """The story's mirror with pages of as many tokens as the MLA pool here."""
    return mirror_of(index_k(2, 4, "bf16"), host=index_k(2, 4, "fp8"))


@pytest.mark.parametrize("globs", [("nope",), ("nope", "*index_q*"), ("nope", "mla")])
def test_globs_that_match_no_pool_are_said_once(
    traced: Traced, caplog: pytest.LogCaptureFixture, globs: tuple[str, ...]
) -> None:
    """Who misspelt a pool's name sees the names that there are, and need not wait all night."""
    traced(pools=globs)
    for _ in range(2):
        with HiCacheController((mirror_of(KINDS["mla"]), fp8_sized_beside_mla())):
            pass
    said = (
        f"hicache-dbg: HICACHE_DBG_POOLS={','.join(globs)} matches none of the pools so far "
        "(mla, dsa_index_k): none of their copies is traced"
    )
    assert caplog.messages == ([] if "mla" in globs else [said])


def test_a_start_says_which_pools_are_one_cache(traced: Traced) -> None:
    """Of two caches each is told with its own pools, and without those that are not traced."""
    runtime, sink = traced(pools=("mla", "mha"))
    with (
        HiCacheController((mirror_of(mla(2, 64)), mirror_of(index_k(2, 64)))),
        HiCacheController((mirror_of(KINDS["mha"]),)),
    ):
        assert runtime.flush()
    assert sink.of(Started)[-1].caches == (("mla",), ("mha",))


def test_a_pool_that_is_gone_leaves_no_memory_behind(traced: Traced) -> None:
    """Views keep tensors alive, so nobody may keep views of a pool that the host let go."""
    runtime, _ = traced(checksum=Checksum.THREE)
    mirror = mirror_of(KINDS["mla"])
    tensors = [weakref.ref(mirror.host.buffers["latent"].tensors[0])]
    with HiCacheController((mirror,)) as cache:
        cache.insert(np.arange(4, dtype=np.int32), cache.alloc_device(1))
        cache.flush()
    assert runtime.flush()
    assert runtime.session.judge.ledger.nbytes
    del mirror, cache
    gc.collect()
    assert [tensor() for tensor in tensors] == [None]
    assert not runtime.session.judge.ledger.nbytes


def test_an_attachment_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an attachment is undone, its threads end, and the error is the caller's."""
    monkeypatch.delattr(TransferEngine, "load")
    before, threads = vars(TransferEngine)["backup"], set(threading.enumerate())
    with pytest.raises(AttributeError, match="defines no load"):
        Runtime.start(Settings(gate=Gate.ON), sinks=[MemorySink()])
    assert vars(TransferEngine)["backup"] is before
    assert set(threading.enumerate()) <= threads


def test_the_first_of_two_tracers_leaves_the_second_in_place(traced: Traced) -> None:
    """Who detaches takes away only what is his own; after both the very same function is back."""
    before = vars(TransferEngine)["backup"]
    first, _ = traced()
    second, sink = traced()
    first.stop()
    engine, mirror = TransferEngine(), mirror_of(KINDS["mla"])
    engine.backup(operation(mirror, "backup", [5], [1], IoBackend.KERNEL))
    assert second.flush()
    assert len(sink.of(Copied)) == 1
    second.stop()
    assert vars(TransferEngine)["backup"] is before


def test_pages_of_pools_of_one_name_are_added_up(traced: Traced) -> None:
    """Two caches with a pool of one name make one number a state, as a metric needs."""
    runtime, _ = traced()
    with (
        HiCacheController((mirror_of(KINDS["mla"]),)) as cache,
        HiCacheController((mirror_of(KINDS["mla"]),)),
    ):
        cache.alloc_device(2)
        told = [
            (p.tier, p.state, p.pages)
            for p in runtime.attachment.pool_state()
            if isinstance(p, PoolPages)
        ]
    expected = {
        ("device", "free", 10),
        ("device", "used", 2),
        ("host", "free", 16),
        ("host", "used", 0),
    }
    assert len(told) == len(expected)
    assert set(told) == expected


def test_what_became_of_the_pages_asked_for_is_told(traced: Traced) -> None:
    """Every tier's ends are there from 0 on, add up, and stay when their cache has gone."""
    runtime, _ = traced()

    def told() -> dict[tuple[str, str], int]:
        states = runtime.attachment.pool_state()
        return {(s.tier, s.end): s.pages for s in states if isinstance(s, LookedUp)}

    assert told() == {}
    with HiCacheController((mirror_of(KINDS["mla"]),)) as cache:
        assert set(told()) == {(tier, end) for tier, ends in ENDS.items() for end in ends}
        assert not any(told().values())
        tokens = np.arange(3 * cache.group.page_tokens, dtype=np.int32)
        cache.insert(tokens[: 2 * cache.group.page_tokens], cache.alloc_device(2))
        cache.unlock(cache.match(tokens))
    del cache
    gc.collect()
    assert {end: pages for end, pages in told().items() if pages} == {
        ("device", "hit"): 2,
        ("none", "not_cached"): 1,
    }
