"""The interface between the bus and everything that takes events away."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_dbg.tracer.events import Event

__all__ = ["LookedUp", "Pace", "PoolPages", "PoolState", "PoolStateReader", "Sink", "SinkError"]


class SinkError(Exception):
    """A sink could not take a batch; the message says what failed and why.

    ``lost`` is the number of events of the batch that did not arrive. The bus counts them, backs
    off and carries on: a sink never breaks the run.
    """

    def __init__(self, message: str, *, reason: str, lost: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Pace:
    """How a sink's thread shares the interpreter with the host and the other sinks.

    Args:
        rest: seconds to pause per second of CPU time used.
        gather_s: longest time the first event of a batch waits for more.
    """

    rest: float = 0.0
    gather_s: float = 0.0


class Sink(Protocol):
    """Takes batches of events away; called from one thread that belongs to this sink alone.

    An expensive sink may have an attribute ``pace``, a :class:`Pace`; without it, it runs at full
    speed.
    """

    name: str

    def emit(self, events: Sequence[Event]) -> None:
        """Deliver ``events`` in order; raise :class:`SinkError` if some were lost."""
        ...

    def close(self) -> None:
        """Flush and release everything in bounded time; called once, after the last batch."""
        ...


@dataclass(frozen=True, slots=True)
class PoolPages:
    """Number of pages of a pool in one state, read at scrape time."""

    pool: str
    tier: str
    state: str
    pages: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Number of looked-up pages with one outcome at a tier since the start, read at scrape time.

    The outcomes (``end``) of a tier add up to the pages that were looked up there.
    """

    tier: str
    end: str
    pages: int


PoolState = PoolPages | LookedUp
#: Reads the pools' state at scrape time, so that the hot path pays nothing.
PoolStateReader = Callable[[], Iterable[PoolState]]
