"""A page table was overwritten while a copy still read it."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "table_overwritten",
    FaultClass.CONTROL_TABLE,
    question="Is a page table overwritten while a copy still reads it?",
    words="a page table is overwritten while a copy reads it",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up",
    advice="give each operation its own table, or wait for its event before the table is filled again",
    decide_by="HICACHE_DBG_CHECKSUM=loads",
)
