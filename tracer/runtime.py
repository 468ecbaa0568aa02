"""The one place that puts gate, attachments, bus and sinks together."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.scrub import Scrubber
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sink import PoolState, Sink
from hicache_dbg.tracer.sinks import build_sinks

__all__ = ["Attachment", "Runtime"]


class Attachment(Protocol):
    """What an attached system's wrappers do, seen from here."""

    def attach(self) -> None:
        """Wrap what is not wrapped yet; calling it again is harmless."""
        ...

    def detach(self) -> None:
        """Put the system's own functions back; a second call changes nothing."""
        ...

    def pool_state(self) -> Iterable[PoolState]:
        """Pages by pool, tier and state, and what became of those asked for; read when asked."""
        ...


#: Makes the session and the attachment of one system.
Build = Callable[[Settings, Sequence[Sink], InternalErrors], tuple[Session, Attachment]]


class Runtime:
    """A run of the tracer in this process: from :meth:`start` to :meth:`stop`.

    Also a context manager. ``stop`` restores the very function objects that ``start`` wrapped.
    """

    def __init__(self, session: Session, attachment: Attachment) -> None:
        self.session = session
        self.attachment = attachment
        self._scrubber = _scrubber(session)

    @classmethod
    def start(
        cls,
        settings: Settings,
        *,
        sinks: Sequence[Sink] | None = None,
        errors: InternalErrors | None = None,
        build: Build | None = None,
    ) -> "Runtime":
        """Build the sinks, start the bus, and attach.

        Args:
            settings: what is traced, and how closely.
            sinks: instead of those that ``settings`` ask for.
            errors: where failures of the tracer itself are counted.
            build: makes session and attachment of the system to attach to; ours if left out.
        """
        errors = errors if errors is not None else InternalErrors()
        holder: list[Attachment] = []

        def pool_state() -> Iterable[PoolState]:
            return holder[0].pool_state() if holder else ()

        chosen = build_sinks(settings, pool_state).sinks if sinks is None else sinks
        session, attachment = (build or _engine)(settings, chosen, errors)
        holder.append(attachment)
        runtime = cls(session, attachment)
        try:
            attachment.attach()
        except BaseException:
            runtime.stop()  # no half of it stays behind
            raise
        if runtime._scrubber is not None:
            runtime._scrubber.start()
        return runtime

    def switch(self, *, on: bool) -> None:
        """Start or stop tracing without detaching."""
        self.session.switch(on=on)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until every event so far was offered to every sink; False if time ran out."""
        return self.session.bus.flush(timeout)

    def stop(self, timeout: float = 2.0) -> None:
        """Detach, then deliver what waits, in bounded time."""
        if self._scrubber is not None:
            self._scrubber.stop(timeout)
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


def _scrubber(session: Session) -> Scrubber | None:
    """Re-reads resting pages, where the gate says how fast."""
    settings = session.settings
    if not settings.scrub_mb_s:
        return None
    scrubber = Scrubber(
        settings.scrub_mb_s * 1e6,
        session.check,
        session.judge.ledger,
        TileDigester(),
        session.errors,
        counters=_gpu_counters,
        rank=settings.rank,
    )
    session.on_judged.append(scrubber.judged)
    session.on_gap.append(scrubber.forget)
    return scrubber


#: NVML's readings that say of memory and bus what a flipped bit makes one ask.
_BESIDE_A_FLIP = ("ecc_errors", "remapped_rows", "retired_pages", "pcie_replays")


def _gpu_counters() -> str:
    """What each GPU counts beside a flipped bit; empty where there is no NVML."""
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
    """Our own engine, imported only where it is attached to."""
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
