"""Check that a written tier also answers, and that copies take the configured path.

Pure bookkeeping on ints: pages written to a tier, requested from it, and returned. A tier that only
ever takes is dead, however healthy it looks. Checking for a page's presence does not count as a
request, and a failing load is reported elsewhere.
"""

from dataclasses import dataclass

from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.words import counted

__all__ = ["CHECK", "LOOKUPS", "LOOKUPS_AT_CLOSE", "Paths", "TierUse"]

CHECK = "tiers"
#: Unanswered lookups that make a tier count as dead during a run, and at its end.
LOOKUPS, LOOKUPS_AT_CLOSE = 50, 3


@dataclass(slots=True)
class TierUse:
    """What went into one tier and what came out of it."""

    tier: str
    written: int = 0
    lookups: int = 0
    served: int = 0
    _told: bool = False

    def wrote(self, pages: int) -> None:
        """Record that ``pages`` were stored and acknowledged."""
        self.written += pages

    def gave(self, pages: int) -> None:
        """Record that ``pages`` came back from the tier."""
        self.served += pages

    def asked(self, by: Access) -> list[Violation]:
        """Record a request for pages the tier holds that started no load."""
        self.lookups += 1
        return self._judged(LOOKUPS, by)

    def closed(self, by: Access) -> list[Violation]:
        """Judge the tier at the end of a run."""
        return self._judged(LOOKUPS_AT_CLOSE, by)

    def _judged(self, enough: int, by: Access) -> list[Violation]:
        if self._told or self.served or not self.written or self.lookups < enough:
            return []
        self._told = True
        return [
            Violation(
                FaultClass.DEAD_TIER,
                CHECK,
                self.tier,
                f"the tier never served: {counted(self.written, 'page')} written, "
                f"{counted(self.lookups, 'lookup')} for pages that it holds",
                (),
                by,
                expected="pages read back",
                got="0",
                advice="look at what happens to a hit on this tier: a failed or skipped read looks like a miss",
            )
        ]


class Paths:
    """Which path the copies of each pool take, compared with the configured one."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def took(self, pool: str, chosen: str, path: str, by: Access) -> list[Violation]:
        """Check the ``path`` that a copy of ``pool`` took; reported once per pool and path."""
        if path == chosen or (pool, path) in self._told:
            return []
        self._told.add((pool, path))
        return [
            Violation(
                FaultClass.DEAD_TIER,
                CHECK,
                "copies",
                "a fallback path is taken; it is right, and may be slower than computing again",
                (),
                by,
                expected=f"path {chosen}",
                got=f"path {path}",
                advice="look at what the chosen path demands (row bytes, alignment, layout), and whether the "
                "fallback is worth its time",
                pool=pool,
            )
        ]
