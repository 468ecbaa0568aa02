"""The tracing levels, as the verbs' options name them."""

from enum import StrEnum

from hicache_dbg.tracer.settings import Checksum

__all__ = ["CHECKSUMS", "GateLevel"]


class GateLevel(StrEnum):
    """How closely a run is traced: not at all, events only, or with digests."""

    OFF = "off"
    EVENTS = "events"
    LOADS = "loads"
    ENDS = "ends"
    THREE = "three"


#: What is digested at each level; ``off`` attaches nothing.
CHECKSUMS = {
    GateLevel.EVENTS: Checksum.OFF,
    GateLevel.LOADS: Checksum.LOADS,
    GateLevel.ENDS: Checksum.ENDS,
    GateLevel.THREE: Checksum.THREE,
}
