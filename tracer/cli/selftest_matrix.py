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
    events, clean = run(None, layout, seed)
    if clean.wrong or clean.errors or not clean.loads:
        raise RuntimeError(
            f"the clean twin of {fault.name} made {clean.loads} loads and read {len(clean.wrong)} wrong "
            f"tiles ({clean.errors or 'no error'}), expected loads and nothing wrong"
        )
    clean_findings = sum(finding.count for finding in _findings(events))
    events, rehearsed = run(fault, layout, seed)
    findings = _findings(events)
    right = [finding for finding in findings if finding.cls is fault.cls]
    return Row(
        fault=fault.name,
        cls=fault.cls.value,
        found=bool(right),
        named=_first_class(findings) is fault.cls,
        pool_right=_pools_right(right, set(fault.pools or rehearsed.pools)),
        pages_right=_pages_right(right, rehearsed.harmed),
        before_first_read=_in_time(right, rehearsed.first_wrong_ns),
        clean_findings=clean_findings,
        checks=sorted({finding.check for finding in right}),
        moved=rehearsed.moved,
        wrong_tiles=len(rehearsed.wrong),
        message=right[0].message if right else "",
    )


def _findings(events: Sequence[Event]) -> list[Finding]:
    return [event for event in events if isinstance(event, Finding)]


def _first_class(findings: Sequence[Finding]) -> FaultClass | None:
    """Return the class that names the cause: the first one in the order of the classes."""
    return min((finding.cls for finding in findings), key=_ORDER.__getitem__, default=None)


def _pools_right(findings: Sequence[Finding], harmed: set[str]) -> bool:
    """Return whether something was found, and only in harmed pools."""
    return bool(findings) and all(set(item.pool.split("+")) <= harmed for item in findings)


def _pages_right(findings: Sequence[Finding], harmed: set[int]) -> bool:
    """Return whether something was found, and if the harmed pages are known, only in those."""
    named = {page for finding in findings for page in finding.pages}
    return bool(findings) and (not harmed or (bool(named) and named <= harmed))


def _in_time(findings: Sequence[Finding], first_wrong_ns: int) -> bool:
    """Return whether something was found before the first wrong read; 0 means there was none."""
    times = [finding.time_ns for finding in findings]
    return bool(times) and (not first_wrong_ns or min(times) <= first_wrong_ns)
