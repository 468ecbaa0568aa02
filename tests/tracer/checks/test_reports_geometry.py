"""Public fault reports that are geometry or indices, with their right answers. By number."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import (
    Component,
    IndexUnit,
    IoBackend,
    Layout,
    PoolGeometry,
    RunSpec,
)
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine, TransferError
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.checks.index_space import IndexUse, check_indices
from hicache_dbg.tracer.checks.registration import check_mirror
from hicache_dbg.tracer.checks.slots import slots_beyond
from hicache_dbg.tracer.events import FaultClass, Finding


def rows(
    width: int,
    *,
    page: int = 64,
    layers: int = 1,
    name: str = "latent",
    more: tuple[Component, ...] = (),
) -> PoolGeometry:
    """A row-indexed pool of ``width`` B a token, with further components."""
    return PoolGeometry(
        name="pool",
        layers=layers,
        slots_per_page=page,
        tokens_per_slot=1,
        index_unit=IndexUnit.TOKEN,
        page_indexed=False,
        components=(Component(name, torch.uint8, (RunSpec("row", width),)), *more),
    )


def mirror_of(device: PoolGeometry, host: PoolGeometry, pages: int = 4) -> Mirror:
    """A mirror whose host is sized by another geometry."""
    return Mirror(DevicePool(device, pages), LatentHostPool(host, pages, Layout.PAGE_FIRST))


def registered(device: PoolGeometry, host: PoolGeometry) -> list[Finding]:
    """What registration finds."""
    return check_mirror(mirror_views(mirror_of(device, host), None), time_ns=0)


def copied(mirror: Mirror, kind: str, layers: tuple[int, ...] = (0,)) -> None:
    """Move page 1 to or from host page 1."""
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages([1], mirror.host.geometry),
        device=Indices.pages([1], mirror.device.geometry),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=layers,
    )
    op = CopyOp(1, kind, (copy,), np.ones(1, np.uint32))  # type: ignore[arg-type]
    if kind == "backup":
        TransferEngine().backup(op)
    else:
        TransferEngine().load(op, lambda _: None)


def test_nominal_rows_under_packed_ones() -> None:
    """Entry 1: host 576 B, device 656 B, page 64: 36,864 against 41,984 B, 128 B into token 56."""
    (found,) = registered(rows(656), rows(576))
    assert found.cls is FaultClass.ROW_WIDTH
    assert all(number in found.message for number in ("576", "656", "36864", "41984"))
    view = mirror_views(mirror_of(rows(656), rows(576)), None).device["latent"]
    assert divmod(576 * 64, 656) == (56, 128)
    assert slots_beyond(view, 576 * 64)[0] == 56


def test_the_scales_that_every_backup_cut_off() -> None:
    """Entry 2: rows of 512 + 16 B, the host has 512: the tail of every row keeps the poison."""
    mirror = mirror_of(rows(528), rows(512))
    (found,) = check_mirror(mirror_views(mirror, None), time_ns=0)
    assert (found.cls, found.expected.split(" ")[0], found.got.split(" ")[0]) == (
        FaultClass.ROW_WIDTH,
        "528",
        "512",
    )
    page = mirror.device.layer("latent", 0)[1]
    page[:] = torch.arange(64, dtype=torch.uint8)[:, None]
    copied(mirror, "backup")
    page.fill_(0xA5)
    copied(mirror, "load")
    assert bool((page[:, :512] == torch.arange(64, dtype=torch.uint8)[:, None]).all())
    assert bool((page[:, 512:] == 0xA5).all())


@pytest.mark.parametrize("layout", [Layout.LAYER_FIRST, Layout.PAGE_FIRST])
def test_a_token_of_two_attention_rows(layout: Layout) -> None:
    """Entry 3: a token is 2 rows x 8 heads x 128 x bf16 = 4,096 B; a host of 2,048 B is found."""
    device, host = rows(4096), rows(2048)
    (found,) = registered(device, host)
    assert (found.cls, found.expected.split(" ")[0], found.got.split(" ")[0]) == (
        FaultClass.ROW_WIDTH,
        "4096",
        "2048",
    )
    pool = DevicePool(device, 2)
    right = Mirror(pool, host_pool_for(host_geometry_like(pool), 2, layout))
    views = mirror_views(right, None)
    assert check_mirror(views, time_ns=0) == []
    assert views.host["latent"].slot_bytes == 4096


def test_layers_that_own_no_index() -> None:
    """Entry 11: 21 of 78 layers own index-K: 2,772 B a token, not 10,296; another layer is refused."""
    owners = (*range(0, 78, 4), 77)
    geometry = replace(index_k(21, 64, "fp8"), layer_ids=owners)
    assert len(owners) == 21
    assert geometry.layers * geometry.components[0].slot_bytes == 2772
    assert 78 * geometry.components[0].slot_bytes == 10296
    pool = DevicePool(geometry, 4)
    host = host_pool_for(host_geometry_like(pool), 4, Layout.PAGE_FIRST)
    mirror = Mirror(pool, host)
    copied(mirror, "backup", layers=(20,))
    with pytest.raises(TransferError, match="layer 21 is out of range"):
        copied(mirror, "backup", layers=(21,))
    whole = index_k(78, 64, "fp8")
    every = Mirror(pool, host_pool_for(whole, 4, Layout.PAGE_FIRST))
    (found,) = check_mirror(mirror_views(every, None), time_ns=0)
    assert (found.cls, found.expected, found.got) == (
        FaultClass.ROW_WIDTH,
        "21 layers",
        "78 layers",
    )


def test_scales_that_are_no_component_of_the_mirror() -> None:
    """Entry 32: rows of 1,024 B and 32 B of scales; a mirror of the rows alone is found."""
    scales = Component("scales", torch.uint8, (RunSpec("scale", 32),))
    (found,) = registered(rows(1024, more=(scales,)), rows(1024))
    assert (found.cls, found.component) == (FaultClass.SIDECAR_MISSING, "scales")
    assert registered(rows(1024, more=(scales,)), rows(1024, more=(scales,))) == []


def test_groups_with_other_page_sizes() -> None:
    """Entry 26: pages of 8 slots at one end and 32 at the other: both numbers and the pool are told."""
    (found,) = registered(rows(4, page=32), rows(4, page=8))
    assert (found.pool, found.cls) == ("pool", FaultClass.ROW_WIDTH)  # a page's bytes differ
    assert "32 B a page of 8" in found.message
    assert "128 B a page of 32" in found.message


def use(host: list[int], device: list[int], *, pages: int, page: int = 1) -> list[Finding]:
    """Whole pages of a pool of ``pages`` at the device."""
    indices = IndexUse(
        pool="index_k",
        op="load",
        unit="page",
        host=np.array(host, np.int64),
        device=np.array(device, np.int64),
        slot_page=page,
        page_path=True,
        host_limit=1024,
        device_limit=pages * page,
        item_bytes=8448,
    )
    return check_indices(indices, time_ns=0)


def test_token_locations_on_a_page_indexed_buffer() -> None:
    """Entry 19: page 64, 16 rows: token 70 taken for row 70 is out of range; its page 1 is right."""
    (found,) = use([1], [70], pages=16)
    assert (found.cls, found.got) == (FaultClass.INDEX_SPACE, "70")
    assert use([1], [70 // 64], pages=16) == []
    assert [divmod(token, 64) for token in (5, 70, 1023)] == [(0, 5), (1, 6), (15, 63)]


def test_a_block_id_taken_for_a_pool_slot() -> None:
    """Entry 20: block 6 lies in slot 2 of a pool of 4; 6 itself is out of range."""
    (found,) = use([0], [6], pages=4)
    assert (found.cls, found.expected) == (FaultClass.INDEX_SPACE, "device pages 0..3")
    assert use([0], [2], pages=4) == []
