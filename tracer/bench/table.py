"""Rows of the benchmark table, and the timers behind them."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

__all__ = ["Row", "device_ms", "event", "host_us", "markdown", "median", "seconds"]


@dataclass(frozen=True)
class Row:
    """One line of the table; ``goal`` is the bound that ``ratio`` should keep, if there is one."""

    part: str
    case: str
    ratio: float | None
    detail: str
    goal: str = ""

    @property
    def kept(self) -> str:
        """Whether the goal is kept, in words."""
        if not self.goal or self.ratio is None:
            return ""
        sign, bound = self.goal.split()
        return "kept" if (self.ratio >= float(bound)) == (sign == ">=") else "missed"


def markdown(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| what | case | ratio | goal | | measured |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.4f}"
        lines.append(
            f"| {row.part} | {row.case} | {ratio} | {row.goal} | {row.kept} | {row.detail} |"
        )
    return "\n".join(lines)


def host_us(enqueue: Callable[[], object], count: int = 100) -> float:
    """Return the host microseconds per enqueue, measured with a queue that never fills up."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        enqueue()
    return (time.perf_counter() - start) / count * 1e6


def device_ms(enqueue: Callable[[], object]) -> float:
    """Return the device milliseconds between events around the call."""
    start, end = event(timing=True), event(timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000)  # noqa: SLF001 - lets the host run ahead before the clock starts
    start.record()
    enqueue()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def event(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)


def seconds(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds until the work is done, including work on the device."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median(values: list[float]) -> float:
    """Return the median, rounded to four decimals."""
    return round(statistics.median(values), 4)
