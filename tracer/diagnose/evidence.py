"""What a pile of events says, counted: the only thing hypotheses look at."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from hicache_dbg.tracer.events import Copied, Event, Finding, Health, MirrorInfo, Op, Started

__all__ = ["Evidence", "PathKey", "Tiles"]

PathKey = tuple[str, str, bool, str]  # pool, op, token_granular, layout


@dataclass(slots=True)
class Tiles:
    """Tiles by outcome."""

    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: int = 0

    @property
    def moved(self) -> int:
        """All of them."""
        return self.verified + self.witnessed + self.mismatched + self.skipped

    def add(self, event: Copied) -> None:
        """Count one copy's tiles."""
        self.verified += event.verified
        self.witnessed += event.witnessed
        self.mismatched += event.mismatched
        self.skipped += sum(event.skipped.values())


@dataclass(slots=True)
class Evidence:
    """Counts over all events of a run, and the rare events themselves.

    ``sessions_corrupted`` is what an oracle outside the tracer says; None where there is none.
    """

    paths: Counter[PathKey] = field(default_factory=Counter)
    tiles: Tiles = field(default_factory=Tiles)
    by_pool: dict[tuple[str, str], Tiles] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    mirrors: dict[str, MirrorInfo] = field(default_factory=dict)
    classes_built: set[str] = field(default_factory=set)
    classes_unbuilt: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    #: The last word of each run: of one rank there may be several.
    last_words: list[Health] = field(default_factory=list)
    sessions_corrupted: int | None = None

    @classmethod
    def of(cls, events: Iterable[Event], *, sessions_corrupted: int | None = None) -> "Evidence":
        """Read all of ``events`` once."""
        evidence = cls(sessions_corrupted=sessions_corrupted)
        for event in events:
            evidence.add(event)
        return evidence

    def add(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case Copied():
                self._copied(event)
            case Finding():
                self.findings.append(event)
            case Started():
                self.mirrors |= {mirror.pool: mirror for mirror in event.mirrors}
                self.classes_built |= set(event.classes_built)
                self.classes_unbuilt = (
                    self.classes_unbuilt | set(event.classes_unbuilt)
                ) - self.classes_built
            case Health():
                self._health(event)

    @property
    def health(self) -> Health | None:
        """What all runs say of themselves, added up; None where none said a word."""
        if not self.last_words:
            return None
        dropped, errors = Counter[str](), Counter[str]()
        for word in self.last_words:
            dropped.update(word.dropped)
            errors.update(word.errors)
        return msgspec.structs.replace(
            self.last_words[-1],
            copies=sum(word.copies for word in self.last_words),
            dropped=dict(dropped),
            errors=dict(errors),
        )

    @property
    def unseen(self) -> int:
        """Operations that were traced and are not here.

        The bus had no room for them, the tracer failed on them, or the sink that kept these events
        lost them. What other sinks lost is none of it.
        """
        health = self.health
        if health is None:
            return 0
        bus = sum(lost for where, lost in health.dropped.items() if where.startswith("bus/"))
        failed = sum(n for at, n in health.errors.items() if at == "bus" or at.startswith("probe/"))
        return bus + failed + max(0, health.copies - sum(self.paths.values()))

    def of_pool(self, pool: str, op: Op) -> Tiles:
        """Tiles of one pool under one operation."""
        return self.by_pool.get((pool, op.value), Tiles())

    def kinds_of_finding(self) -> list[Finding]:
        """Findings of a kind (class, pool, op, component, check) as one, with how many there were.

        The first one's text stands; what the bus held back comes later with its count.
        """
        merged: dict[tuple[str, ...], Finding] = {}
        for finding in self.findings:
            key = (finding.cls, finding.pool, finding.op, finding.component, finding.check)
            first = merged.get(key)
            merged[key] = (
                msgspec.structs.replace(first, count=first.count + finding.count)
                if first
                else finding
            )
        return list(merged.values())

    @property
    def checked_share(self) -> float:
        """The share of loaded tiles that were compared, 0 where nothing was loaded."""
        loads = [tiles for (_, op), tiles in self.by_pool.items() if op == Op.LOAD.value]
        moved = sum(tiles.moved for tiles in loads)
        return sum(tiles.verified + tiles.mismatched for tiles in loads) / moved if moved else 0.0

    def _health(self, event: Health) -> None:
        for at, word in enumerate(self.last_words):
            if word.rank == event.rank and not word.closing and word.events <= event.events:
                self.last_words[at] = event
                return
        self.last_words.append(event)

    def _copied(self, event: Copied) -> None:
        self.paths[event.pool, event.op.value, event.token_granular, event.layout] += 1
        self.tiles.add(event)
        self.by_pool.setdefault((event.pool, event.op.value), Tiles()).add(event)
        self.skipped.update(event.skipped)
