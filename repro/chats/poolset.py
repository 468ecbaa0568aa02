"""SmolLM2 as a pool set: one pool for its keys and values, chats as the workload."""

from collections.abc import Mapping

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import MHAHostPool
from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.chats.smollm2 import load
from hicache_dbg.repro.chats.workload import answered_alone
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.poolset import PoolSet

__all__ = ["SMOLLM2"]

_PAGE_SIZE = 8


def _geometries(_index_dtype: IndexDtype) -> tuple[PoolGeometry, ...]:
    bot = load()  # reports what to install before the next import can fail
    from hicache_dbg.pools.transformers_cache import geometry_of

    return (geometry_of(bot.model.config, _PAGE_SIZE, torch.float32),)


def _model(pools: Mapping[str, DevicePool]) -> Model:
    from hicache_dbg.repro.chats.model import ChatModel

    return ChatModel(load(), pools["mha"])


SMOLLM2 = PoolSet(
    page_size=_PAGE_SIZE,
    ctx=33,
    session_device_pages=None,
    trace_device_pages=0,
    host_pages=512,
    kill_after=6,
    host_class={"mha": MHAHostPool},
    geometries=_geometries,
    model=_model,
    alone=answered_alone,
)
"""Pages are small, so that a chat of a few questions has several; 30 layers make 368,640 bytes of one."""
