"""What is known of one copy on its way from the host's thread to the judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.following import Part, free
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
        """Compute XXH3-64 of slots ``first .. last - 1`` of each tile.

        Digests of tiles in CPU memory are complete on return, others after :meth:`join`.

        Returns:
            uint64 ``[layers, pages]``.
        """
        ...

    def join(self) -> None:
        """Wait until everything this thread asked for can be read."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """Digests that become readable with the digester's join, and where to store them."""

    into: Digests
    at: tuple[slice, "slice | np.ndarray"]
    digests: Digests


class Point(StrEnum):
    """When and where a digest is taken."""

    SOURCE_BEFORE = "source_before"
    SOURCE_AFTER = "source_after"
    DESTINATION = "destination"

    __hash__ = str.__hash__  # Enum.__hash__ is Python code, and every lookup hashes a Point


#: Which digests the probe takes around an operation, by checksum level. ``ends`` adds the host end
#: of a backup on the bus's thread, where it costs the host nothing.
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
#: The point at the device end of an operation, where it is watched.
DEVICE_END = {Op.BACKUP: Point.SOURCE_BEFORE, Op.LOAD: Point.DESTINATION}


@dataclass(slots=True)
class CopyRecord:
    """One copy and the digests taken around it, on its way to the judge.

    ``digests`` maps (point, component) to uint64 ``[layers, digested pages]``; ``digested`` marks
    the digested pages in the copy's order; ``writes`` is how often writing each host page had been
    begun at the time of this copy. ``skip`` is the reason if no tile can be judged. ``pending`` are
    digests that a device may still be writing. ``watched`` is what a device follows by itself, and
    ``is_followed`` says that nothing else is left. ``confirmed`` marks, by component, the digested
    pages whose content the device found to equal the backup; their digests at the destination are
    not copied back.
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
        """Take over the pending digests, after their digester was joined."""
        for part in self.pending:
            part.into[part.at] = part.digests
        self.pending.clear()

    def take_over(self) -> None:
        """Take over the results of the watches; on the bus's thread, once :meth:`ready`."""
        while self.watched:
            point = DEVICE_END[self.copy.op]
            part = self.watched.pop()
            if self.status != "ok" or self.skip is not None:
                part.watch.drop()
                continue
            seen = part.watch.seen()
            room = self.room(point, part.component)
            if b"\0" in seen.confirmed.tobytes():
                room[:, part.columns] = seen.digests
            nothing = np.zeros(int(self.digested.sum()), np.bool_)
            self.confirmed.setdefault(part.component, nothing)[part.columns] = seen.confirmed

    def room(self, point: Point, component: str) -> Digests:
        """Return the array for one component's digests at one point, created on first use."""
        shape = (len(self.copy.layers), int(self.digested.sum()))
        return self.digests.setdefault((point, component), np.zeros(shape, np.uint64))

    def ready(self) -> bool:
        """Return whether no watch is still running on a device.

        Digests by call were joined before the operation completed.
        """
        return not self.watched or all(part.watch.ready() for part in self.watched)

    def events(self) -> list[Event]:
        """Return the copy's event and its findings."""
        try:
            return self.judge(self)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Free the rooms of watches that nobody has read: they never will be."""
        free(self.watched)


@dataclass(slots=True, eq=False)  # not frozen: that would double the cost of creating one
class Followed:
    """One copy that a device follows by itself, handed from the host's thread to the bus's."""

    copy: Copy
    writes: Pages
    judge: "Callable[[Followed], list[Event]]"
    #: None until the engine has queued its copies; empty if the device could not follow them.
    watched: list[Part] | None = None
    #: Set if the copy was digested by call instead.
    record: CopyRecord | None = None
    skip: SkipReason | None = None
    time_ns: int = 0
    duration_us: float = 0.0
    status: str = "ok"

    def ready(self) -> bool:
        """Return whether the device has finished."""
        return all(part.watch.ready() for part in self.watched or ())

    def events(self) -> list[Event]:
        """Return the copy's event and its findings."""
        try:
            return self.judge(self)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Free the rooms of watches that nobody has read: they never will be."""
        free(self.watched or [])


@dataclass(slots=True, eq=False)
class Noted:
    """Copies without digests that are still to be described."""

    describe: "Callable[[Noted], list[Event]]"
    copies: Copies
    time_ns: int
    duration_us: float
    status: str

    def ready(self) -> bool:
        """Return True: nothing is in flight."""
        return True

    def events(self) -> list[Event]:
        """Return the copies' events."""
        return self.describe(self)
