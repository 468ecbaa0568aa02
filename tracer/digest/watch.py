"""One operation's digests, from before its first byte moves until the bus has read them.

This order keeps a page from being rewritten before it is digested:

- A backup is digested on our own stream, concurrently with its copies: its source is complete before
  they start.
- A load's first group of layers is digested there while the second group is being copied, if the host
  knows that the first has arrived. The second group is digested on the engine's stream, behind its
  copies. So is the whole of a load that is small, or none of which is known to have arrived.
- The engine's stream then waits for ours before the engine marks the operation complete there. Whoever
  writes the pages next waits for that mark, or for the engine to say so.

Our stream waits for nothing. With one of our kernels waiting there, the copy engines ran 2 to 10 %
slower throughout (docs/digest.md).

If the engine does not report what it has queued, :meth:`Watch.finish` blocks until the digests are
taken.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.view import View

__all__ = ["MOST_PAGES", "Done", "Room", "Seen", "Wanted", "Watch"]

#: The most pages of one watch; larger operations are watched in parts.
MOST_PAGES = 4096

Words = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class Done(Protocol):
    """The event behind an operation's digests."""

    def query(self) -> bool:
        """Return whether they are taken."""
        ...

    def synchronize(self) -> None:
        """Block until they are."""
        ...


class Room(Protocol):
    """A watch's place on the device; see :class:`hicache_dbg.tracer.digest.lane.Lane`."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The layers digested together, in the order in which they are copied."""
        ...

    @property
    def done(self) -> Done:
        """The event behind the last digest."""
        ...

    def launch(self, stream: int, side: int) -> None:
        """Digest a backup, or a load's first group, on ``stream``; upload the inputs on ``side``."""
        ...

    def close(self, stream: int) -> None:
        """Digest the rest on ``stream``, and make it wait until every digest is taken."""
        ...

    def seen(self) -> "Seen":
        """Return what was found, once ``done`` has passed."""
        ...

    def free(self) -> None:
        """Make the room available to another operation."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What the device found of an operation's pages.

    ``confirmed`` marks the pages that match their roll-up in every layer. ``digests`` holds those of
    the other pages, uint64 [layers, pages]; 0 for confirmed ones.
    """

    confirmed: Flags
    digests: Digests


class Wanted(NamedTuple):
    """An operation on one component of one mirror, or on a part of its pages.

    ``layers`` index the view, in the order in which they are copied. ``pages`` are the device end's;
    ``entries`` are the host pages whose roll-ups are stored or compared. ``generations`` and ``writes``
    (how often a write to the page had begun) identify each host page's life. ``size`` is the number of
    host pages in the mirror.
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
        """Return the same operation on some of its pages."""
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
        side: the raw handle of our own stream.
        loads: whether the operation moves bytes to the device.
    """

    __slots__ = ("_closed", "_launched", "_loads", "_room", "_side")

    def __init__(self, room: Room, side: int, *, loads: bool) -> None:
        self._room = room
        self._side = side
        self._loads = loads
        self._launched = self._closed = False

    def arrived(self, stream: int) -> None:
        """Digest a load's first group behind its copies, which the engine has all queued on ``stream``.

        For engines whose later transfers over the bus do not wait for that stream. Does nothing for a
        load that is digested in one go.
        """
        if len(self._room.groups) > 1:
            self._launch(stream)

    def queued(self, stream: int, under_way: int) -> None:
        """Digest the operation: the engine has queued all copies on ``stream``, but not marked its end.

        Args:
            stream: a raw handle.
            under_way: of a load, at most this many of its last layers may not have arrived yet.
        """
        if self._closed:
            return
        if not self._launched:
            self._launch(self._side if self._is_there(under_way) else stream)
        self._room.close(stream)
        self._closed = True

    def finish(self) -> None:
        """Block until every digest is taken; call it when all copies are done, before saying so."""
        if self._closed:
            return
        if not self._launched:
            self._launch(self._side)
        self._room.close(self._side)
        self._closed = True
        self._room.done.synchronize()

    def ready(self) -> bool:
        """Return whether :meth:`seen` can be called without waiting."""
        return not self._launched or self._room.done.query()

    def seen(self) -> Seen:
        """Return what was found, and free the room."""
        try:
            return self._room.seen()
        finally:
            self.drop()

    def drop(self) -> None:
        """Free the room without reading it; the watch must be :meth:`ready`."""
        self._room.free()

    def _launch(self, stream: int) -> None:
        self._room.launch(stream, self._side)
        self._launched = True

    def _is_there(self, under_way: int) -> bool:
        """Return whether what is digested first is known to be there while more is on its way."""
        groups = self._room.groups
        return not self._loads or (len(groups) > 1 and under_way <= len(groups[-1]))
