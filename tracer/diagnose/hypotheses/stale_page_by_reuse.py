"""A slot was freed or reused while something still used it."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "stale_page_by_reuse",
    FaultClass.SLOT_REUSE,
    question="Is a page reused while a copy of it is open?",
    words="a slot is freed or reused while a copy is open",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up, under the generation it was allocated with",
    advice="hold the lock until the operation is reported complete: the finding names the free and the open copy",
    decide_by=by_comparing,
)
