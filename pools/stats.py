"""What a controller has done so far."""

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["ControllerStats"]


@dataclass(slots=True)
class ControllerStats:
    """Counts since the start; pages are pages of the anchor, whatever pools move with them."""

    loads: int = 0
    loaded_pages: int = 0
    failed_loads: int = 0
    backups: int = 0
    backed_up_pages: int = 0
    failed_backups: int = 0
    #: Pages not backed up because the host had no room that could be made.
    unbacked_pages: int = 0
    device_hit_pages: int = 0
    host_hit_pages: int = 0
    #: Pages the device let go of: they stayed on the host, or were lost.
    demoted_pages: int = 0
    dropped_pages: int = 0
    evicted_host_pages: int = 0
    #: Pages that readers asked for, by tier and end (:data:`~hicache_dbg.pools.lookups.ENDS`).
    lookups: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def evicted(self) -> int:
        """Device pages let go of under pressure."""
        return self.demoted_pages + self.dropped_pages
