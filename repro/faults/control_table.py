"""Tables that the host overwrites while a copy still reads them."""

from collections.abc import Callable

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _waits_for(behind: int | None) -> Callable[[Target], None]:
    """The host waits for another copy of the table than the last one, or for none."""

    def install(target: Target) -> None:
        if target.table is None:
            raise ConfigError(
                "this fault is in the page table, and nothing uploads one here; run hicache-dbg selftest"
            )
        target.table.behind = behind

    return install


FAULTS = (
    Fault(
        name="page_table_overwritten_under_its_copy",
        cls=FaultClass.CONTROL_TABLE,
        summary="the host writes the next step's page table while the last one is still being copied",
        install=_waits_for(None),
        pools=("page_table",),
    ),
    Fault(
        name="page_table_waits_for_an_older_copy",
        cls=FaultClass.CONTROL_TABLE,
        summary="the host waits for the copy before the last before it writes the page table",
        install=_waits_for(1),
        pools=("page_table",),
    ),
)
