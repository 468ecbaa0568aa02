"""The giver and the user of an index disagree about its meaning."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "tokens_taken_for_pages",
    FaultClass.INDEX_SPACE,
    question="Are tokens taken for pages, or logical indices for physical ones?",
    words="an index is used in another unit than it was given in",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up",
    advice="convert at one place, by the pool's index_unit; until then keep page-indexed pools off the token path",
    decide_by=by_comparing,
)
