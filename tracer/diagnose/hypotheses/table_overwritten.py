"""A page table was overwritten while a copy still read it."""

from hicache_dbg.tracer.diagnose.by_class import by_class, no_alibi
from hicache_dbg.tracer.diagnose.deciding import who_waits
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "table_overwritten",
    FaultClass.CONTROL_TABLE,
    question="Is a page table overwritten while a copy still reads it?",
    words="a page table is overwritten while a copy reads it",
    # The bytes of pages say nothing about those of the table.
    alibi=no_alibi,
    falsified_by="nothing that is recorded: equal pages say nothing of the table that led to them",
    advice="give each operation its own table, or wait for its event before the table is filled again",
    decide_by=who_waits,
)
