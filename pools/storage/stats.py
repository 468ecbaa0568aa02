"""What a storage tier has done so far."""

from dataclasses import dataclass, field

from hicache_dbg.pools.storage.results import PageState

__all__ = ["MISSES", "StorageStats"]

#: Why a page that was asked for was not given: how it ended in the store, or that its reader did not
#: wait, the host had no room, or a page before it was none.
MISSES: tuple[str, ...] = (
    *(state.value for state in PageState if state is not PageState.OK),
    *("timeout", "no_room", "behind"),
)


@dataclass(slots=True)
class StorageStats:
    """Counts since the start, of pages of the anchor.

    Each page that was asked for was given in time, or is one of ``misses``, by why (:data:`MISSES`).
    ``fetched_pages`` also came too late for their reader. ``unstored`` are pages that were not kept,
    by why.
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
        """Pages that are misses."""
        if pages:
            self.misses[str(why)] = self.misses.get(why, 0) + pages

    def not_stored(self, why: str, pages: int) -> None:
        """Pages that were not kept."""
        self.unstored[str(why)] = self.unstored.get(why, 0) + pages
