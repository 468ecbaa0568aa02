"""Bytes were damaged in a file or a store."""

from hicache_dbg.tracer.diagnose.by_class import by_class, no_traffic
from hicache_dbg.tracer.events import FaultClass, Op

HYPOTHESIS = by_class(
    "truncated_storage",
    FaultClass.STORAGE_DAMAGE,
    question="Is a stored page truncated, flipped or another writer's?",
    words="stored bytes are damaged",
    alibi=no_traffic(Op.FETCH, what="no page came from storage"),
    falsified_by="nothing was fetched from storage, or every fetched tile is equal",
    advice="remove the named file or key; write to a temporary name and rename; check length and digest at the read",
    decide_by="HICACHE_DBG_OPS=* with the storage tier on",
)
