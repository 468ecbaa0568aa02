"""A backup read its source before the writer was done."""

from hicache_dbg.tracer.diagnose.by_class import by_class
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass, Op


def _alibi(evidence: Evidence) -> str | None:
    """Under ``three`` each backup's source was digested twice: a change is a mismatch."""
    backups = evidence.of_op(Op.BACKUP)
    if not backups.verified or backups.mismatched or backups.skipped or evidence.unseen:
        return None
    return f"the source of all {backups.verified} compared backup tiles stayed as it was"


HYPOTHESIS = by_class(
    "stored_before_written",
    FaultClass.STORE_BEFORE_WRITE,
    question="Does a backup read pages that are still being written?",
    words="a backup reads its source before the writer is done",
    alibi=_alibi,
    falsified_by="the source was digested before and after each backup and did not change",
    advice="make the backup's stream wait for the event of the last writer",
    decide_by="HICACHE_DBG_CHECKSUM=three: says whether the source changed under the copy",
)
