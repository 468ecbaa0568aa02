"""The same copies on a real device; ``benchmarks.copies`` adds their speed."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.pools.copying import (
    COMBINATIONS,
    KINDS,
    WAYS,
    Combination,
    Way,
    assert_equal,
    ends_after,
    fill,
    name_of,
    run,
    snapshot,
)

from hicache_dbg.pools import cuda_gather, cuda_split
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.transfer import TransferError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(params=COMBINATIONS, ids=name_of)
def combination(request: pytest.FixtureRequest) -> Combination:
    """A pool kind, a layout and an io backend that exist together."""
    param: Combination = request.param
    return param


@pytest.fixture
def mirror(combination: Combination) -> Iterator[Mirror]:
    """A pinned mirror full of random bytes."""
    device = DevicePool(KINDS[combination[0]](3), 7, "cuda")
    with host_pool_for(host_geometry_like(device), 9, combination[1], pin=True) as host:
        fill(device, 1)
        fill(host, 2)
        torch.cuda.synchronize()
        yield Mirror(device, host)


@pytest.mark.parametrize("share", [0, 50])
def test_whole_pages_round_trip(
    mirror: Mirror, combination: Combination, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup and a load to other pages move every byte of those pages and no other byte.

    The share that copy engines take makes no difference.
    """
    if share:
        monkeypatch.setattr(cuda_gather, "LEAST_BYTES", 1)
        monkeypatch.setattr(cuda_gather, "LONG_PAGE_BYTES", 1)
        monkeypatch.setattr(cuda_split, "LEAST_BYTES", 1)
        monkeypatch.setattr(cuda_split, "BACKUP_SHARES", ((1, share),))
        monkeypatch.setattr(cuda_split, "LOAD_SHARES", ((1, share),))
    host_ids, device_ids = [8, 2, 3, 4, 0], [6, 0, 1, 5, 3]
    ends = ends_after(mirror, "backup", host_ids, device_ids)
    run(mirror, "backup", host_ids, device_ids, backend=combination[2])
    assert_equal(mirror, *ends)
    targets = device_ids[::-1]
    ends = ends_after(mirror, "load", host_ids, targets)
    assert run(mirror, "load", host_ids, targets, backend=combination[2]) == [0, 1, 2]
    assert_equal(mirror, *ends)


@pytest.mark.parametrize("way", WAYS)
def test_single_slots_move_alone(mirror: Mirror, combination: Combination, way: Way) -> None:
    """A token-granular copy moves exactly the runs of its slots and no other byte."""
    geometry = mirror.device.geometry
    if not geometry.single_slots:
        pytest.skip("a slot of this pool stands for no one token")
    rng = np.random.default_rng(5)
    host_slots = rng.permutation(9 * geometry.slots_per_page)[:6].tolist()
    device_slots = rng.permutation(7 * geometry.slots_per_page)[:6].tolist()
    ends = ends_after(mirror, way, host_slots, device_slots, single=True)
    run(mirror, way, host_slots, device_slots, backend=combination[2], single=True)
    assert_equal(mirror, *ends)


def test_memory_that_is_not_pinned_is_refused_by_the_kernel() -> None:
    """The device must not be given host addresses that it cannot access."""
    device = DevicePool(index_k(1, 64), 2, "cuda")
    host = host_pool_for(host_geometry_like(device), 2, Layout.LAYER_FIRST)
    with pytest.raises(TransferError, match="not pinned; open it with pin=True"):
        run(Mirror(device, host), "backup", [0], [0], backend=IoBackend.KERNEL)


def test_a_controller_on_the_device_returns_what_was_written() -> None:
    """Pages written on the caller's stream come back from the host with the same bytes."""
    group = PoolGroup.build(
        [mla(2, 4), index_k(2, 4)],
        device_pages=4,
        host_pages=16,
        layout=Layout.PAGE_FIRST,
        device="cuda",
        pin=True,
    )
    first, second = (np.arange(12, dtype=np.int32) + 100 * number for number in range(2))
    with HiCacheController(group) as controller:
        places = controller.alloc_device(3)
        for pool in group.device.values():
            fill(pool, 1)
        written = {name: snapshot(pool) for name, pool in group.device.items()}
        controller.insert(first, places)
        controller.flush()
        pages = controller.alloc_device(3)  # the first pages must go for these
        for pool in group.device.values():
            fill(pool, 2)
        controller.insert(second, pages)
        controller.flush()
        match = controller.match(first)
        assert match.host_pages.size == 3
        ticket = controller.load_back(match)
        controller.wait_layer(1, ticket)
        for name, pool in group.device.items():
            for component, value in snapshot(pool).items():
                got, want = value[:, ticket.device_pages], written[name][component][:, places]
                assert torch.equal(got, want)
        controller.unlock(match)
    group.close()
