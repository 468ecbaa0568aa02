"""Counters of a storage tier."""

from dataclasses import dataclass, field

from hicache_dbg.pools.storage.results import PageState

__all__ = ["MISSES", "StorageStats"]

#: Why a requested page was not delivered: its state in the store, its reader gave up (``timeout``), the
#: host had no room, or a page before it was a miss (``behind``).
MISSES: tuple[str, ...] = (
    *(state.value for state in PageState if state is not PageState.OK),
    *("timeout", "no_room", "behind"),
)


@dataclass(slots=True)
class StorageStats:
    """Counts since the start, in pages of the anchor pool.

    Each requested page was either delivered in time or is counted in ``misses`` by reason
    (:data:`MISSES`). ``fetched_pages`` includes pages that came too late for their reader.
    ``unstored`` counts pages that were not stored, by reason.
    """

    stores: int = 0
    stored_pages: int = 0
    fetches: int = 0
    fetched_pages: int = 0
    asked_pages: int = 0
    given_pages: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    unstored: dict[str, int] = field(default_factory=dict)

    def missed(self, why: str, pages: int = 1) -> None:
        """Count ``pages`` misses for the reason ``why``."""
        if pages:
            self.misses[str(why)] = self.misses.get(why, 0) + pages

    def not_stored(self, why: str, pages: int) -> None:
        """Count ``pages`` that were not stored for the reason ``why``."""
        self.unstored[str(why)] = self.unstored.get(why, 0) + pages
