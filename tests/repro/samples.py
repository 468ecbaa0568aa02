"""Small things that several tests of the repro package use."""

import torch

from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools, kv_store
from hicache_dbg.repro.kvio import KvStore
from hicache_dbg.repro.weights import ModelSpec
from hicache_dbg.repro.workload import content_tokens

DTYPES: tuple[IndexDtype, ...] = ("bf16", "fp8")

#: Six sessions of four pages at most, of which the device holds two: every second turn loads.
SMALL = RunConfig(sessions=6, rounds=2, ctx=140, max_tokens=10, device_pages=8, host_pages=64)


def make_store(pages: int, index_dtype: IndexDtype = "bf16") -> KvStore:
    """Real pools of ``pages`` pages, as the model sees them."""
    spec = ModelSpec()
    return kv_store(device_pools(RunConfig(index_dtype=index_dtype), spec, pages), spec)


def words(count: int, seed: int = 0) -> torch.Tensor:
    """Content tokens to prefill."""
    return torch.from_numpy(content_tokens(count, seed))
