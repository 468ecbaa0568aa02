"""Totals over all events since the start of a run."""

from collections import Counter
from dataclasses import dataclass, field

from hicache_dbg.tracer.events import Copied, Event, Finding

__all__ = ["Totals"]


@dataclass(slots=True)
class Totals:
    """Counts of events, tiles and findings; see :class:`~hicache_dbg.tracer.events.Health`."""

    events: int = 0
    copies: int = 0
    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    findings: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        """Count an event in."""
        self.events += 1
        if isinstance(event, Copied):
            self.copies += 1
            self.verified += event.verified
            self.witnessed += event.witnessed
            self.mismatched += event.mismatched
            if event.skipped:
                self.skipped.update(event.skipped)
        elif isinstance(event, Finding):
            self.findings += event.count
