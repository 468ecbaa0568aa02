"""Which sinks a run gets: what was asked for, or the defaults that answer here."""

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from hicache_dbg.tracer.settings import Lines, Settings
from hicache_dbg.tracer.sink import PoolStateReader, Sink

__all__ = ["BuiltSinks", "build_sinks", "run_id"]

_log = logging.getLogger("hicache_dbg")


@dataclass(slots=True)
class BuiltSinks:
    """The sinks that could be built, and why each of the others could not."""

    sinks: list[Sink] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def build_sinks(settings: Settings, pool_state: PoolStateReader) -> BuiltSinks:
    """Build every sink that ``settings`` ask for.

    One that cannot be built is left out with its reason: serving goes on, and the others say so.
    """
    names = settings.sinks
    if names is None:
        text = "journald" if socket_answers(settings.journald_socket) else "stderr"
        names = (text, "prometheus")
    built = BuiltSinks()
    for name in names:
        try:
            built.sinks.append(_BUILDERS[name](settings, pool_state))
        except Exception as error:  # noqa: BLE001 - whatever a sink's library raises, the host goes on
            built.refused[name] = f"{type(error).__name__}: {error}"
            _log.warning("hicache-dbg: sink %s is left out: %s", name, error)
    return built


def socket_answers(path: Path) -> bool:
    """Whether something listens on the datagram socket at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def run_id(rank: int) -> str:
    """A name for a run that sorts by time and is unique over ranks and processes."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return f"{now}-rank{rank}-pid{os.getpid()}"


def _journald(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.journald import JournaldSink

    return JournaldSink(settings.journald_socket, lines=settings.lines or Lines.ALL)


def _stderr(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.stderr import StderrSink

    return StderrSink(settings.lines or Lines.PATHS)


def _recording(settings: Settings, _: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.recording import RecordingSink

    settings.directory.mkdir(parents=True, exist_ok=True)
    return RecordingSink(settings.directory, run_id(settings.rank))


def _prometheus(settings: Settings, pool_state: PoolStateReader) -> Sink:
    from hicache_dbg.exporters.prometheus import PrometheusSink

    port = settings.prometheus_port + settings.rank if settings.prometheus_port else 0
    sink = PrometheusSink(port=port, pool_state=pool_state, rank=settings.rank)
    if settings.rank == 0 and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        _watch_gpus()
    return sink


@cache
def _watch_gpus() -> None:
    """Put the GPUs' own counters beside ours, once a process, where NVML answers.

    One rank tells of all GPUs of a host, and multiprocess mode takes no collector.
    """
    from prometheus_client import REGISTRY

    from hicache_dbg.exporters.nvml import OK, Nvml
    from hicache_dbg.exporters.prometheus_gpu import GpuCollector

    nvml = Nvml()
    if nvml.state == OK:
        REGISTRY.register(GpuCollector(nvml))


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
