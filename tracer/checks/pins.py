"""Count locks and pins by handle."""

from typing import NewType

from hicache_dbg.tracer.checks.ownership import CHECK
from hicache_dbg.tracer.checks.ownership_rules import UNPINNED
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Handle", "Pins"]

#: Identifies what is locked or pinned: a node of a prefix tree, an object of a store.
Handle = NewType("Handle", int)


class Pins:
    """Locks and pins on handles; those taken unseen are adopted from the system's own count."""

    def __init__(self) -> None:
        self._counts: dict[Handle, int] = {}
        self._last: dict[Handle, Access] = {}

    def pin(self, handle: Handle, by: Access, held: int = 1) -> None:
        """Record one more pin on ``handle``; ``held`` is the system's count including it."""
        self._counts[handle] = self._counts.get(handle, held - 1) + 1
        self._last[handle] = by

    def unpin(self, handle: Handle, by: Access, *, refused: bool = False) -> list[Violation]:
        """Record one pin less; a refusal by the system is proof even if no pin was seen."""
        count = self._counts.get(handle)
        known = count is not None or refused
        if known and (count or 0) < 1:
            return [
                Violation(
                    UNPINNED.cls,
                    CHECK,
                    f"handle {handle}",
                    UNPINNED.words,
                    (),
                    by,
                    self._last.get(handle),
                    expected="at least 1 pin",
                    got="0",
                    advice=UNPINNED.advice,
                )
            ]
        if count is not None and not refused:
            self._counts[handle] = count - 1
            self._last[handle] = by
        return []

    def forget(self, handle: Handle) -> None:
        """Drop a handle that is gone."""
        self._counts.pop(handle, None)
        self._last.pop(handle, None)
