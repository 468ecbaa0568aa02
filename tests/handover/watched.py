"""A tracer that follows both ends of a handover in one process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hicache_dbg.tracer.attach.hicache_handover import HandoverAttachment, handover_of
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["ON", "Told", "by_role", "traced"]

ON = Settings(gate=Gate.ON, checksum=Checksum.LOADS)


@dataclass
class Told:
    """The session and the attachment, which must both be flushed before the events can be read."""

    runtime: Runtime
    attachment: HandoverAttachment

    def flush(self) -> None:
        """Wait until all events so far have reached the sinks."""
        self.attachment.settle()
        self.runtime.flush()


@contextmanager
def traced(chosen: Settings = ON, more: Sequence[Sink] = ()) -> Iterator[tuple[MemorySink, Told]]:
    """Yield a tracer that follows the handover, and its events."""
    sink = MemorySink()
    with Runtime.start(chosen, sinks=[sink, *more]) as runtime:
        yield sink, Told(runtime, handover_of(runtime))


def by_role(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Split the events of one process into what each end would have recorded."""
    prefill = [e for e in events if getattr(e, "role", "prefill") == "prefill"]
    decode = [e for e in events if getattr(e, "role", "decode") == "decode"]
    return prefill, decode
