"""One operation's digests, from before its first byte moves until the bus has read them.

The order that keeps a page from being written again before it was digested:

- a backup is digested on a stream of ours, beside its copies: its source is whole before them.
- a load's first group of layers is digested there beside the copies of the second, if the host
  knows that it has arrived; the second on the engine's stream itself, behind its copies. So is all
  of a load that is small, or of which nothing is known to have arrived.
- the engine's stream then waits for ours, before the engine marks there that the operation is over.
  Whoever may write the pages next waits for that mark, or for the engine's word.

The stream of ours waits for nothing: with a kernel of ours waiting there, copy engines sent every
byte meanwhile 2 to 10 % slower (docs/digest.md).

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

    def launch(self, stream: int, side: int) -> None:
        """Digest on ``stream`` a backup, or a load's first group; what that needs is sent on ``side``."""
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

    __slots__ = ("_closed", "_launched", "_loads", "_room", "_side")

    def __init__(self, room: Room, side: int, *, loads: bool) -> None:
        self._room = room
        self._side = side
        self._loads = loads
        self._launched = self._closed = False

    def arrived(self, stream: int) -> None:
        """``stream`` has been given all copies of a load's first group: it is digested behind them.

        For an engine whose next copies over the bus do not wait for that stream. A load that is
        digested in one go has no first group.
        """
        if len(self._room.groups) > 1:
            self._launch(stream)

    def queued(self, stream: int, under_way: int) -> None:
        """``stream`` has been given all copies of the operation, and no mark yet of its end.

        Of a load no more than the last ``under_way`` layers may still be on their way.
        """
        if self._closed:
            return
        if not self._launched:
            self._launch(self._side if self._is_there(under_way) else stream)
        self._room.close(stream)
        self._closed = True

    def finish(self) -> None:
        """Every copy is done: be sure, before the engine says so, that every digest is taken."""
        if self._closed:
            return
        if not self._launched:
            self._launch(self._side)
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

    def _launch(self, stream: int) -> None:
        self._room.launch(stream, self._side)
        self._launched = True

    def _is_there(self, under_way: int) -> bool:
        """Whether the host knows that the first bytes to be digested are there, and others to come."""
        groups = self._room.groups
        return not self._loads or (len(groups) > 1 and under_way <= len(groups[-1]))
