"""What an attachment has found so far, reported at the start and whenever something is new."""

from dataclasses import dataclass, field
from weakref import ref

from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["Inventory"]


@dataclass(slots=True)
class Inventory:
    """Classes built, what is not recognized, and mirrors not yet announced.

    It holds mirrors weakly: a pool's pinned memory is released when SGLang drops the pool.
    """

    built: set[str] = field(default_factory=set)
    unrecognised: list[str] = field(default_factory=list)
    _fresh: list[ref[MirrorViews]] = field(default_factory=list)

    def not_recognised(self, what: str) -> None:
        """Record ``what``, once."""
        if what not in self.unrecognised:
            self.unrecognised.append(what)

    def add(self, mirror: MirrorViews) -> None:
        """Add a mirror to be announced."""
        self._fresh.append(ref(mirror))

    def take(self) -> list[MirrorViews]:
        """Return the mirrors to be announced that are still alive, and clear the list."""
        fresh, self._fresh = self._fresh, []
        return [mirror for reference in fresh if (mirror := reference()) is not None]
