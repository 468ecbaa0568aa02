"""Execute a run under the tracer, at the level that a verb asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from hicache_dbg.repro.chats.smollm2 import ModelMissingError, load
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.engine import DeviceMissing
from hicache_dbg.repro.faults.page_table import HostAccess, untold
from hicache_dbg.repro.run import OnProgress, run
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.cli.exits import CORRUPT, MISSING, CommandError
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.levels import CHECKSUMS, GateLevel
from hicache_dbg.tracer.cli.recorded import recording_in
from hicache_dbg.tracer.cli.repro_output import Outcome
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.report import build_report
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import CorruptionFoundError
from hicache_dbg.tracer.settings import Gate, Settings, SettingsError
from hicache_dbg.tracer.sinks import build_sinks

if TYPE_CHECKING:
    from hicache_dbg.tracer.sink import Sink

__all__ = ["option_errors", "traced_run"]


@contextmanager
def option_errors() -> Iterator[None]:
    """Turn errors about the requested run, and the finding that it had to stop at, into ``CommandError``."""
    try:
        yield
    except (ConfigError, SettingsError) as error:
        raise CommandError(str(error)) from error
    except (DeviceMissing, ModelMissingError) as error:
        raise CommandError(str(error), MISSING) from error
    except CorruptionFoundError as error:
        raise CommandError(f"HICACHE_DBG_ACTION=raise stopped the run: {error}", CORRUPT) from error


def traced_run(job: TracedJob, advance: OnProgress) -> Outcome:
    """Execute a run and return what the tracer saw; see :func:`hicache_dbg.repro.run.run`."""
    if job.config.model:  # load before anything is timed
        advance(0, 1, "loading the model")
        load()
    if job.config.pd:
        from hicache_dbg.tracer.cli.traced_pd import traced_pd

        return traced_pd(job, advance)
    memory = MemorySink()
    with _tracing(job, memory) as runtime:
        result = run(
            job.config,
            job.fault,
            job.trace,
            on_progress=advance,
            truth=job.truth,
            host_access=_host_access(runtime),
        )
        if runtime is not None:
            runtime.flush()
    if job.gate is GateLevel.OFF:
        return Outcome(result, None)
    corrupted = result.sessions.corrupted
    return Outcome(result, build_report(Evidence.of(memory.events, sessions_corrupted=corrupted)))


def _host_access(runtime: Runtime | None) -> HostAccess:
    """Return the callback by which the run tells the tracer of the host's own accesses."""
    attachment = runtime.attachment if runtime is not None else None
    return attachment.lifetimes.host_access if isinstance(attachment, HiCacheAttachment) else untold


@contextmanager
def _tracing(job: TracedJob, memory: MemorySink) -> Iterator[Runtime | None]:
    """Start the tracer at the requested level, with our sinks and those of HICACHE_DBG_SINKS."""
    if job.gate is GateLevel.OFF:
        yield None
        return
    settings = replace(Settings.from_environ(), gate=Gate.ON, checksum=CHECKSUMS[job.gate])
    sinks: list[Sink] = [memory]
    if job.record is not None:
        sinks.append(recording_in(job.record))
    if settings.sinks is not None:
        sinks.extend(build_sinks(settings, lambda: ()).sinks)
    with Runtime.start(settings, sinks=sinks) as runtime:
        yield runtime
