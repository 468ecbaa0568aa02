"""An operation failed and was reported as done."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "failed_load_reported_done",
    FaultClass.FAILED_LOAD,
    question="Is a failed load reported as done?",
    words="a load that failed is reported as done",
    alibi=all_loads_equal,
    falsified_by="every loaded tile arrived",
    advice="pass the status on and recompute the pages; do not insert them into the tree",
    decide_by="HICACHE_DBG_CHECKSUM=loads",
)
