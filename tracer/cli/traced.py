"""Execute a run under the tracer, at the level that a verb asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_dbg.repro.chats.smollm2 import ModelMissingError, load
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import DeviceMissing
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.page_table import HostAccess, untold
from hicache_dbg.repro.run import OnProgress, run
from hicache_dbg.repro.trace import Trace
from hicache_dbg.repro.workload import Truth
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.levels import CHECKSUMS, GateLevel
from hicache_dbg.tracer.cli.recorded import recording_in
from hicache_dbg.tracer.cli.repro_output import Outcome
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.report import build_report
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings, SettingsError
from hicache_dbg.tracer.sinks import build_sinks

if TYPE_CHECKING:
    from hicache_dbg.tracer.sink import Sink

__all__ = ["asked_wrongly", "traced_run"]


@contextmanager
def asked_wrongly() -> Iterator[None]:
    """Turn errors about what was asked for into ``CommandError``."""
    try:
        yield
    except (ConfigError, SettingsError) as error:
        raise CommandError(str(error)) from error
    except (DeviceMissing, ModelMissingError) as error:
        raise CommandError(str(error), MISSING) from error


def traced_run(
    config: RunConfig,
    fault: Fault | None,
    gate: GateLevel,
    advance: OnProgress,
    *,
    trace: Trace | None = None,
    record: Path | None = None,
    truth: Truth | None = None,
) -> Outcome:
    """Execute a run and return what the tracer saw; see :func:`hicache_dbg.repro.run.run`."""
    if config.model:  # load before anything is timed
        advance(0, 1, "loading the model")
        load()
    if config.pd:
        from hicache_dbg.tracer.cli.traced_pd import traced_pd

        return traced_pd(config, fault, gate, advance, trace=trace, record=record, truth=truth)
    memory = MemorySink()
    with _tracing(gate, record, memory) as runtime:
        result = run(
            config,
            fault,
            trace,
            on_progress=advance,
            truth=truth,
            host_access=_host_access(runtime),
        )
        if runtime is not None:
            runtime.flush()
    if gate is GateLevel.OFF:
        return Outcome(result, None)
    corrupted = result.sessions.corrupted
    return Outcome(result, build_report(Evidence.of(memory.events, sessions_corrupted=corrupted)))


def _host_access(runtime: Runtime | None) -> HostAccess:
    """Return the callback by which the run tells the tracer of the host's own accesses."""
    attachment = runtime.attachment if runtime is not None else None
    return attachment.lifetimes.host_access if isinstance(attachment, HiCacheAttachment) else untold


@contextmanager
def _tracing(gate: GateLevel, record: Path | None, memory: MemorySink) -> Iterator[Runtime | None]:
    """Start the tracer at the requested level, with our sinks and those of HICACHE_DBG_SINKS."""
    if gate is GateLevel.OFF:
        yield None
        return
    asked = Settings.from_environ()
    settings = replace(asked, gate=Gate.ON, checksum=CHECKSUMS[gate])
    sinks: list[Sink] = [memory]
    if record is not None:
        sinks.append(recording_in(record))
    if settings.sinks is not None:
        sinks.extend(build_sinks(settings, lambda: ()).sinks)
    with Runtime.start(settings, sinks=sinks) as runtime:
        yield runtime
