"""Real pools and a small run for the tests of the repro package."""

from collections.abc import Callable

import pytest
import torch

from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools, kv_store
from hicache_dbg.repro.kvio import KvStore
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.run import run
from hicache_dbg.repro.workload import Truth

StoreMaker = Callable[[int, IndexDtype], KvStore]

#: Six sessions of four pages at most, of which the device holds two: every second turn loads.
SMALL = RunConfig(sessions=6, rounds=2, ctx=140, max_tokens=10, device_pages=8, host_pages=64)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small steps on cores that others want too: barriers would dominate."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> Model:
    """The model with its default weights."""
    return Model()


@pytest.fixture(scope="session")
def make_store(model: Model) -> StoreMaker:
    """Pools of a number of pages, as the model sees them."""

    def make(pages: int, index_dtype: IndexDtype) -> KvStore:
        return kv_store(device_pools(RunConfig(index_dtype=index_dtype), model.spec, pages), model.spec)

    return make


@pytest.fixture(scope="session")
def small() -> RunConfig:
    """A run of a second that loads and evicts."""
    return SMALL


@pytest.fixture(scope="session")
def small_truth() -> Truth:
    """The ground truth of the small run."""
    truth = run(SMALL).truth
    assert truth is not None
    return truth
