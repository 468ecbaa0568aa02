"""Execute a run over two processes under the tracer, and join their recordings."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.page_table import untold
from hicache_dbg.repro.pd import PdRun
from hicache_dbg.repro.pd_prefill import fingerprint, serve
from hicache_dbg.repro.pd_process import PrefillProcess
from hicache_dbg.repro.result import RunResult
from hicache_dbg.repro.run import OnProgress, carry_out
from hicache_dbg.repro.sizes import sized
from hicache_dbg.repro.trace import Trace
from hicache_dbg.tracer.attach.hicache_handover import HandoverAttachment, handover_of
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.levels import CHECKSUMS, GateLevel
from hicache_dbg.tracer.cli.recorded import recording_in
from hicache_dbg.tracer.cli.repro_output import Outcome
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.handed_over import settle
from hicache_dbg.tracer.diagnose.report import Report, build_report
from hicache_dbg.tracer.events import Event, FaultClass
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings
from hicache_dbg.tracer.sink import Sink
from hicache_dbg.tracer.sinks import build_sinks

__all__ = ["traced_pd"]

Begin = Callable[[PoolGroup, HiCacheController, bool], PrefillProcess]


def traced_pd(job: TracedJob, advance: OnProgress) -> Outcome:
    """Execute the run and report what both tracers saw and where they disagree.

    Raises:
        ConfigError: such a run cannot inject the fault or replay a trace.
    """
    _refuse(job.fault, job.trace)
    with ExitStack() as stack:
        folder = job.record or Path(stack.enter_context(TemporaryDirectory(prefix="hicache-dbg-")))
        settings = _settings(job.gate, folder)
        run = PdRun(sized(job.config, None), job.fault, None, advance, job.truth, untold)
        run.begin = _beginning(job.config, job.fault, settings)
        if settings is None:
            return Outcome(carry_out(run), None)
        memory, earlier = MemorySink(), set(recordings_in(folder))
        sinks = [] if job.record is None else [recording_in(job.record)]
        with _tracing(settings, [memory, *sinks]):
            result = carry_out(run)
        prefills = _recorded(folder, besides={*earlier, *(sink.path for sink in sinks)})
    return Outcome(result, _joined(result, memory.events, prefills))


def _refuse(fault: Fault | None, trace: Trace | None) -> None:
    if trace is not None:
        raise ConfigError("pd runs agent sessions; leave --trace out")
    if fault is not None and fault.cls is FaultClass.CONTROL_TABLE:
        raise ConfigError(
            f"fault {fault.name} is in a page table that --pd does not upload; leave --pd out"
        )


def _settings(gate: GateLevel, folder: Path) -> Settings | None:
    """Return the tracer settings of both processes; None if nothing is traced."""
    if gate is GateLevel.OFF:
        return None
    settings = Settings.from_environ()
    return replace(settings, gate=Gate.ON, checksum=CHECKSUMS[gate], directory=folder)


def _beginning(config: RunConfig, fault: Fault | None, settings: Settings | None) -> Begin:
    """Return the function that starts the prefill process."""

    def begin(group: PoolGroup, controller: HiCacheController, kill: bool) -> PrefillProcess:
        arguments = settings, sized(config, None), fault.name if fault else "", kill
        return PrefillProcess(traced_serve, arguments, group, controller, fingerprint(config))

    return begin


def _joined(result: RunResult, decode: list[Event], prefills: list[list[Event]]) -> Report:
    """Report on the events of both processes, each alone and compared with the other."""
    evidence = Evidence.of(
        [event for events in (decode, *prefills) for event in events],
        sessions_corrupted=result.sessions.corrupted,
    )
    recordings = [*prefills, decode]
    settle(evidence, recordings)
    evidence.joined = True
    for finding in join(recordings):
        evidence.add(finding)
    return build_report(evidence)


def traced_serve(
    jobs: Connection,
    channel: Connection,
    settings: Settings | None,
    config: RunConfig,
    fault: str,
    kill: bool,
) -> None:
    """Run the prefill process under its own tracer, which records into a folder."""
    if settings is None:
        serve(jobs, channel, config, fault, kill)
        return
    with _tracing(settings, [recording_in(settings.directory)]) as (runtime, attachment):

        def last_words() -> None:
            attachment.settle()
            runtime.flush()

        serve(jobs, channel, config, fault, kill, last_words)


@contextmanager
def _tracing(settings: Settings, own: list[Sink]) -> Iterator[tuple[Runtime, HandoverAttachment]]:
    """Start the tracer and the handover's attachment, with HICACHE_DBG_SINKS beside ``own``."""
    more = build_sinks(settings, lambda: ()).sinks if settings.sinks is not None else []
    with Runtime.start(settings, sinks=[*own, *more]) as runtime:
        attachment = handover_of(runtime)
        yield runtime, attachment
        attachment.settle()
        runtime.flush()


def _recorded(folder: Path, *, besides: set[Path]) -> list[list[Event]]:
    """Return the events of each recording in ``folder``, except for the paths in ``besides``."""
    return [list(read(path)) for path in recordings_in(folder) if path not in besides]
