"""Measure the host time to watch an operation, relative to one ``tensor.add_``."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from hicache_dbg.tracer.bench.digest_copies import wanted_of
from hicache_dbg.tracer.bench.memory import random_bytes
from hicache_dbg.tracer.bench.table import Row, host_us, median
from hicache_dbg.tracer.digest.select import DeviceDigester
from hicache_dbg.tracer.digest.watch import Watch

__all__ = ["host_rows"]

#: Operations enqueued back to back; fewer than there are lanes.
_AT_ONCE = 48


class _Mirror:
    """The owner of the roll-ups."""


def host_rows(digester: DeviceDigester) -> Iterator[Row]:
    """Measure the host time that digests add to an operation of four pages and 61 layers."""
    watches = digester.watches()
    if watches is None:
        return
    memory, pages, mirror = random_bytes((61, 64 * 16384), "cuda"), np.arange(4), _Mirror()
    value, stream = torch.zeros(1, device="cuda"), torch.cuda.Stream().cuda_stream
    for name, loads, under_way in (("backup", False, 0), ("load", True, 3)):
        wanted = wanted_of(mirror, memory, 16384, pages, loads=loads)

        def enqueue() -> Watch:
            watch = watches.watch(wanted)  # noqa: B023 - called before the next iteration
            assert watch is not None
            watch.queued(stream, under_way)  # noqa: B023 - as above
            return watch

        yield _against_add(f"{name}, watched", enqueue, value)


def _against_add(case: str, enqueue: Callable[[], Watch], value: torch.Tensor) -> Row:
    ratios, ours = [], []
    for _ in range(15):
        ours.append(_enqueue_us(enqueue))
        ratios.append(ours[-1] / host_us(lambda: value.add_(1), _AT_ONCE))
    return Row("host over tensor.add_", case, median(ratios), f"{median(ours)} us", "<= 3")


def _enqueue_us(enqueue: Callable[[], Watch]) -> float:
    """Return the host microseconds per enqueue; the results are read outside the measurement."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    watches = [enqueue() for _ in range(_AT_ONCE)]
    took = (time.perf_counter() - start) / _AT_ONCE * 1e6
    torch.cuda.synchronize()
    for watch in watches:
        watch.seen()
    return took
