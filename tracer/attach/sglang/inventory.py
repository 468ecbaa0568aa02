"""What an attachment found so far: said at the start, and when something is new."""

from dataclasses import dataclass, field
from weakref import ref

from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["Inventory"]


@dataclass(slots=True)
class Inventory:
    """Classes built, what is not recognised, and mirrors that were not told of yet.

    A pool's pinned memory goes when SGLang lets it go: its views are not kept here.
    """

    built: set[str] = field(default_factory=set)
    unrecognised: list[str] = field(default_factory=list)
    _fresh: list[ref[MirrorViews]] = field(default_factory=list)

    def not_recognised(self, what: str) -> None:
        """Remember ``what`` once."""
        if what not in self.unrecognised:
            self.unrecognised.append(what)

    def add(self, mirror: MirrorViews) -> None:
        """A mirror to be told of."""
        self._fresh.append(ref(mirror))

    def take(self) -> list[MirrorViews]:
        """Those that are still there; they are told of now."""
        fresh, self._fresh = self._fresh, []
        return [mirror for one in fresh if (mirror := one()) is not None]
