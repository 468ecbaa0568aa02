"""What a storage tier has done so far."""

from dataclasses import dataclass, field

__all__ = ["StorageStats"]


@dataclass(slots=True)
class StorageStats:
    """Counts since the start, of pages of the anchor.

    ``misses`` counts pages that were asked for and were none, by why; ``unstored`` pages that were
    not kept, by why.
    """

    stores: int = 0
    stored_pages: int = 0
    fetches: int = 0
    fetched_pages: int = 0
    asked_pages: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    unstored: dict[str, int] = field(default_factory=dict)

    def missed(self, why: str, pages: int = 1) -> None:
        """Pages that are misses."""
        self.misses[str(why)] = self.misses.get(why, 0) + pages

    def not_stored(self, why: str, pages: int) -> None:
        """Pages that were not kept."""
        self.unstored[str(why)] = self.unstored.get(why, 0) + pages
