"""One row of the detection matrix: a fault and the same run without it."""

from collections.abc import Sequence

import msgspec

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.selftest_stages import STAGES
from hicache_dbg.tracer.events import Event, FaultClass, Finding

__all__ = ["Row", "row_of"]

_ORDER = {cls: number for number, cls in enumerate(FaultClass)}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of rehearsing one fault.

    Attributes:
        named: the first finding class that holds, in the order of the classes, is the fault's.
        pool_right: the findings are about the pools that the fault harmed.
        pages_right: the findings are about the pages that the fault harmed.
        before_first_read: the first finding came before a reader met a wrong byte.
        moved: number of operations that moved pages.
        clean_findings: number of findings in the same run without the fault.
    """

    fault: str
    cls: str = msgspec.field(name="class")
    found: bool
    named: bool
    pool_right: bool
    pages_right: bool
    before_first_read: bool
    clean_findings: int
    checks: list[str]
    moved: int
    wrong_tiles: int
    message: str

    @property
    def good(self) -> bool:
        """Whether the fault was found and named correctly, and nothing was found without it."""
        return self.found and self.named and not self.clean_findings


def row_of(fault: Fault, *, layout: Layout = Layout.PAGE_FIRST, seed: int = 0) -> Row:
    """Rehearse ``fault``, and the same run without it, under the tracer.

    Raises:
        RuntimeError: the clean run read nothing back, or read a wrong byte, so the stage is broken.
    """
    run = STAGES[fault.stage]
    told, twin = run(None, layout, seed)
    clean = _findings(told)
    if twin.wrong or twin.errors or not twin.loads:
        raise RuntimeError(
            f"the clean twin of {fault.name} made {twin.loads} loads and read {len(twin.wrong)} wrong "
            f"tiles ({twin.errors or 'no error'}), expected loads and nothing wrong"
        )
    told, seen = run(fault, layout, seed)
    findings = _findings(told)
    right = [finding for finding in findings if finding.cls is fault.cls]
    first = min((finding.cls for finding in findings), key=lambda cls: _ORDER[cls], default=None)
    pools = set(fault.pools or seen.pools)
    return Row(
        fault=fault.name,
        cls=fault.cls.value,
        found=bool(right),
        named=first is fault.cls,
        pool_right=bool(right) and all(set(item.pool.split("+")) <= pools for item in right),
        pages_right=_pages_right(right, seen.harmed),
        before_first_read=bool(right)
        and (not seen.first_wrong_ns or min(f.time_ns for f in right) <= seen.first_wrong_ns),
        clean_findings=sum(finding.count for finding in clean),
        checks=sorted({finding.check for finding in right}),
        moved=seen.moved,
        wrong_tiles=len(seen.wrong),
        message=right[0].message if right else "",
    )


def _findings(events: Sequence[Event]) -> list[Finding]:
    return [event for event in events if isinstance(event, Finding)]


def _pages_right(findings: Sequence[Finding], harmed: set[int]) -> bool:
    """Return whether only harmed pages are named, and at least one.

    Any will do if none is specific.
    """
    named = {page for finding in findings for page in finding.pages}
    return bool(findings) and (not harmed or (bool(named) and named <= harmed))
