"""A backup read its source before the writer was done."""

from hicache_dbg.tracer.diagnose.by_class import by_class, no_alibi
from hicache_dbg.tracer.diagnose.deciding import by_looking_at_waits
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "stored_before_written",
    FaultClass.STORE_BEFORE_WRITE,
    question="Does a backup read pages that are still being written?",
    words="a backup reads its source before the writer is done",
    # Not even checksum=three rules it out: a writer may come after the second digest of the source.
    alibi=no_alibi,
    falsified_by="nothing that is recorded: a writer may come after every look at the source",
    advice="make the backup's stream wait for the event of the last writer",
    decide_by=by_looking_at_waits,
)
