"""A tensor was read in an order other than the one it was written in."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "layout_misread",
    FaultClass.LAYOUT_ORDER,
    question="Is a layout misread: right size, wrong order?",
    words="one end reads a layout that the other did not write",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up, read through each end's own tensor",
    advice="compare the layouts of both ends in the geometry table, and let one place choose the layout",
    decide_by=by_comparing,
)
