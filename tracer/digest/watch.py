"""One operation's digests, from before its first byte moves until the bus has read them.

The order that keeps a page from being written again before it was digested:

- a backup is digested on a stream of ours, beside its copies: its source is final before them.
- a load's first group of layers is digested there once it has arrived, beside the copies of the
  second; the second on the engine's stream itself, behind its copies. So is all of a small load.
- the engine's stream then waits for ours, before the engine marks there that the operation is over.
  Whoever may write the pages next waits for that mark, or for the engine's word.

An engine that does not say what it has queued is waited for instead: :meth:`Watch.finish` then
blocks until the digests are taken.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.view import View

__all__ = ["MOST_PAGES", "Done", "Room", "Seen", "Wanted", "Watch"]

#: Pages of one watch at most; an operation of more is watched in parts.
MOST_PAGES = 4096

Words = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class Done(Protocol):
    """The event behind an operation's digests."""

    def query(self) -> bool:
        """Whether they are taken."""
        ...

    def synchronize(self) -> None:
        """Block until they are."""
        ...


class Room(Protocol):
    """What a watch asks of its place on the device; see :class:`hicache_dbg.tracer.digest.lane.Lane`."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The layers that are digested together, in the order in which they are copied."""
        ...

    @property
    def done(self) -> Done:
        """The event behind the last digest."""
        ...

    def arrive(self, stream: int) -> None:
        """The bytes to be launched are there after what ``stream`` was given so far."""
        ...

    def follow(self, stream: int, later: int) -> None:
        """``later`` goes on when ``stream`` has done what it was given so far."""
        ...

    def launch(self, stream: int) -> None:
        """Digest on ``stream`` a backup, or a load's first group, once it has arrived if it must."""
        ...

    def close(self, stream: int) -> None:
        """Digest what is left on ``stream``, which goes on when every digest is taken."""
        ...

    def seen(self) -> "Seen":
        """What was found, once that is done."""
        ...

    def free(self) -> None:
        """The room may be used again."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What the device found of an operation's pages.

    ``confirmed`` marks pages that are what their roll-up says in every layer; ``digests`` uint64
    [layers, pages] holds the others' (0 for the confirmed).
    """

    confirmed: Flags
    digests: Digests


class Wanted(NamedTuple):
    """An operation on one component of one mirror, or a part of its pages.

    ``pages`` are those of the device end, ``entries`` the host pages whose roll-ups are stored or
    compared, of these ``generations`` and as often begun to be ``writes`` as that; ``size`` is how
    many host pages there are. ``layers`` index the view, in the order in which they are copied.
    """

    mirror: object
    component: str
    view: View
    loads: bool
    layers: tuple[int, ...]
    pages: Words
    entries: Words
    generations: Words
    writes: Words
    size: int

    def part(self, these: slice) -> Self:
        """The same of some of its pages."""
        return self._replace(
            pages=self.pages[these],
            entries=self.entries[these],
            generations=self.generations[these],
            writes=self.writes[these],
        )


class Watch:
    """Follows one operation on one component.

    Args:
        room: where its digests are taken.
        side: the raw handle of the stream they run on.
        loads: whether the operation brings bytes to the device.
    """

    __slots__ = ("_beside", "_closed", "_launched", "_loads", "_room", "_side", "_told")

    def __init__(self, room: Room, side: int, *, loads: bool) -> None:
        self._room = room
        self._side = side
        self._loads = loads
        #: Whether anything runs on the stream of ours.
        self._beside = not loads or len(room.groups) > 1
        self._launched = self._closed = self._told = False

    def begin(self, after: int | None = None) -> None:
        """A backup's source is whole, or will be when ``after`` has done what it was given so far."""
        if after is not None and not self._loads:
            self._room.arrive(after)

    def arrived(self, stream: int) -> None:
        """``stream`` has been given all copies of a load's first group."""
        self._room.arrive(stream)
        self._told = True

    def queued(self, stream: int, under_way: int) -> None:
        """``stream`` has been given all copies of the operation, and no mark yet of its end.

        Of a load no more than the last ``under_way`` layers may still be on their way; of others
        it is known that they are there, or :meth:`arrived` was called.
        """
        if self._closed:
            return
        if self._beside:
            self._launch_beside(stream, under_way)
            self._room.close(stream)
        else:
            self._room.launch(stream)
            self._launched = True
        self._closed = True

    def queued_apart(self, stream: int, under_way: int) -> int:
        """As :meth:`queued`, for an engine that marks the end on the stream that is returned.

        That one comes after the copies and the digests; ``stream`` waits for nothing, and its next
        operation's copies begin beside these digests.
        """
        if self._closed or not self._beside:
            self.queued(stream, under_way)
            return stream
        self._launch_beside(stream, under_way)
        self._room.follow(stream, self._side)
        self._room.close(self._side)
        self._closed = True
        return self._side

    def finish(self) -> None:
        """Every copy is done: be sure, before the engine says so, that every digest is taken."""
        if self._closed:
            return
        self._room.launch(self._side)
        self._launched = True
        self._room.close(self._side)
        self._closed = True
        self._room.done.synchronize()

    def ready(self) -> bool:
        """Whether :meth:`seen` need not wait."""
        return not self._launched or self._room.done.query()

    def seen(self) -> Seen:
        """What was found; the room is free afterwards."""
        try:
            return self._room.seen()
        finally:
            self.drop()

    def drop(self) -> None:
        """Nobody will ask for what was found, and it is :meth:`ready`."""
        self._room.free()

    def _launch_beside(self, stream: int, under_way: int) -> None:
        if self._loads and not self._told and under_way > len(self._room.groups[-1]):
            self._room.arrive(stream)
        self._room.launch(self._side)
        self._launched = True
