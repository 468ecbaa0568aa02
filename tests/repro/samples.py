"""Small helpers shared by tests of the repro package."""

from dataclasses import replace

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.repro.workload import content_tokens

#: Six sessions of four pages at most, of which the device holds two: every second turn loads.
SMALL = RunConfig(sessions=6, rounds=2, ctx=140, max_tokens=10, device_pages=8, host_pages=64)

#: The same for each pool set; a page of deepseek_v4 holds four times the tokens.
SMALLS = {
    "mla_index_k": SMALL,
    "mha": replace(SMALL, pools="mha"),
    "deepseek_v4": replace(SMALL, pools="deepseek_v4", sessions=4, ctx=530, device_pages=4),
}

Pools = dict[str, DevicePool]


def make_model(
    pages: int, pools: str = "mla_index_k", index_dtype: IndexDtype = "bf16"
) -> tuple[Model, Pools]:
    """Return the model of a pool set over real pools of ``pages`` pages."""
    pool_set = POOL_SETS[pools]
    made = device_pools(pool_set.geometries(index_dtype), pages, torch.device("cpu"))
    return pool_set.model(made), made


def words(count: int, seed: int = 0) -> torch.Tensor:
    """Return content tokens to prefill."""
    return torch.from_numpy(content_tokens(count, seed))
