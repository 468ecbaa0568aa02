"""What is known of one copy on its way from the host's thread to the judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.following import Part
from hicache_dbg.tracer.ledger import Digests, Flags, Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.view import View

__all__ = [
    "DEVICE_END",
    "POINTS",
    "Copies",
    "CopyRecord",
    "Digester",
    "Followed",
    "Noted",
    "Pending",
    "Point",
]

Copies = Callable[[], Sequence[Copy]]


class Digester(Protocol):
    """Digests tiles where they lie."""

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: Pages,
        first: int = 0,
        last: int | None = None,
    ) -> Digests:
        """XXH3-64 of slots ``first .. last - 1`` of each tile: uint64 [layers, pages].

        Of tiles on a CPU they are there on return, of others after :meth:`join`.
        """
        ...

    def join(self) -> None:
        """Wait until what this thread asked for can be read."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """Digests that are readable after the digester's join, and where they belong."""

    into: Digests
    at: tuple[slice, "slice | np.ndarray"]
    digests: Digests


class Point(StrEnum):
    """When and where a digest is taken."""

    SOURCE_BEFORE = "source_before"
    SOURCE_AFTER = "source_after"
    DESTINATION = "destination"

    __hash__ = str.__hash__  # an enum's own is Python, and asked for at every lookup


#: Which digests the probe takes around an operation, by how much is asked for. ``ends`` adds the
#: host end of a backup on the bus's thread, where it costs the host nothing.
_LOADS: dict[Op, tuple[Point, ...]] = {
    Op.BACKUP: (Point.SOURCE_BEFORE,),
    Op.LOAD: (Point.DESTINATION,),
}
POINTS: dict[Checksum, dict[Op, tuple[Point, ...]]] = {
    Checksum.OFF: {},
    Checksum.SAMPLE: _LOADS,
    Checksum.LOADS: _LOADS,
    Checksum.ENDS: _LOADS,
    Checksum.THREE: dict.fromkeys(
        (Op.BACKUP, Op.LOAD), (Point.SOURCE_BEFORE, Point.SOURCE_AFTER, Point.DESTINATION)
    ),
}
#: The device end of an operation, which is where it is watched.
DEVICE_END = {Op.BACKUP: Point.SOURCE_BEFORE, Op.LOAD: Point.DESTINATION}


@dataclass(slots=True)
class CopyRecord:
    """One copy and the digests taken around it, on its way to the judge.

    ``digests`` maps (point, component) to uint64 [layers, digested pages]; ``digested`` marks the
    pages (of the copy's order) that were digested, ``writes`` counts how often each host page had
    begun to be written when this copy was. ``skip`` says why no tile can be judged, if none can.
    ``pending`` are digests that a device may still be writing. ``watched`` is what it follows by
    itself, and ``is_followed`` says that this is everything; ``confirmed`` marks, by component, the
    digested pages that it found to be what was backed up: their digests at the destination are
    not there, and need not be.
    """

    copy: Copy
    judge: "Callable[[CopyRecord], list[Event]]"
    digested: np.ndarray  # bool [pages]
    writes: Pages
    time_ns: int = 0
    duration_us: float = 0.0
    status: str = "ok"
    digests: dict[tuple[Point, str], Digests] = field(default_factory=dict)
    skip: SkipReason | None = None
    pending: list[Pending] = field(default_factory=list)
    watched: list[Part] = field(default_factory=list)
    is_followed: bool = False
    confirmed: dict[str, Flags] = field(default_factory=dict)

    def settle(self) -> None:
        """Take over what was pending; its digester was joined."""
        for part in self.pending:
            part.into[part.at] = part.digests
        self.pending.clear()

    def take_over(self) -> None:
        """What the watches have seen; on the bus's thread, once :meth:`ready`."""
        while self.watched:
            point = DEVICE_END[self.copy.op]
            part = self.watched.pop()
            if self.status != "ok" or self.skip is not None:
                part.watch.drop()
                continue
            seen = part.watch.seen()
            self.room(point, part.component)[:, part.columns] = seen.digests
            nothing = np.zeros(int(self.digested.sum()), np.bool_)
            self.confirmed.setdefault(part.component, nothing)[part.columns] = seen.confirmed

    def room(self, point: Point, component: str) -> Digests:
        """The array for the digests of one component at one point, made at first use."""
        shape = (len(self.copy.layers), int(self.digested.sum()))
        return self.digests.setdefault((point, component), np.zeros(shape, np.uint64))

    def ready(self) -> bool:
        """Whether nothing is under way on a device: joined before the operation was complete."""
        return not self.watched or all(part.watch.ready() for part in self.watched)

    def events(self) -> list[Event]:
        """The copy's event and what is wrong with it."""
        return self.judge(self)


@dataclass(slots=True, eq=False)  # not frozen, as below: that doubles the cost of making one
class Followed:
    """One copy that a device follows by itself, as the host's thread leaves it to the bus's."""

    copy: Copy
    writes: Pages
    judge: "Callable[[Followed], list[Event]]"
    #: None until the engine has queued its copies; empty where its device could not follow them.
    watched: list[Part] | None = None
    #: Of a copy that was digested by call.
    record: CopyRecord | None = None
    skip: SkipReason | None = None
    time_ns: int = 0
    duration_us: float = 0.0
    status: str = "ok"

    def ready(self) -> bool:
        """Whether the device has come to the end of it."""
        return all(part.watch.ready() for part in self.watched or ())

    def events(self) -> list[Event]:
        """The copy's event and what is wrong with it."""
        return self.judge(self)


@dataclass(slots=True, eq=False)
class Noted:
    """Copies of which nothing is digested, still to be described."""

    describe: "Callable[[Noted], list[Event]]"
    copies: Copies
    time_ns: int
    duration_us: float
    status: str

    def ready(self) -> bool:
        """Nothing is under way."""
        return True

    def events(self) -> list[Event]:
        """The copies' events."""
        return self.describe(self)
