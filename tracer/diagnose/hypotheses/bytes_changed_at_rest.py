"""A host page does not hold what was backed up, and the copies delivered."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "bytes_changed_at_rest",
    FaultClass.BIT_FLIP,
    question="Does a host page hold other bytes than were backed up (a flipped bit, a stray write)?",
    words="a host page holds other bytes than were backed up, and the loads delivered them",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up",
    advice="run with HICACHE_DBG_CHECKSUM=ends: it tells a page that was stored wrong from one that changed at rest",
    decide_by="HICACHE_DBG_CHECKSUM=ends, and HICACHE_DBG_SCRUB=200 to re-read resting pages",
)
