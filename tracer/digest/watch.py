"""One operation's digests, from before its first byte moves until the bus has read them.

The order that keeps a page from being written again before it was digested:

- a backup is digested on a stream of ours, from before its copies on: its source is final then.
  A load's first group of layers is digested there once it has arrived, beside the copies of the
  second; the second on the engine's stream itself, behind its copies.
- the engine's stream then waits for ours, before the engine marks there that the operation is over.
  Whoever may write the pages next waits for that mark, or for the engine's word.

An engine that does not say what it has queued is waited for instead: :meth:`Watch.finish` then
blocks until the digests are taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
    def done(self) -> Done:
        """The event behind the latest :meth:`close`."""
        ...

    def arrive(self, stream: int) -> None:
        """The bytes of the first group are there after what ``stream`` was given so far."""
        ...

    def launch(self, stream: int) -> None:
        """Digest the first group on ``stream``, after its arrival if there was word of it."""
        ...

    def close(self, stream: int) -> None:
        """Digest what is left on ``stream``, which goes on when every digest is taken."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What the device found of an operation's pages.

    ``confirmed`` marks pages that are what their roll-up says in every layer; ``digests`` uint64
    [layers, pages] holds the others' (0 for the confirmed).
    """

    confirmed: Flags
    digests: Digests


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """An operation on one component of one mirror, or a part of its pages.

    ``pages`` are those of the device end, ``entries`` the host pages whose roll-ups are stored or
    compared, ``keys`` as :func:`hicache_dbg.tracer.digest.rollup.keys_of` makes them; ``size`` is how
    many host pages there are. ``layers`` index the view, in the order in which they are copied.
    """

    mirror: object
    component: str
    view: View
    loads: bool
    layers: tuple[int, ...]
    pages: Words
    entries: Words
    keys: Digests
    size: int


class Watch:
    """Follows one operation on one component.

    Args:
        room: where its digests are taken.
        side: the raw handle of the stream they run on.
        second: for a load, how many layers the second group has; None for a backup.
        read: reads what was found; called once, on the bus's thread, when :meth:`ready`.
        give_back: takes the room back.
    """

    def __init__(
        self,
        room: Room,
        side: int,
        second: int | None,
        *,
        read: Callable[[], Seen],
        give_back: Callable[[], None],
    ) -> None:
        self._room = room
        self._side = side
        self._second = second
        self._read = read
        self._give_back = give_back
        self._launched = self._closed = self._told = False

    def begin(self, after: int | None = None) -> None:
        """No byte has moved: a backup's source may be digested, from now on.

        It is whole already or, with ``after``, when that stream has done what it was given so far.
        """
        if after is not None:
            self._room.arrive(after)
        if self._second is None:
            self._launch()

    def arrived(self, stream: int) -> None:
        """``stream`` has been given all copies of a load's first group."""
        self._room.arrive(stream)
        self._told = True

    def queued(self, stream: int, under_way: int) -> None:
        """``stream`` has been given all copies of the operation, and no mark yet of its end.

        Of a load no more than the last ``under_way`` layers may still be on their way; of others
        it is known that they are there, or :meth:`arrived` was called.
        """
        if not self._launched:
            if not self._told and under_way > (self._second or 0):
                self._room.arrive(stream)
            self._launch()
        if not self._closed:
            self._close(stream)

    def finish(self) -> None:
        """Every copy is done: be sure, before the engine says so, that every digest is taken."""
        if not self._launched:
            self._launch()
        if not self._closed:
            self._close(self._side)
            self._room.done.synchronize()

    def ready(self) -> bool:
        """Whether :meth:`seen` need not wait."""
        return not self._launched or self._room.done.query()

    def seen(self) -> Seen:
        """What was found; the room is free afterwards."""
        try:
            return self._read()
        finally:
            self.drop()

    def drop(self) -> None:
        """Nobody will ask for what was found, and it is :meth:`ready`."""
        self._give_back()

    def _launch(self) -> None:
        self._room.launch(self._side)
        self._launched = True

    def _close(self, stream: int) -> None:
        self._room.close(stream)
        self._closed = True
