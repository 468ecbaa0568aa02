"""Operations that do not fit their pools are refused with both values before a byte moves."""

import numpy as np
import pytest
import torch

from hicache_dbg.pools.backends import copier_for
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c4_state
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import GeometryError, IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import (
    HostPool,
    IndexKHostPool,
    LatentHostPool,
    MHAHostPool,
    Mirror,
    PagedHostPool,
    host_geometry_like,
    host_pool_for,
)
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine, TransferError


def mirror_of(
    geometry: PoolGeometry,
    layout: Layout = Layout.LAYER_FIRST,
    host_geometry: PoolGeometry | None = None,
) -> Mirror:
    """A mirror of three device and four host pages."""
    device = DevicePool(geometry, 3)
    host = host_pool_for(host_geometry or host_geometry_like(device), 4, layout)
    return Mirror(device, host)


def refusal(
    mirror: Mirror,
    host: Indices,
    device: Indices,
    *,
    single: bool = False,
    backend: IoBackend = IoBackend.KERNEL,
    layers: tuple[int, ...] = (0,),
) -> str:
    """Return the message with which a backup is refused."""
    op = CopyOp(
        1,
        "backup",
        (PoolCopy(mirror, host, device, single, backend, layers),),
        np.zeros(1, dtype=np.uint32),
    )
    with pytest.raises(TransferError) as error:
        TransferEngine().backup(op)
    assert op.status == "failed"
    assert not any(buffer.tensors[0].any() for buffer in mirror.host.buffers.values())
    return str(error.value)


def pages(mirror: Mirror, *ids: int) -> Indices:
    """Return whole pages as indices."""
    return Indices.pages(ids, mirror.device.geometry)


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        (Layout.PAGE_FIRST, IoBackend.DIRECT),
        (Layout.PAGE_HEAD, IoBackend.DIRECT),
        (Layout.PAGE_FIRST_DIRECT, IoBackend.KERNEL),
    ],
)
def test_a_layout_its_backend_cannot_serve_is_refused(layout: Layout, backend: IoBackend) -> None:
    """The refusal names the backend, the layout, and what the backend can serve."""
    mirror = mirror_of(mha(1, 2, heads=2, head_dim=4), layout)
    message = refusal(mirror, pages(mirror, 0), pages(mirror, 0), backend=backend)
    assert f"io backend {backend} cannot serve layout {layout}" in message
    assert "layer_first" in message


@pytest.mark.parametrize(
    ("host", "device", "words"),
    [
        ((4,), (0,), "host page 4 is out of range, expected 0..3"),
        ((0,), (-1,), "device page -1 is out of range, expected 0..2"),
        ((0, 1), (0,), "2 host and 1 device ids"),
    ],
)
def test_wrong_page_ids_are_refused(
    host: tuple[int, ...], device: tuple[int, ...], words: str
) -> None:
    """A page id out of range, or counts that differ, are refused with the numbers."""
    mirror = mirror_of(mla(1, 2))
    assert words in refusal(mirror, pages(mirror, *host), pages(mirror, *device))


def test_a_slot_out_of_range_is_refused() -> None:
    """A slot id is checked against slots, not pages."""
    mirror = mirror_of(mla(1, 2))
    message = refusal(mirror, Indices.slots([7]), Indices.slots([6]), single=True)
    assert "device slot 6 is out of range, expected 0..5" in message


def test_slots_given_as_pages_are_refused() -> None:
    """The kind of the indices must match the kind of the copy."""
    mirror = mirror_of(mla(1, 2))
    message = refusal(mirror, Indices.slots([0]), Indices.slots([0]), single=False)
    assert "token_granular=False, but the host indices are single slots" in message


def test_a_ring_slot_cannot_be_copied_alone() -> None:
    """A slot that several tokens share is refused in a token-granular copy."""
    mirror = mirror_of(deepseek_v4_c4_state(1, ring=8))
    message = refusal(mirror, Indices.slots([0]), Indices.slots([0]), single=True)
    assert "32 tokens share it" in message


def test_ends_with_different_pages_are_refused() -> None:
    """A page of 64 slots cannot be copied to one of 32."""
    mirror = mirror_of(index_k(1, 64), host_geometry=index_k(1, 32))
    message = refusal(mirror, pages(mirror, 0), pages(mirror, 0))
    assert "64" in message
    assert "32" in message


def test_a_layer_one_end_lacks_is_refused() -> None:
    """A layer number is checked at both ends."""
    mirror = mirror_of(mla(2, 2), host_geometry=mla(1, 2))
    message = refusal(mirror, pages(mirror, 0), pages(mirror, 0), layers=(1,))
    assert "layer 1 is out of range, the host pool has 0..0" in message


def test_a_component_the_device_lacks_is_refused() -> None:
    """A host pool with another component than the device is refused."""
    mirror = mirror_of(index_k(1, 64), host_geometry=deepseek_v4_c4(1))
    message = refusal(mirror, pages(mirror, 0), pages(mirror, 0))
    assert "keeps component kv, the device pool has only index_k" in message


def test_a_host_item_that_leaves_the_device_tensor_is_refused() -> None:
    """A wider host page is copied up to the tensor's end, and refused beyond it."""
    mirror = mirror_of(index_k(1, 64, "fp8"), host_geometry=index_k(1, 64, "bf16"))
    message = refusal(mirror, pages(mirror, 0), pages(mirror, 2))
    assert str(2 * 8448 + 16384) in message
    assert str(3 * 8448) in message


@pytest.mark.parametrize(
    ("cls", "geometry", "layout", "words"),
    [
        (LatentHostPool, mla(1, 2), Layout.PAGE_HEAD, "LatentHostPool of mla has no layout"),
        (LatentHostPool, index_k(1, 2), Layout.PAGE_FIRST, "page_indexed=True"),
        (IndexKHostPool, mla(1, 2), Layout.PAGE_FIRST, "page_indexed=False"),
        (PagedHostPool, mla(1, 2), Layout.PAGE_FIRST, "page_indexed=False"),
        (MHAHostPool, mla(1, 2), Layout.PAGE_HEAD, "has no head axis"),
    ],
)
def test_a_host_pool_refuses_what_it_is_not_for(
    cls: type[HostPool], geometry: PoolGeometry, layout: Layout, words: str
) -> None:
    """A host pool class accepts only its own kind of geometry and its own layouts."""
    with pytest.raises(GeometryError, match=words):
        cls(geometry, 2, layout)


def test_an_unknown_device_type_is_refused() -> None:
    """The refusal names the device type and the supported ones."""
    with pytest.raises(ValueError, match=r"device type 'meta'.*cpu or cuda"):
        copier_for("meta", IoBackend.KERNEL)


def test_pinning_without_cuda_is_on_record() -> None:
    """A request to pin that could not be met is recorded, not raised."""
    with host_pool_for(mla(1, 2), 2, Layout.LAYER_FIRST, pin=True) as pool:
        assert pool.pinned.requested
        if torch.cuda.is_available():
            assert pool.pinned.bytes == pool.nbytes
        else:
            assert not pool.pinned.pinned
            assert pool.pinned.return_code != 0
            assert pool.pinned.bytes == 0
    assert not pool.pinned.pinned


def test_what_fitted_once_is_looked_at_again() -> None:
    """After a valid copy the same checks still apply: ids, their number, and the memory."""
    mirror = mirror_of(index_k(1, 4))
    good = PoolCopy(
        mirror,
        pages(mirror, 3, 0),
        pages(mirror, 2, 1),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=(0,),
    )
    TransferEngine().backup(CopyOp(1, "backup", (good,), np.zeros(2, dtype=np.uint32)))
    assert "host page 4 is out of range" in refusal(mirror, pages(mirror, 4), pages(mirror, 0))
    assert "host page -1 is out of" in refusal(mirror, pages(mirror, 3, -1), pages(mirror, 0, 1))
    assert "device page 3 is out of range" in refusal(mirror, pages(mirror, 0), pages(mirror, 3))
    assert "1 host and 2 device ids" in refusal(mirror, pages(mirror, 0), pages(mirror, 0, 1))
    slots = Indices.slots([0])
    assert "the host indices are single slots" in refusal(mirror, slots, pages(mirror, 0))
    mirror.host.pages = 2  # as a pool that was opened anew, smaller
    assert "host page 3 is out of range" in refusal(mirror, pages(mirror, 3), pages(mirror, 0))
