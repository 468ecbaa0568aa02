"""The one place that puts gate, attachments, bus and sinks together."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Gate, Settings
from hicache_dbg.tracer.sink import PoolPages, Sink
from hicache_dbg.tracer.sinks import build_sinks

__all__ = ["Runtime"]


class Runtime:
    """A run of the tracer in this process: from :meth:`start` to :meth:`stop`.

    Also a context manager. ``stop`` restores the very function objects that ``start`` wrapped.
    """

    def __init__(self, session: Session, attachment: HiCacheAttachment) -> None:
        self.session = session
        self.attachment = attachment

    @classmethod
    def start(
        cls,
        settings: Settings,
        *,
        sinks: Sequence[Sink] | None = None,
        errors: InternalErrors | None = None,
    ) -> "Runtime":
        """Build the sinks, start the bus, and attach to the engine.

        Args:
            settings: the gate; ``armed`` attaches without tracing until :meth:`switch` says so.
            sinks: instead of those that ``settings`` ask for.
            errors: where failures of the tracer itself are counted.
        """
        errors = errors if errors is not None else InternalErrors()
        holder: list[HiCacheAttachment] = []

        def pool_state() -> Iterable[PoolPages]:
            return holder[0].pool_state() if holder else ()

        chosen = build_sinks(settings, pool_state).sinks if sinks is None else sinks
        session = Session(
            settings,
            chosen,
            TileDigester(),
            system=HiCacheAttachment.system,
            version=HiCacheAttachment.version,
            errors=errors,
        )
        session.probe.enabled = settings.gate is not Gate.ARMED
        attachment = HiCacheAttachment(session)
        holder.append(attachment)
        attachment.attach()
        return cls(session, attachment)

    def switch(self, *, on: bool) -> None:
        """Start or stop tracing without detaching."""
        self.session.probe.enabled = on

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until every event so far was offered to every sink; False if time ran out."""
        return self.session.bus.flush(timeout)

    def stop(self, timeout: float = 2.0) -> None:
        """Detach, then deliver what waits, in bounded time."""
        self.attachment.detach()
        self.session.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
