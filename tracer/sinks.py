"""Build the sinks of a run: those asked for, or the defaults that work here."""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from hicache_dbg.tracer.events import Event, Health, Started
from hicache_dbg.tracer.settings import Lines, Settings
from hicache_dbg.tracer.sink import Pace, PoolStateReader, Sink, SinkError
from hicache_dbg.tracer.words import counted

__all__ = ["BuiltSinks", "LateSink", "build_sinks", "default_sinks", "run_id"]

#: A process's recording takes at most 4 GiB: a debugging aid must not fill the disk. The limit for
#: all recordings together is ``HICACHE_DBG_DIR_GB``.
PART_BYTES = 64 << 20
PARTS_KEPT = 64

_log = logging.getLogger("hicache_dbg")


@dataclass(slots=True)
class BuiltSinks:
    """The sinks, and why some of them could not be built yet."""

    sinks: list[Sink] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def build_sinks(settings: Settings, pool_state: PoolStateReader) -> BuiltSinks:
    """Build every sink that ``settings`` ask for.

    A sink that cannot be built is retried while events wait for it: serving goes on, and the other
    sinks report its losses.
    """
    built = BuiltSinks()
    for name in settings.sinks or default_sinks(settings.journald_socket):
        build = partial(_BUILDERS[name], settings, pool_state)
        try:
            sink = build()
        except Exception as error:  # noqa: BLE001 - whatever a sink's library raises, the host goes on
            built.refused[name] = f"{type(error).__name__}: {error}"
            _log.warning("hicache-dbg: sink %s does not work yet: %s", name, error)
            sink = LateSink(name, build)
        built.sinks.append(sink)
    return built


def default_sinks(journald_socket: Path) -> tuple[str, ...]:
    """Return the default sinks: the journal if it answers, else stderr, and Prometheus."""
    return ("journald" if socket_answers(journald_socket) else "stderr", "prometheus")


class LateSink:
    """Stands in for a sink that could not be built, and builds it once that is possible.

    The bus pauses for at most five seconds between failing batches, and so between attempts. Events
    until then are lost, except the start records: without them nobody could read what follows.
    """

    def __init__(self, name: str, build: Callable[[], Sink]) -> None:
        self.name = name
        self._build = build
        self._sink: Sink | None = None
        self._health: Callable[[], Health] | None = None
        self._started: dict[int, Started] = {}  # by rank: the last one has all pools

    @property
    def pace(self) -> Pace:
        """Pace of the sink, once it exists."""
        return getattr(self._sink, "pace", Pace())

    def emit(self, events: Sequence[Event]) -> None:
        """Deliver ``events`` if the sink can be built by now; otherwise they are lost."""
        if self._sink is None:
            try:
                self._sink = self._built()
            except Exception as error:
                self._started |= {one.rank: one for one in events if isinstance(one, Started)}
                raise SinkError(
                    f"sink {self.name} still does not work: {error}; {counted(len(events), 'event')} lost",
                    reason="refused",
                    lost=len(events),
                ) from error
            _log.warning("hicache-dbg: sink %s works now", self.name)
        self._sink.emit([*self._started.values(), *events] if self._started else events)
        self._started.clear()  # kept until a batch was delivered

    def watch(self, health: Callable[[], Health]) -> None:
        """Pass the health source on to the sink, once it exists."""
        self._health = health
        _watched(self._sink, health)

    def _built(self) -> Sink:
        sink = self._build()
        if self._health is not None:
            _watched(sink, self._health)
        return sink

    def close(self) -> None:
        """Close the sink, if it exists."""
        if self._sink is not None:
            self._sink.close()


def _watched(sink: Sink | None, health: Callable[[], Health]) -> None:
    """Give the health source to a sink that has a ``watch`` method."""
    if watch := getattr(sink, "watch", None):
        watch(health)


def socket_answers(path: Path) -> bool:
    """Return whether something listens on the datagram socket at ``path``."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(str(path))
    except OSError:  # also if the process has no descriptor left
        return False
    return True


def run_id(rank: int) -> str:
    """Return a name for a run that sorts by time and is unique over ranks and processes."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return f"{now}-rank{rank}-pid{os.getpid()}"


def _journald(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.journald import JournaldSink

    return JournaldSink(settings.journald_socket, lines=settings.lines or Lines.ALL)


def _stderr(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.stderr import StderrSink

    return StderrSink(settings.lines or Lines.PATHS)


def _recording(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.recording import RecordingSink, Rotation
    from hicache_dbg.exporters.recording_folder import Tenant

    folder, bound = settings.directory, settings.directory_gb * 1e9
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: set HICACHE_DBG_DIR to a folder that this process can write to",
            str(folder),
        ) from error
    rotation = Rotation(part_bytes=PART_BYTES, keep=PARTS_KEPT)
    tenant = Tenant(folder, bound) if bound else None
    return RecordingSink(folder, run_id(settings.rank), rotation=rotation, tenant=tenant)


def _prometheus(settings: Settings, pool_state: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.prometheus import PrometheusSink

    listen = settings.prometheus_port
    sink = PrometheusSink(
        port=listen + settings.rank if listen else 0,
        address=listen.address,
        pool_state=pool_state,
        rank=settings.rank,
    )
    if settings.rank == 0 and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        _watch_gpus()
    return sink


@cache
def _watch_gpus() -> None:
    """Register the GPUs' own counters once per process, or that NVML is absent.

    One rank reports all GPUs of a host, and Prometheus multiprocess mode takes no collector.
    """
    from prometheus_client import REGISTRY

    from hicache_dbg.exporters.nvml import Nvml
    from hicache_dbg.exporters.prometheus_gpu import GpuCollector

    REGISTRY.register(GpuCollector(Nvml()))


def _otel(_settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.otel import OtelSink

    return OtelSink()


_BUILDERS: dict[str, Callable[[Settings, PoolStateReader], Sink]] = {
    "journald": _journald,
    "otel": _otel,
    "prometheus": _prometheus,
    "recording": _recording,
    "stderr": _stderr,
}
