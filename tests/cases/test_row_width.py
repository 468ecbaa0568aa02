"""Published fault reports of class row_width: bytes, strides and budgets, with their diagnosis."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import (
    Component,
    IndexUnit,
    IoBackend,
    Layout,
    PoolGeometry,
    RunSpec,
)
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine, TransferError
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.checks.contract import compare_fields
from hicache_dbg.tracer.checks.pinning import PoolBudget, check_budget
from hicache_dbg.tracer.checks.shared_space import check_shared_space
from hicache_dbg.tracer.events import FaultClass


def rows(name: str, width: int, *, layers: int = 1, page: int = 64) -> PoolGeometry:
    """Return a row-indexed pool of ``width`` bytes per token."""
    return PoolGeometry(
        name=name,
        layers=layers,
        slots_per_page=page,
        tokens_per_slot=1,
        index_unit=IndexUnit.TOKEN,
        page_indexed=False,
        components=(Component("latent", torch.uint8, (RunSpec("row", width),)),),
    )


def mirror(geometry: PoolGeometry, pages: int = 8) -> Mirror:
    """Return a mirror whose host agrees with its device."""
    device = DevicePool(geometry, pages)
    return Mirror(device, LatentHostPool(host_geometry_like(device), pages, Layout.PAGE_FIRST))


@pytest.mark.parametrize(("draft", "told"), [(576, True), (656, False)])
def test_one_index_space_and_two_strides(draft: int, *, told: bool) -> None:
    """Entry 4: index 700 lies at 459,200 in the target and at 403,200 in the draft."""
    assert (700 * 656, 700 * 576) == (459_200, 403_200)
    views = [
        mirror_views(mirror(rows(name, width)), None)
        for name, width in (("mla", 656), ("draft_mla", draft))
    ]
    found = check_shared_space(views, time_ns=1)
    assert bool(found) is told
    if told:
        assert (found[0].cls, found[0].pool) == (FaultClass.ROW_WIDTH, "draft_mla")
        assert "one index space, two strides, same declared format" in found[0].message


def test_the_pool_whose_entry_fails_is_named() -> None:
    """Entry 6: main and draft get the same indices.

    The draft's fourth is not a page of its host pool.
    """
    main, draft = mirror(rows("main", 656)), mirror(rows("draft", 576), pages=7)
    ids = [0, 3, 5, 7]
    copies = tuple(
        PoolCopy(
            mirror=part,
            host=Indices.pages(ids, part.host.geometry),
            device=Indices.pages([0, 1, 2, 3], part.device.geometry),
            token_granular=False,
            io_backend=IoBackend.KERNEL,
            layers=(0,),
        )
        for part in (main, draft)
    )
    main.device.layer("latent", 0).fill_(9)
    op = CopyOp(1, "backup", copies, np.ones(4, np.uint32))
    with pytest.raises(TransferError, match=r"draft.*\b7\b") as refused:
        TransferEngine().backup(op)
    assert "18446744073709551615" not in str(refused.value)
    assert not main.host.buffers["latent"].tensors[0].any()  # refused before a byte moved


@pytest.mark.parametrize(("blocks", "fits"), [(1000, True), (16, False)])
def test_bytes_a_block_are_counted_once(blocks: int, *, fits: bool) -> None:
    """Entry 7: 50 layers of 65,536 B and 10 of 32,768 B.

    Counted per layer again, 1,000 blocks become 16.
    """
    block = 50 * 65_536 + 10 * 32_768
    assert block == 3_604_480
    budget = 3_604_480_000
    assert (budget // block, budget // (block * 60)) == (1000, 16)
    found = check_budget(PoolBudget(budget, {"blocks": blocks}), {"kv": blocks * block}, time_ns=1)
    assert (found == []) is fits


def test_the_wire_has_the_payloads_dtype() -> None:
    """Entry 8: layer 0 is fp16 state, the payload fp8: 8,192 elements are 8,192 B on the wire."""
    state, payload = (
        torch.zeros(8192, dtype=torch.float16),
        torch.zeros(8192, dtype=torch.float8_e4m3fn),
    )
    right, wrong = ({"bytes": f"{tensor.nbytes}"} for tensor in (payload, state))
    assert (right["bytes"], wrong["bytes"]) == ("8192", "16384")
    assert compare_fields("kv", right, right, time_ns=1) == []
    (found,) = compare_fields("kv", right, wrong, time_ns=1)
    assert (found.expected, found.got) == ("bytes=8192", "bytes=16384")


def test_a_token_is_priced_by_its_tensors() -> None:
    """Entry 10: 78 layers of 656 B and an index of 132 B at ratio 4.

    Together they take 92,352 B a token, not 86,112.
    """
    packed, nominal = rows("mla", 656, layers=78), rows("mla", 576, layers=78)
    index = index_k(78, 64, "fp8")
    real, told = (
        pool.layers * pool.components[0].slot_bytes
        + 4 * index.layers * index.components[0].slot_bytes
        for pool in (packed, nominal)
    )
    assert (real, told, real - told) == (92_352, 86_112, 6_240)
    (found,) = check_budget(PoolBudget(told, {"ratio": 4}), {"mla+dsa_index_k": real}, time_ns=1)
    assert found.cls is FaultClass.PINNING
    assert "92352" in found.message
    assert check_budget(PoolBudget(real, {"ratio": 4}), {"mla+dsa_index_k": real}, time_ns=1) == []


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_draft_pools_are_compared_with_their_own_target_only(target: int, other: int) -> None:
    """Entry 4: pools that are not drafts of each other may have different strides."""
    view = mirror_views(mirror(rows("mla", 64)), None)
    wide = replace(
        view,
        pool="index_k",
        device={name: replace(part, page_span=other) for name, part in view.device.items()},
    )
    assert check_shared_space([view, wide], time_ns=target) == []
