"""The options of a run, which ``repro`` and ``ab`` share."""

from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicache_dbg.pools.choices import Layout
from hicache_dbg.repro.config import DEVICES, MODELS, POOLS, ConfigError, RunConfig
from hicache_dbg.tracer.cli.levels import GateLevel

if TYPE_CHECKING:
    from hicache_dbg.repro.faults.base import Fault
    from hicache_dbg.repro.trace import Trace

__all__ = ["WORKLOAD", "Record", "RunAsJson", "RunOptions"]

#: Of a run's settings. A whole ``RunConfig`` would be checked, and that takes the pools.
DEFAULTS: Any = SimpleNamespace(**{field.name: field.default for field in fields(RunConfig)})
WORKLOAD, ENGINE, TRACING = "Workload", "Engine", "Tracing and output"


def _option(panel: str, text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **more)


Record = Annotated[
    Path | None,
    _option(TRACING, "Keep the events in this folder, made if need be, for diagnose."),
]
RunAsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=TRACING)]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is run, in which engine, and how closely it is traced."""

    sessions: Annotated[int, _option(WORKLOAD, "Agent sessions side by side.")] = DEFAULTS.sessions
    rounds: Annotated[int, _option(WORKLOAD, "Replies a session gets.")] = DEFAULTS.rounds
    ctx: Annotated[
        int | None,
        _option(WORKLOAD, "Tokens of a session's first prompt (default: what suits the pool set)."),
    ] = None
    max_tokens: Annotated[int, _option(WORKLOAD, "Tokens of a reply.")] = DEFAULTS.max_tokens
    timeout: Annotated[float, _option(WORKLOAD, "Seconds a turn may take.")] = DEFAULTS.timeout
    tag: Annotated[str, _option(WORKLOAD, "A name for the run.")] = ""
    seed: Annotated[int, _option(WORKLOAD, "Of the prompts.")] = DEFAULTS.seed
    fault: Annotated[
        str,
        _option(
            WORKLOAD,
            "Inject a fault; those with a star in hicache-dbg faults.",
            show_default=False,
        ),
    ] = ""
    model: Annotated[
        str,
        _option(
            WORKLOAD,
            f"Hold chats with a real model instead ({', '.join(MODELS)}), at most 6 of 3 turns.",
            show_default=False,
        ),
    ] = ""
    trace: Annotated[
        Path | None, _option(WORKLOAD, "Replay a Mooncake-format trace instead of sessions.")
    ] = None
    requests: Annotated[
        int | None, _option(WORKLOAD, "Requests of the trace to replay (default: all).")
    ] = None
    scale: Annotated[
        int, _option(WORKLOAD, "Tokens that a 512-token block of the trace becomes.")
    ] = DEFAULTS.scale
    pools: Annotated[str, _option(ENGINE, f"Pool set: {', '.join(POOLS)}.")] = DEFAULTS.pools
    layout: Annotated[
        str, _option(ENGINE, f"Host layout: {', '.join(Layout)} (page_head for mha only).")
    ] = DEFAULTS.layout
    io_backend: Annotated[
        str, _option(ENGINE, "kernel or direct (default: what the layout is made for).")
    ] = ""
    device: Annotated[
        str, _option(ENGINE, f"Where model and pools live: {' or '.join(DEVICES)}.")
    ] = DEFAULTS.device
    index_dtype: Annotated[
        str, _option(ENGINE, "What the device stores index-K in: bf16 or fp8.")
    ] = DEFAULTS.index_dtype
    device_pages: Annotated[
        int | None, _option(ENGINE, "Pages in each device pool (default: too few for all).")
    ] = None
    host_pages: Annotated[
        int | None,
        _option(
            ENGINE, "Pages in each host pool (default: enough, or with --storage too few for all)."
        ),
    ] = None
    storage: Annotated[
        str,
        _option(
            ENGINE,
            "Keep pages behind the host in file[:DIR] or mooncake[:HOST:RPC_PORT:METADATA_PORT] "
            "(default: a folder, or a master, of the run's own).",
            show_default=False,
        ),
    ] = ""
    kill: Annotated[
        bool,
        _option(
            ENGINE,
            "First kill a process with the same run over the same store while it stores; with --pd "
            "prefill while it hands a request over.",
        ),
    ] = False
    pd: Annotated[
        bool,
        _option(
            ENGINE,
            "Compute prompts in one process and replies in another, and hand the pages over (extra nixl).",
        ),
    ] = False
    gate: Annotated[GateLevel, _option(TRACING, "How closely to trace.")] = GateLevel.LOADS

    def config(self) -> RunConfig:
        """The run's own settings; raises ``ConfigError`` where one is not allowed."""
        if self.trace is None and (self.requests is not None or self.scale != DEFAULTS.scale):
            raise ConfigError("--requests and --scale are of a trace: add --trace FILE")
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
        """The fault asked for; raises ``ConfigError`` where there is none of that name."""
        from hicache_dbg.repro.faults.registry import fault_named

        return fault_named(self.fault) if self.fault else None

    def replay(self) -> "Trace | None":
        """The trace asked for, as far as it can be read; what is wrong with it is said."""
        from hicache_dbg.repro.trace import read_trace

        if self.trace is None:
            return None
        if self.requests is not None and self.requests < 1:
            raise ConfigError(f"requests is {self.requests}, expected at least 1")
        trace = read_trace(self.trace, self.requests)
        if trace.error is not None:
            whole = len(trace.requests)
            typer.echo(
                f"hicache-dbg: {trace.error}; the {whole} requests before it are replayed", err=True
            )
        return trace
