"""What becomes of a host pool's registration with CUDA, on a stand-in for it and on a device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from hicache_dbg.pools import host
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.host import HostPool, host_pool_for
from hicache_dbg.pools.host_memory import host_zeros
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.pinning import PinState, pin, unpin

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stand in for CUDA: the sum of the bytes of each memory that is unregistered."""
    sums: list[int] = []

    guarded = False

    @contextmanager
    def guard() -> Iterator[None]:
        nonlocal guarded
        guarded = True
        yield
        guarded = False

    def give_back(memory: Sequence[torch.Tensor]) -> None:
        assert guarded  # a graph may be captured meanwhile
        sums.append(sum(int(part.sum()) for part in memory))

    whole = PinState(requested=True, pinned=True, return_code=0, bytes=1, chunks=1)
    monkeypatch.setattr(host, "pin", lambda _: whole)
    monkeypatch.setattr(host, "unpin", give_back)
    monkeypatch.setattr(host, "guard_for", lambda _: guard)
    return sums


def pinned_pool() -> HostPool:
    """Return a pool whose bytes add up to 7."""
    pool = host_pool_for(mla(1, 4), 2, Layout.PAGE_FIRST, pin=True)
    pool.buffers["latent"].flat(0)[3] = 7
    return pool


def test_a_closed_pool_is_unpinned_once(unpinned: list[int]) -> None:
    """Closing it again, or dropping it, makes no difference."""
    pool = pinned_pool()
    pool.close()
    pool.close()
    assert not pool.pinned.pinned
    del pool
    assert unpinned == [7]


def test_a_pool_that_is_only_dropped_is_unpinned_while_its_memory_is_mapped(
    unpinned: list[int],
) -> None:
    """CUDA would refuse the next pool at addresses that are still registered."""
    pool = pinned_pool()
    del pool
    assert unpinned == [7]


def test_a_forked_child_unpins_nothing(
    unpinned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot call CUDA, whose registration is its parent's."""
    pool = pinned_pool()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del pool
    assert unpinned == []


@pytest.mark.gpu
@needs_cuda
def test_a_pool_that_nobody_closed_leaves_nothing_registered() -> None:
    """The next one usually gets the same addresses, and is pinned too."""
    states = [host_pool_for(mla(1, 4), 64, Layout.PAGE_FIRST, pin=True).pinned for _ in range(3)]
    assert [state.return_code for state in states] == [0, 0, 0]


@pytest.mark.gpu
@needs_cuda
def test_what_the_runtime_refuses_is_no_error_of_torchs_next_call() -> None:
    """Neither memory that is registered twice nor memory that is unregistered twice."""
    memory = [host_zeros((1 << 20,), torch.uint8)]
    assert pin(memory).pinned
    assert pin(memory).return_code != 0
    assert torch.zeros(1, device="cuda").item() == 0
    unpin(memory)
    unpin(memory)
    assert torch.zeros(1, device="cuda").item() == 0
