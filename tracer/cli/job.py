"""A run that a verb executes, and how closely it is traced."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hicache_dbg.tracer.cli.levels import GateLevel

if TYPE_CHECKING:
    from pathlib import Path

    from hicache_dbg.repro.config import RunConfig
    from hicache_dbg.repro.faults.base import Fault
    from hicache_dbg.repro.trace import Trace
    from hicache_dbg.repro.workload import Truth

__all__ = ["TracedJob"]


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A run, and how closely it is traced.

    Args:
        config: the run's settings.
        fault: the fault to inject, or None.
        gate: the tracing level.
        trace: the trace to replay instead of running sessions.
        record: the folder that the events are recorded into; None records nothing.
        truth: the run's ground truth if it is known; None computes it.
    """

    config: "RunConfig"
    fault: "Fault | None"
    gate: GateLevel = GateLevel.LOADS
    trace: "Trace | None" = None
    record: "Path | None" = None
    truth: "Truth | None" = None
