"""All pool sets by name."""

from collections.abc import Mapping
from types import MappingProxyType

from hicache_dbg.repro.chats.poolset import SMOLLM2
from hicache_dbg.repro.config import MODELS, POOLS
from hicache_dbg.repro.mha import MHA
from hicache_dbg.repro.mla import MLA_INDEX_K
from hicache_dbg.repro.poolset import PoolSet
from hicache_dbg.repro.v4.model import DEEPSEEK_V4

__all__ = ["MODEL_SETS", "POOL_SETS"]

POOL_SETS: Mapping[str, PoolSet] = MappingProxyType(
    dict(zip(POOLS, (MLA_INDEX_K, MHA, DEEPSEEK_V4), strict=True))
)
"""The pool sets that a run can keep its cache in."""

MODEL_SETS: Mapping[str, PoolSet] = MappingProxyType(dict(zip(MODELS, (SMOLLM2,), strict=True)))
"""Those of real models."""
