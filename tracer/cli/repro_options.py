"""The options of a run that ``repro`` and ``ab`` share."""

from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicache_dbg.pools.choices import Layout
from hicache_dbg.repro.config import DEVICES, MODELS, POOLS, ConfigError, RunConfig
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.levels import GateLevel
from hicache_dbg.tracer.words import counted

if TYPE_CHECKING:
    from hicache_dbg.repro.faults.base import Fault
    from hicache_dbg.repro.trace import Trace

__all__ = ["WORKLOAD", "Record", "RunAsJson", "RunOptions"]

#: The default settings of a run. Not a ``RunConfig``: its validation would import the pools.
DEFAULTS: Any = SimpleNamespace(**{field.name: field.default for field in fields(RunConfig)})
WORKLOAD, ENGINE, TRACING = "Workload", "Engine", "Tracing and output"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


Record = Annotated[
    Path | None,
    _option(
        TRACING,
        "Record the events into this folder, for hicache-dbg diagnose. It is made if missing.",
    ),
]
RunAsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=TRACING)]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is run, in which engine, and how closely it is traced."""

    sessions: Annotated[
        int, _option(WORKLOAD, "Number of agent sessions that run side by side.")
    ] = DEFAULTS.sessions
    rounds: Annotated[int, _option(WORKLOAD, "Most replies in a session.")] = DEFAULTS.rounds
    ctx: Annotated[
        int | None,
        _option(
            WORKLOAD, "Tokens in each session's first prompt (default: depends on the pool set)."
        ),
    ] = None
    max_tokens: Annotated[int, _option(WORKLOAD, "Most tokens in a reply.")] = DEFAULTS.max_tokens
    timeout: Annotated[
        float, _option(WORKLOAD, "Seconds a turn may take before its session ends as an error.")
    ] = DEFAULTS.timeout
    tag: Annotated[str, _option(WORKLOAD, "A name for the run, printed with its result.")] = ""
    seed: Annotated[int, _option(WORKLOAD, "Seed of the prompts.")] = DEFAULTS.seed
    fault: Annotated[
        str,
        _option(
            WORKLOAD,
            "Inject this fault: any that hicache-dbg faults marks with a star.",
            show_default=False,
        ),
    ] = ""
    model: Annotated[
        str,
        _option(
            WORKLOAD,
            f"Instead of agent sessions, chat with a real model ({', '.join(MODELS)}): at most 6 chats of 3 turns.",
            show_default=False,
        ),
    ] = ""
    trace: Annotated[
        Path | None,
        _option(WORKLOAD, "Instead of agent sessions, replay a trace in Mooncake's format."),
    ] = None
    requests: Annotated[
        int | None,
        _option(WORKLOAD, "With --trace: replay only this many requests (default: all)."),
    ] = None
    scale: Annotated[
        int, _option(WORKLOAD, "With --trace: tokens that replace each block of 512.")
    ] = DEFAULTS.scale
    pools: Annotated[str, _option(ENGINE, f"Pool set: {', '.join(POOLS)}.")] = DEFAULTS.pools
    layout: Annotated[
        str, _option(ENGINE, f"Host layout: {', '.join(Layout)} (page_head for mha only).")
    ] = DEFAULTS.layout
    io_backend: Annotated[
        str,
        _option(
            ENGINE, "How copies are made: kernel or direct (default: what the layout is made for)."
        ),
    ] = ""
    device: Annotated[
        str, _option(ENGINE, f"Where the model and its pools live: {' or '.join(DEVICES)}.")
    ] = DEFAULTS.device
    index_dtype: Annotated[
        str, _option(ENGINE, "Dtype in which the device stores index-K: bf16 or fp8.")
    ] = DEFAULTS.index_dtype
    device_pages: Annotated[
        int | None,
        _option(
            ENGINE,
            "Pages in each device pool (default: too few for all sessions, so that pages are evicted).",
        ),
    ] = None
    host_pages: Annotated[
        int | None,
        _option(
            ENGINE,
            "Pages in each host pool (default: enough for all sessions; with --storage too few).",
        ),
    ] = None
    storage: Annotated[
        str,
        _option(
            ENGINE,
            "Add a storage tier: file[:DIR] or mooncake[:HOST:PORT:METADATA_PORT] "
            "(default: a folder, or a master, of the run's own).",
            show_default=False,
        ),
    ] = ""
    kill: Annotated[
        bool,
        _option(
            ENGINE,
            "With --storage: first run a process over the same store that is killed halfway. "
            "With --pd: kill prefill while it hands a request over.",
            "--kill",  # without the --no-kill that typer would add
        ),
    ] = False
    pd: Annotated[
        bool,
        _option(
            ENGINE,
            "Run prefill and decode in two processes; pages are handed over through NIXL (extra nixl).",
            "--pd",
        ),
    ] = False
    gate: Annotated[
        GateLevel,
        _option(
            TRACING,
            "How closely to trace: off; events (no digests); loads (digest at backup, compare at "
            "load); ends (also the host end of backups); three (also the source again).",
        ),
    ] = GateLevel.LOADS

    def job(self, record: Path | None = None) -> TracedJob:
        """Return the run to execute; its events are recorded into the folder ``record``.

        Raises:
            ConfigError: a value is not allowed, or the trace cannot be read.
        """
        return TracedJob(
            config=self.config(),
            fault=self.injected(),
            gate=self.gate,
            trace=self.replay(),
            record=record,
        )

    def config(self) -> RunConfig:
        """Return the settings of the run.

        Raises:
            ConfigError: a value is not allowed.
        """
        if self.trace is None and (self.requests is not None or self.scale != DEFAULTS.scale):
            raise ConfigError("--requests and --scale apply to a trace: add --trace FILE")
        if self.trace is not None and self.model:
            raise ConfigError(
                "--trace replays requests and --model holds chats: leave one of them out"
            )
        return RunConfig(
            sessions=self.sessions,
            rounds=self.rounds,
            ctx=self.ctx,
            max_tokens=self.max_tokens,
            timeout=self.timeout,
            tag=self.tag,
            seed=self.seed,
            layout=self.layout,
            index_dtype=self.index_dtype,  # type: ignore[arg-type]  # checked by RunConfig
            device_pages=self.device_pages,
            host_pages=self.host_pages,
            storage=self.storage,
            kill=self.kill,
            pd=self.pd,
            model=self.model,
            pools=self.pools,
            io_backend=self.io_backend,
            device=self.device,
            scale=self.scale,
        )

    def injected(self) -> "Fault | None":
        """Return the fault to inject, or None.

        Raises:
            ConfigError: there is no fault of that name.
        """
        from hicache_dbg.repro.faults.registry import fault_named

        return fault_named(self.fault) if self.fault else None

    def replay(self) -> "Trace | None":
        """Return the trace to replay, or None; report where it could only be read in part."""
        from hicache_dbg.repro.trace import read_trace

        if self.trace is None:
            return None
        if self.requests is not None and self.requests < 1:
            raise ConfigError(f"requests is {self.requests}, expected at least 1")
        trace = read_trace(self.trace, self.requests)
        if trace.error is not None:
            whole = counted(len(trace.requests), "request")
            typer.echo(f"hicache-dbg: {trace.error}; replayed: {whole} before it", err=True)
        return trace
