"""The dashboards, one module each."""

from hicache_dbg.tracer.dashboards.boards.hardware import HARDWARE
from hicache_dbg.tracer.dashboards.boards.integrity import INTEGRITY
from hicache_dbg.tracer.dashboards.boards.paths import PATHS
from hicache_dbg.tracer.dashboards.boards.pools import POOLS
from hicache_dbg.tracer.dashboards.boards.selfwatch import SELF

__all__ = ["BOARDS"]

BOARDS = (INTEGRITY, PATHS, POOLS, HARDWARE, SELF)
