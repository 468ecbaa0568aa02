"""Fixtures for every test of the repro package."""

from collections.abc import Iterator

import pytest
import torch
from tests.repro.samples import SMALL, SMALLS

from hicache_dbg.repro.run import run
from hicache_dbg.repro.workload import Truth


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread: on shared cores, barriers would dominate such small steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_truth() -> Truth:
    """The ground truth of the small run."""
    truth = run(SMALL).truth
    assert truth is not None
    return truth


@pytest.fixture(scope="session")
def truths(small_truth: Truth) -> dict[str, Truth]:
    """The ground truth of the small run of each pool set."""
    found = {"mla_index_k": small_truth}
    for name in SMALLS.keys() - found.keys():
        truth = run(SMALLS[name]).truth
        assert truth is not None
        found[name] = truth
    return found
