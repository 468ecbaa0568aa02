"""``hicache-dbg repro``: sessions through the engine, and what was corrupted and why."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.config import DEVICES, ConfigError, RunConfig
from hicache_dbg.repro.engine import DeviceMissing
from hicache_dbg.repro.faults.registry import FAULTS, fault_named
from hicache_dbg.repro.run import run
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.repro.trace import Trace, read_trace
from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.report import build_report
from hicache_dbg.tracer.cli.repro_output import Outcome, exit_code, show
from hicache_dbg.tracer.cli.repro_output import as_json as to_json
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings, SettingsError
from hicache_dbg.tracer.sink import Sink
from hicache_dbg.tracer.sinks import build_sinks, run_id

__all__ = ["GateLevel", "command"]


class GateLevel(StrEnum):
    """How closely the run is traced: not at all, events only, or with digests."""

    OFF = "off"
    EVENTS = "events"
    LOADS = "loads"
    ENDS = "ends"
    THREE = "three"


#: What is digested at each level; ``off`` attaches nothing.
CHECKSUMS = {
    GateLevel.EVENTS: Checksum.OFF,
    GateLevel.LOADS: Checksum.LOADS,
    GateLevel.ENDS: Checksum.ENDS,
    GateLevel.THREE: Checksum.THREE,
}
DEFAULTS = RunConfig()
_CTX = ", ".join(f"{pool_set.ctx} for {name}" for name, pool_set in POOL_SETS.items())


def command(
    sessions: Annotated[
        int, typer.Option(help="Agent sessions side by side.", rich_help_panel="Workload")
    ] = DEFAULTS.sessions,
    rounds: Annotated[
        int, typer.Option(help="Replies a session gets.", rich_help_panel="Workload")
    ] = DEFAULTS.rounds,
    ctx: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens of a session's first prompt (default: {_CTX}).",
            rich_help_panel="Workload",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of a reply.", rich_help_panel="Workload")
    ] = DEFAULTS.max_tokens,
    timeout: Annotated[
        float, typer.Option(help="Seconds a turn may take.", rich_help_panel="Workload")
    ] = DEFAULTS.timeout,
    tag: Annotated[str, typer.Option(help="A name for the run.", rich_help_panel="Workload")] = "",
    seed: Annotated[
        int, typer.Option(help="Of the prompts.", rich_help_panel="Workload")
    ] = DEFAULTS.seed,
    fault: Annotated[
        str,
        typer.Option(
            help=f"Inject a fault: {', '.join(FAULTS)}.",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay a Mooncake-format trace instead of sessions.", rich_help_panel="Workload"
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests of the trace to replay (default: all).", rich_help_panel="Workload"
        ),
    ] = None,
    scale: Annotated[
        int,
        typer.Option(
            help="Tokens that a 512-token block of the trace becomes.", rich_help_panel="Workload"
        ),
    ] = DEFAULTS.scale,
    pools: Annotated[
        str, typer.Option(help=f"Pool set: {', '.join(POOL_SETS)}.", rich_help_panel="Engine")
    ] = DEFAULTS.pools,
    layout: Annotated[
        str,
        typer.Option(
            help=f"Host layout: {', '.join(Layout)} (page_head for mha only).",
            rich_help_panel="Engine",
        ),
    ] = DEFAULTS.layout,
    io_backend: Annotated[
        str,
        typer.Option(
            help="kernel or direct (default: what the layout is made for).",
            rich_help_panel="Engine",
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            help=f"Where model and pools live: {' or '.join(DEVICES)}.", rich_help_panel="Engine"
        ),
    ] = DEFAULTS.device,
    index_dtype: Annotated[
        str,
        typer.Option(
            help="What the device stores index-K in: bf16 or fp8.", rich_help_panel="Engine"
        ),
    ] = DEFAULTS.index_dtype,
    device_pages: Annotated[
        int | None,
        typer.Option(
            help="Pages in each device pool (default: too few for all).", rich_help_panel="Engine"
        ),
    ] = None,
    host_pages: Annotated[
        int, typer.Option(help="Pages in each host pool.", rich_help_panel="Engine")
    ] = DEFAULTS.host_pages,
    gate: Annotated[
        GateLevel, typer.Option(help="How closely to trace.", rich_help_panel="Tracing and output")
    ] = GateLevel.LOADS,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Keep the events in this folder, for diagnose.",
            rich_help_panel="Tracing and output",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Tracing and output")
    ] = False,
) -> None:
    """Run multi-turn agent sessions through the tiered cache and say what was corrupted, and why.

    The model's tokens are compared with those of the same model with everything kept on the
    device, and every copied page is digested. Exits 0 if all is clean, 1 if anything is corrupt.

    Examples:
      hicache-dbg repro
      hicache-dbg repro --fault host_sized_for_fp8
      hicache-dbg repro --pools deepseek_v4 --layout layer_first
      hicache-dbg repro --trace conversation_trace.jsonl --requests 300
    """
    try:
        config = RunConfig(
            sessions=sessions,
            rounds=rounds,
            ctx=ctx,
            max_tokens=max_tokens,
            timeout=timeout,
            tag=tag,
            seed=seed,
            layout=layout,
            index_dtype=index_dtype,  # type: ignore[arg-type]  # checked by RunConfig
            device_pages=device_pages,
            host_pages=host_pages,
            pools=pools,
            io_backend=io_backend,
            device=device,
            scale=scale,
        )
        replay = None if trace is None else _read(trace, requests)
        outcome = _run(config, fault, replay, gate, record)
    except (ConfigError, SettingsError) as error:
        raise CommandError(str(error)) from error
    except DeviceMissing as error:
        raise CommandError(str(error), MISSING) from error
    if as_json:
        typer.echo(to_json(outcome))
    else:
        show(outcome)
    raise typer.Exit(exit_code(outcome))


def _read(path: Path, requests: int | None) -> Trace:
    if requests is not None and requests < 1:
        raise ConfigError(f"requests is {requests}, expected at least 1")
    trace = read_trace(path, requests)
    if trace.error is not None:
        typer.echo(
            f"hicache-dbg: {trace.error}; the {len(trace.requests)} requests before it are replayed",
            err=True,
        )
    return trace


def _run(
    config: RunConfig, fault: str, trace: Trace | None, gate: GateLevel, record: Path | None
) -> Outcome:
    injected = fault_named(fault) if fault else None
    memory = MemorySink()
    with _tracing(gate, record, memory) as runtime, _progress() as advance:
        result = run(config, injected, trace, on_progress=advance)
        if runtime is not None:
            runtime.flush()
    if gate is GateLevel.OFF:
        return Outcome(result, None)
    corrupted = result.sessions.corrupted
    return Outcome(result, build_report(Evidence.of(memory.events, sessions_corrupted=corrupted)))


@contextmanager
def _tracing(gate: GateLevel, record: Path | None, memory: MemorySink) -> Iterator[Runtime | None]:
    """The tracer at the level asked for, with what HICACHE_DBG_SINKS names beside our own sinks."""
    if gate is GateLevel.OFF:
        yield None
        return
    asked = Settings.from_environ()
    settings = replace(asked, gate=Gate.ON, checksum=CHECKSUMS[gate])
    sinks: list[Sink] = [memory]
    if record is not None:
        sinks.append(_recording(record))
    if settings.sinks is not None:
        sinks.extend(build_sinks(settings, lambda: ()).sinks)
    with Runtime.start(settings, sinks=sinks) as runtime:
        yield runtime


def _recording(folder: Path) -> Sink:
    from hicache_dbg.exporters.recording import RecordingError, RecordingSink

    try:
        return RecordingSink(folder, run_id(0))
    except RecordingError as error:
        raise CommandError(str(error)) from error


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on a terminal's standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total, _text: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield advance
