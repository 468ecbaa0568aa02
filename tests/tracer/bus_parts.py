"""Records, events and sinks for the tests of the bus and of a sink's outbox."""

import threading
from collections.abc import Callable, Sequence

from tests.exporters import samples

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Event, FaultClass, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.sink import SinkError

__all__ = ["Blocked", "Dead", "Gated", "MakeBus", "Unready", "copied", "finding"]

MakeBus = Callable[..., Bus]


def copied(number: int = 0, *, pool: str = "mla", verified: int = 0) -> Copied:
    """A copy event; ``number`` tells one from another."""
    return samples.copied(
        time_ns=number, op_id=number, pool=pool, verified=verified, witnessed=0, skipped={}
    )


def finding(number: int = 0, *, pool: str = "mla") -> Finding:
    """A finding; those of one pool are alike."""
    return Finding(time_ns=number, cls=FaultClass.ROW_WIDTH, pool=pool, message=f"number {number}")


class Unready:
    """A record whose digests never arrive."""

    def ready(self) -> bool:
        """Return False."""
        return False

    def events(self) -> Sequence[Event]:
        """Return nothing."""
        return ()


class Gated(Unready):
    """A record that is ready once it is let pass."""

    open = False

    def ready(self) -> bool:
        """Return whether it may pass."""
        return self.open


class Blocked(MemorySink):
    """A sink that accepts nothing until released."""

    name = "blocked"

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def emit(self, events: Sequence[Event]) -> None:
        """Wait, then keep."""
        self.go.wait(10)
        super().emit(events)


class Dead(MemorySink):
    """A sink that loses every batch."""

    name = "dead"

    def emit(self, events: Sequence[Event]) -> None:
        """Lose the batch and report it."""
        raise SinkError("nobody listens", reason="refused", lost=len(events))
