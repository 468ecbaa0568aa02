"""Whether a tier that is written also answers, and whether copies take the path that was chosen.

Pure bookkeeping on ints: pages written to a tier, pages that were asked of it, pages that came back. A
tier that only ever takes is dead, however healthy it looks. To look whether it has a page is not
to ask for it, and a load that fails is told by itself.
"""

from dataclasses import dataclass

from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "LOOKUPS", "LOOKUPS_AT_CLOSE", "Paths", "TierUse"]

CHECK = "tiers"
#: Lookups without an answer that make a tier dead while a run is under way, and at its end.
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
        """``pages`` were stored and acknowledged."""
        self.written += pages

    def gave(self, pages: int) -> None:
        """``pages`` came back from the tier."""
        self.served += pages

    def asked(self, by: Access) -> list[Violation]:
        """Pages that the tier holds were asked for, and no load was begun."""
        self.lookups += 1
        return self._judged(LOOKUPS, by)

    def closed(self, by: Access) -> list[Violation]:
        """No more will be asked."""
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
                f"the tier never served: {self.written} pages written, {self.lookups} lookups for pages "
                "that it holds",
                (),
                by,
                expected="pages read back",
                got="0",
                advice="look at what happens to a hit on this tier: a failed or skipped read looks like a miss",
            )
        ]


class Paths:
    """Which way copies of each pool take, against the one that was chosen."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def took(self, pool: str, chosen: str, path: str, by: Access) -> list[Violation]:
        """A copy of ``pool`` ran on ``path``; told once a pool and path."""
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
