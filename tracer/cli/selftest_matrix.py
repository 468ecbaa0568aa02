"""One row of the detection matrix: a fault beside its clean twin."""

from collections.abc import Sequence

import msgspec

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.selftest_stages import STAGES
from hicache_dbg.tracer.events import Event, FaultClass, Finding

__all__ = ["Row", "row_of"]

_ORDER = {cls: number for number, cls in enumerate(FaultClass)}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one fault.

    ``named`` says that the first class that holds, in the order of the classes, is the fault's;
    ``pool_right`` and ``pages_right`` that its findings are about the pools and pages that the
    fault harmed; ``before_first_read`` that the first of them was there before a reader met a wrong
    byte. ``moved`` counts the operations that moved pages, ``clean_findings`` the findings of the
    same run without the fault.
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
        """Whether the fault was found, rightly named, and nothing was found without it."""
        return self.found and self.named and not self.clean_findings


def row_of(fault: Fault, *, layout: Layout = Layout.PAGE_FIRST, seed: int = 0) -> Row:
    """Rehearse ``fault`` and its clean twin under the tracer.

    Raises:
        RuntimeError: the clean twin read nothing back, or read a wrong byte: the stage is broken.
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
    """Only harmed pages are named, and some are; where the fault harms none in particular, any."""
    named = {page for finding in findings for page in finding.pages}
    return bool(findings) and (not harmed or (bool(named) and named <= harmed))
