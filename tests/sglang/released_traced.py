"""An attachment that tests can inspect."""

from collections.abc import Callable

from hicache_dbg.tracer.attach.sglang.attachment import SglangAttachment
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord
from hicache_dbg.tracer.memory_sink import MemorySink

__all__ = ["Start", "Traced"]


class Traced:
    """An attachment and its events so far."""

    def __init__(self, attachment: SglangAttachment, sink: MemorySink) -> None:
        self.attachment = attachment
        self._sink = sink

    def record(self, pool: object) -> PoolRecord:
        """Return the attachment's record of a pool."""
        record = self.attachment.observer.registry.of(pool)
        assert record is not None
        return record

    @property
    def sink(self) -> MemorySink:
        """The events of everything up to now."""
        session = self.attachment.observer.session()
        assert session is None or session.bus.flush()
        return self._sink


#: Attaches under the given settings.
Start = Callable[..., Traced]
