"""What operations on a GPU need of their session once they are over."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hicache_dbg.tracer.attach.sglang.copies import Given, Reading
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord

__all__ = ["PATIENCE_S", "Booked"]

#: The longest that an operation waits to be judged while the host submits another: each step of the
#: bus's thread is one that the host's waits for the interpreter.
PATIENCE_S = 0.25
#: How long the bus's thread keeps the interpreter, give or take an operation. A thread that waits for it
#: would otherwise wait for 5 ms; to sleep after each operation takes as long as to judge one.
HOLD_S = 0.0003


@dataclass(slots=True)
class Booked:
    """What the operations of one session's probe need once they are over.

    Args:
        history: Knows the generations of host pages at their begin.
        busy: The operations that the host is submitting; empty when the bus may take its time.
        open: Begins a copy's record.
        judge: Returns the record's events.
        read: Called with an operation and what it moved, when its indices can be read.
        clock: The time, in ns, as operations have it.
    """

    history: History
    busy: set[int]
    open: Callable[[Copy], CopyRecord]
    judge: Callable[[CopyRecord], Sequence[Event]]
    read: Callable[[Any, Reading, Given], None]
    clock: Callable[[], int] = time.time_ns
    _gave_way: float = field(default=0.0, init=False)

    def has_time(self, since_ns: int) -> bool:
        """Return whether what has waited ``since_ns`` shall be judged now."""
        return not self.busy or self.clock() - since_ns > PATIENCE_S * 1e9

    def give_way(self) -> None:
        """Let a thread of the host's that waits for the interpreter go on, now and then."""
        if time.thread_time() - self._gave_way > HOLD_S:  # what the bus's thread waited, nobody did
            time.sleep(0)
            self._gave_way = time.thread_time()
