"""The one place that connects gate, attachments, bus and sinks."""

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.saying import say
from hicache_dbg.tracer.scrub import Scrubber
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sink import PoolState, Sink
from hicache_dbg.tracer.sinks import build_sinks

__all__ = ["Attachment", "Runtime"]


class Attachment(Protocol):
    """The wrappers of an attached system, as the runtime sees them."""

    def attach(self) -> None:
        """Wrap what is not wrapped yet; idempotent."""
        ...

    def detach(self) -> None:
        """Restore the system's own functions; idempotent."""
        ...

    def pool_state(self) -> Iterable[PoolState]:
        """Return pages by pool, tier and state, and lookup outcomes, at the time of the call."""
        ...


#: Sinks whose events nobody reads once the process is gone, or that take them without a receiver.
SILENT = ("prometheus", "otel")

#: Creates the session and the attachment of one system.
Build = Callable[[Settings, Sequence[Sink], InternalErrors], tuple[Session, Attachment]]


class Runtime:
    """A run of the tracer in this process, from :meth:`start` to :meth:`stop`; a context manager.

    ``stop`` restores the very function objects that ``start`` wrapped.
    """

    def __init__(self, session: Session, attachment: Attachment) -> None:
        self.session = session
        self.attachment = attachment
        self._scrubber = _scrubber(session)
        self._pid = os.getpid()

    @classmethod
    def start(
        cls,
        settings: Settings,
        *,
        sinks: Sequence[Sink] | None = None,
        errors: InternalErrors | None = None,
        build: Build | None = None,
        on: bool = True,
    ) -> "Runtime":
        """Build the sinks, start the bus, and attach.

        Args:
            settings: what is traced, and how closely.
            sinks: used instead of those that ``settings`` ask for.
            errors: counts failures of the tracer itself.
            build: creates session and attachment of the system to attach to; by default our own
                engine's.
            on: whether to trace from the start, or only from :meth:`switch` on.
        """
        errors = errors if errors is not None else InternalErrors()
        holder: list[Attachment] = []

        def pool_state() -> Iterable[PoolState]:
            return holder[0].pool_state() if holder else ()

        chosen = build_sinks(settings, pool_state).sinks if sinks is None else sinks
        session, attachment = (build or _engine)(settings, chosen, errors)
        holder.append(attachment)
        runtime = cls(session, attachment)
        if not on:
            runtime.switch(on=False)
        try:
            attachment.attach()
            if runtime._scrubber is not None:
                runtime._scrubber.start()
        except BaseException:
            runtime.stop()  # leave nothing half attached
            raise
        return runtime

    def switch(self, *, on: bool) -> None:
        """Start or stop tracing without detaching."""
        self.session.switch(on=on)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until every event so far was offered to every sink; return False on timeout."""
        return self.session.bus.flush(timeout)

    def stop(self, timeout: float = 2.0) -> None:
        """Detach, then deliver what is queued, in bounded time.

        If no sink took the final summary, it goes to standard error.
        """
        again = self.session.bus.closed
        if self._scrubber is not None:
            self._scrubber.stop(timeout)
        self.session.bus.settle(timeout)  # while writes to pages are still being counted
        self.session.unwatch()
        try:
            with self.session.errors.at("detach"):
                self.attachment.detach()
        finally:  # whatever is still wrapped is passed through, and the recording has its end
            self.session.close(timeout)
            if not again:
                with self.session.errors.at("last_line"):
                    self._say_the_last_line()

    def _say_the_last_line(self) -> None:
        bus = self.session.bus
        health = bus.health(closing=True)
        # This line is the only event of a process without pools, and of most forked children.
        ours = os.getpid() == self._pid and health.events > 1
        if (ours or health.copies or health.findings) and bus.unheard(SILENT):
            from hicache_dbg.exporters.line import line

            say(f"no sink took the last line: {line(health)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _scrubber(session: Session) -> Scrubber | None:
    """Return a scrubber for resting pages if a scrub rate is set."""
    settings = session.settings
    if not settings.scrub_mb_s:
        return None
    scrubber = Scrubber(
        settings.scrub_mb_s * 1e6,
        session.check,
        session.judge.ledger,
        TileDigester(),
        session.errors,
        watched=session.watched,
        counters=_gpu_counters,
        rank=settings.rank,
    )
    session.on_judged.append(scrubber.judged)
    session.on_gap.append(scrubber.forget)
    return scrubber


#: NVML counters of memory and bus errors, reported beside a flipped bit.
_BESIDE_A_FLIP = ("ecc_errors", "remapped_rows", "retired_pages", "pcie_replays")


def _gpu_counters() -> str:
    """Return each GPU's error counters as text; empty without NVML."""
    try:
        from hicache_dbg.exporters.nvml import Nvml
    except ImportError:
        return ""
    return "; ".join(
        f"GPU {gpu.index}: "
        + ", ".join(
            f"{' '.join((name, label)).strip()} {value:g}"
            for name in _BESIDE_A_FLIP
            for label, value in gpu.values.get(name, {}).items()
        )
        for gpu in Nvml().read()
    )


def _engine(
    settings: Settings, sinks: Sequence[Sink], errors: InternalErrors
) -> tuple[Session, Attachment]:
    """Create session and attachment of our own engine, imported only here."""
    from hicache_dbg.tracer.attach.hicache import HiCacheAttachment

    session = Session(
        settings,
        sinks,
        TileDigester(),
        system=HiCacheAttachment.system,
        version=HiCacheAttachment.version,
        errors=errors,
    )
    return session, HiCacheAttachment(session)
