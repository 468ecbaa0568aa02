"""Counters of what a controller has done."""

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["ControllerStats"]


@dataclass(slots=True)
class ControllerStats:
    """Counts since the start; pages are pages of the anchor, however many pools move with them."""

    loads: int = 0
    loaded_pages: int = 0
    failed_loads: int = 0
    backups: int = 0
    backed_up_pages: int = 0
    failed_backups: int = 0
    #: Pages not backed up because no room could be made on the host.
    unbacked_pages: int = 0
    device_hit_pages: int = 0
    host_hit_pages: int = 0
    #: Pages evicted from the device: demoted ones stay on the host, dropped ones are lost.
    demoted_pages: int = 0
    dropped_pages: int = 0
    evicted_host_pages: int = 0
    #: Pages looked up, by tier and outcome (:data:`~hicache_dbg.pools.lookups.ENDS`).
    lookups: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def evicted(self) -> int:
        """Device pages evicted, whether demoted or dropped."""
        return self.demoted_pages + self.dropped_pages
