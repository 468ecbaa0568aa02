"""What each fault class means, in a few words for readers new to it."""

from collections.abc import Mapping
from types import MappingProxyType

from hicache_dbg.tracer.events import FaultClass

__all__ = ["MEANINGS"]

MEANINGS: Mapping[FaultClass, str] = MappingProxyType(
    {
        FaultClass.ROW_WIDTH: "the two ends disagree in bytes a token, dtype, capacity or owned layers",
        FaultClass.LAYOUT_ORDER: "right size, wrong order; or no tag, and two orders fit",
        FaultClass.INDEX_SPACE: "tokens taken for pages, logical for physical, out of range",
        FaultClass.SIDECAR_MISSING: "state not carried with the pages it belongs to",
        FaultClass.SLOT_REUSE: "a page freed or reused while a copy was open",
        FaultClass.STORE_BEFORE_WRITE: "a backup read its source before the writer was done",
        FaultClass.READ_BEFORE_LOAD: "a layer read before its load, or an older write landing on a loaded page",
        FaultClass.FAILED_LOAD: "a load that failed was reported as done",
        FaultClass.KEY_IDENTITY: "one key for two contents, or two keys for one",
        FaultClass.STALE_INDEX: "the index says present, the bytes are gone",
        FaultClass.STORAGE_DAMAGE: "truncated, flipped or another writer's bytes in a store",
        FaultClass.RANK_DIVERGENCE: "ranks disagree in capacity, hits, collective calls, or the bytes of a tile",
        FaultClass.PD_CONTRACT: "prefill and decode disagree in geometry or counts, or a tile arrived different",
        FaultClass.PINNING: "host memory not pinned, or mis-sized",
        FaultClass.DEAD_TIER: "a tier is written and never answers, or a slow fallback is taken",
        FaultClass.CONTROL_TABLE: "a page table overwritten while a copy reads it",
        FaultClass.DOUBLE_FREE: "freed or unpinned twice, or a leak",
        FaultClass.BIT_FLIP: "bytes changed at rest with nobody writing",
    }
)
