"""The options of a run, which ``repro`` and ``ab`` share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.config import DEVICES, MODELS, ConfigError, RunConfig
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import FAULTS, fault_named
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.repro.trace import Trace, read_trace
from hicache_dbg.tracer.cli.traced import GateLevel

__all__ = ["TRACING", "WORKLOAD", "RunOptions"]

DEFAULTS = RunConfig()
WORKLOAD, ENGINE, TRACING = "Workload", "Engine", "Tracing and output"
_CTX = ", ".join(f"{pool_set.ctx} for {name}" for name, pool_set in POOL_SETS.items())


def _option(panel: str, text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is run, in which engine, and how closely it is traced."""

    sessions: Annotated[int, _option(WORKLOAD, "Agent sessions side by side.")] = DEFAULTS.sessions
    rounds: Annotated[int, _option(WORKLOAD, "Replies a session gets.")] = DEFAULTS.rounds
    ctx: Annotated[
        int | None, _option(WORKLOAD, f"Tokens of a session's first prompt (default: {_CTX}).")
    ] = None
    max_tokens: Annotated[int, _option(WORKLOAD, "Tokens of a reply.")] = DEFAULTS.max_tokens
    timeout: Annotated[float, _option(WORKLOAD, "Seconds a turn may take.")] = DEFAULTS.timeout
    tag: Annotated[str, _option(WORKLOAD, "A name for the run.")] = ""
    seed: Annotated[int, _option(WORKLOAD, "Of the prompts.")] = DEFAULTS.seed
    fault: Annotated[
        str, _option(WORKLOAD, f"Inject a fault: {', '.join(FAULTS)}.", show_default=False)
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
    pools: Annotated[str, _option(ENGINE, f"Pool set: {', '.join(POOL_SETS)}.")] = DEFAULTS.pools
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
            ENGINE, "First kill a process with the same run over the same store while it stores."
        ),
    ] = False
    gate: Annotated[GateLevel, _option(TRACING, "How closely to trace.")] = GateLevel.LOADS

    def config(self) -> RunConfig:
        """The run's own settings; raises ``ConfigError`` where one is not allowed."""
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
            model=self.model,
            pools=self.pools,
            io_backend=self.io_backend,
            device=self.device,
            scale=self.scale,
        )

    def injected(self) -> Fault | None:
        """The fault asked for; raises ``ConfigError`` where there is none of that name."""
        return fault_named(self.fault) if self.fault else None

    def replay(self) -> Trace | None:
        """The trace asked for, as far as it can be read; what is wrong with it is said."""
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
