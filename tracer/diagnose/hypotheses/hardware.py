"""Bytes changed at rest."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.events import FaultClass

HYPOTHESIS = by_class(
    "hardware",
    FaultClass.BIT_FLIP,
    question="Is it the hardware (ECC, PCIe replay, Xid)?",
    words="bytes changed at rest, with nobody writing",
    alibi=all_loads_equal,
    falsified_by="every loaded tile equals what was backed up",
    advice="look at the Hardware dashboard and at dmesg for Xid and EDAC, and take the machine out of service",
    decide_by="HICACHE_DBG_SCRUB=200 re-reads resting pages",
)
