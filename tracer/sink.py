"""The seam between the bus and whatever takes events away."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_dbg.tracer.events import Event

__all__ = ["LookedUp", "Pace", "PoolPages", "PoolState", "PoolStateReader", "Sink", "SinkError"]


class SinkError(Exception):
    """A sink could not take a batch; the message says what and why.

    ``lost`` is how many events of the batch did not arrive. The bus counts them, backs off and
    carries on: a sink never breaks the run.
    """

    def __init__(self, message: str, *, reason: str, lost: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Pace:
    """How a sink's thread shares the interpreter with the host and the other sinks.

    Args:
        rest: seconds that it pauses for each second that it computed.
        gather_s: the longest time that a first event waits for more to go with it.
    """

    rest: float = 0.0
    gather_s: float = 0.0


class Sink(Protocol):
    """Takes batches of events away. Called from one thread that belongs to this sink alone.

    A sink that costs much may have a :class:`Pace` as ``pace``; without one it goes at full speed.
    """

    name: str

    def emit(self, events: Sequence[Event]) -> None:
        """Deliver ``events`` in order; raise :class:`SinkError` if some were lost."""
        ...

    def close(self) -> None:
        """Flush and release everything, in bounded time; called once, after the last batch."""
        ...


@dataclass(frozen=True, slots=True)
class PoolPages:
    """How many pages of a pool are in a state, read at scrape time."""

    pool: str
    tier: str
    state: str
    pages: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """How many pages that were asked for came to an end at a tier, since the start: read as above.

    The ends of one tier add up to the pages that it was asked for.
    """

    tier: str
    end: str
    pages: int


PoolState = PoolPages | LookedUp
#: Reads the pools' state when a scrape asks for it, so that the hot path pays nothing.
PoolStateReader = Callable[[], Iterable[PoolState]]
