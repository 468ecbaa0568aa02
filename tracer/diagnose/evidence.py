"""Counts over a run's events: the only input of the hypotheses."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from hicache_dbg.tracer.events import (
    Copied,
    Event,
    FaultClass,
    Finding,
    Health,
    MirrorInfo,
    Op,
    Started,
)

__all__ = ["Evidence", "PathKey", "Tiles"]

PathKey = tuple[str, str, bool, str]  # pool, op, token_granular, layout
Sql = Callable[[str], list[tuple[Any, ...]]]
#: Where a failure of the tracer costs the record of an operation.
_NOTING = ("probe/", "storage/before", "storage/after", "handover/")
_ORDER = {cls: number for number, cls in enumerate(FaultClass)}


@dataclass(slots=True)
class Tiles:
    """Tiles by outcome."""

    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: int = 0

    @property
    def moved(self) -> int:
        """All tiles."""
        return self.verified + self.witnessed + self.mismatched + self.skipped

    def __iadd__(self, other: "Tiles") -> Self:
        """Add the counts of another."""
        self.verified += other.verified
        self.witnessed += other.witnessed
        self.mismatched += other.mismatched
        self.skipped += other.skipped
        return self

    def add(self, event: Copied) -> None:
        """Add the tiles of one copy."""
        self.verified += event.verified
        self.witnessed += event.witnessed
        self.mismatched += event.mismatched
        self.skipped += sum(event.skipped.values())


@dataclass(slots=True)
class Evidence:
    """Counts over all events of a run, and the rare events themselves.

    ``sessions_corrupted`` is the verdict of an oracle outside the tracer, None without one.
    ``mirrors`` are those of all ranks and runs, each geometry once. ``sql`` queries the table
    ``copies`` (the fields of :class:`Copied`) if the events came from recordings or a journal.
    """

    paths: Counter[PathKey] = field(default_factory=Counter)
    tiles: Tiles = field(default_factory=Tiles)
    by_pool: dict[tuple[str, str], Tiles] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    mirrors: list[MirrorInfo] = field(default_factory=list)
    classes_built: set[str] = field(default_factory=set)
    classes_unbuilt: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    #: The last health event of each run; one rank may have several runs.
    last_words: list[Health] = field(default_factory=list)
    #: For each of these, the copies made before the first event, if the events start in mid-run.
    earlier: list[int] = field(default_factory=list)
    #: Number of last words from earlier runs, which later runs must not replace.
    settled: int = 0
    run: str = ""
    unrecognised: set[str] = field(default_factory=set)
    #: The pools of each cache, by name.
    caches: set[tuple[str, ...]] = field(default_factory=set)
    #: System, version and checksum level of each start.
    starts: set[tuple[str, str, str]] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    sessions_corrupted: int | None = None
    #: Whether the statements of several processes were compared.
    joined: bool = False
    #: Operations excluded on purpose.
    elsewhere: int = 0
    #: Number of lines or entries that could not be read: each was an event, probably a copy.
    unread: int = 0
    #: Number of items that could not be read, by place.
    errors: Counter[str] = field(default_factory=Counter)
    #: Of how many findings which are causes: every hypothesis asks, and there may be many.
    known_causes: tuple[int, list[Finding]] | None = None
    sql: Sql | None = None

    @classmethod
    def of(cls, events: Iterable[Event], *, sessions_corrupted: int | None = None) -> "Evidence":
        """Build the evidence from ``events``, read once."""
        evidence = cls(sessions_corrupted=sessions_corrupted)
        for event in events:
            evidence.add(event)
        return evidence

    def add(self, event: Event) -> None:
        """Add one event."""
        match event:
            case Copied():
                self._copied(event)
            case Finding():
                self.findings.append(event)
            case Started():
                self.ranks.add(event.rank)
                self.starts.add((event.system, event.version, event.checksum))
                self.unrecognised |= set(event.unrecognised)
                self.caches |= set(event.caches)
                self.mirrors += [mirror for mirror in event.mirrors if mirror not in self.mirrors]
                self.classes_built |= set(event.classes_built)
                self.classes_unbuilt = (
                    self.classes_unbuilt | set(event.classes_unbuilt)
                ) - self.classes_built
            case Health():
                self._health(event)

    def begin(self, run: str) -> None:
        """Announce that the following events belong to this run."""
        if run != self.run:
            self.run, self.settled = run, len(self.last_words)

    @property
    def health(self) -> Health | None:
        """The last health events of all runs, added up; None if there is none."""
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
        """Number of operations that were traced but are missing here.

        The bus had no room for them, the tracer failed on them, the sink that kept these events
        lost them, or their lines cannot be read. Losses of other sinks do not count.
        """
        health = self.health
        if health is None:
            return self.unread
        bus = sum(lost for where, lost in health.dropped.items() if where.startswith("bus/"))
        failed = sum(n for at, n in health.errors.items() if at == "bus" or at.startswith(_NOTING))
        made = health.copies - sum(self.earlier)
        return bus + failed + max(self.unread, made - self.elsewhere - sum(self.paths.values()))

    @property
    def pools(self) -> list[str]:
        """Names of the mirrored pools, without duplicates."""
        return list(dict.fromkeys(mirror.pool for mirror in self.mirrors))

    def of_class(self, *classes: FaultClass) -> list[Finding]:
        """Return the findings of these classes."""
        return [finding for finding in self.findings if finding.cls in classes]

    def causes(self) -> list[Finding]:
        """Return the findings that no other finding explains: per pool, those of the first class.

        Fault classes are ordered such that the first that applies names the cause. What follows
        from it on the same pool (a mismatch after a reuse, for example) is not a cause of its own.
        """
        known = self.known_causes
        if known is None or known[0] != len(self.findings):
            first = self._first_classes()
            causes = [finding for finding in self.findings if _is_cause(finding, first)]
            known = self.known_causes = len(self.findings), causes
        return known[1]

    def _first_classes(self) -> dict[str, int]:
        """Return the number of the first fault class found on each pool."""
        first: dict[str, int] = {}
        for finding in self.findings:
            for pool in finding.pool.split("+"):
                first[pool] = min(_ORDER[finding.cls], first.get(pool, len(_ORDER)))
        return first

    def of_op(self, *ops: Op) -> Tiles:
        """Return the tiles of all pools under these operations."""
        total = Tiles()
        for (_, op), tiles in self.by_pool.items():
            if op in ops:
                total += tiles
        return total

    def of_pool(self, pool: str, op: Op) -> Tiles:
        """Return the tiles of one pool under one operation."""
        return self.by_pool.get((pool, op.value), Tiles())

    def kinds_of_finding(self) -> list[Finding]:
        """Merge findings by kind (class, pool, op, component, check), causes first.

        The first one's text is kept, with their total count; findings that the bus held back follow
        later with their count.
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
        classes = self._first_classes()
        return sorted(merged.values(), key=lambda finding: not _is_cause(finding, classes))

    @property
    def checked_share(self) -> float:
        """Share of loaded tiles that were compared.

        Of received tiles if none was loaded, else 0.
        """
        for way in (Op.LOAD, Op.RECV):
            back = [tiles for (_, op), tiles in self.by_pool.items() if op == way.value]
            moved = sum(tiles.moved for tiles in back)
            if moved:
                return sum(tiles.verified + tiles.mismatched for tiles in back) / moved
        return 0.0

    def _health(self, event: Health) -> None:
        for at, word in enumerate(self.last_words[self.settled :], self.settled):
            if word.rank == event.rank and not word.closing and word.events <= event.events:
                if event.rank not in self.ranks and not self.earlier[at]:
                    self.earlier[at] = word.copies  # the events start in mid-run
                self.last_words[at] = event
                return
        self.last_words.append(event)
        self.earlier.append(0)

    def _copied(self, event: Copied) -> None:
        self.paths[event.pool, event.op.value, event.token_granular, event.layout] += 1
        self.tiles.add(event)
        self.by_pool.setdefault((event.pool, event.op.value), Tiles()).add(event)
        self.skipped.update(event.skipped)


def _is_cause(finding: Finding, first: Mapping[str, int]) -> bool:
    return _ORDER[finding.cls] == min(first[pool] for pool in finding.pool.split("+"))
