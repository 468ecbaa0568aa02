"""All parts of the digest benchmark, by device."""

from collections.abc import Callable, Iterator

import torch

from hicache_dbg.tracer.bench.digest_copies import copy_rows
from hicache_dbg.tracer.bench.digest_cpu import cpu_rows
from hicache_dbg.tracer.bench.digest_engine import engine_rows, probe_rows
from hicache_dbg.tracer.bench.digest_host import host_rows
from hicache_dbg.tracer.bench.digest_read import throughput_rows
from hicache_dbg.tracer.bench.table import Row
from hicache_dbg.tracer.digest.select import DeviceDigester, digester_for

__all__ = ["NoDeviceError", "digest_rows"]

PARTS: tuple[Callable[[DeviceDigester], Iterator[Row]], ...] = (
    throughput_rows,
    copy_rows,
    host_rows,
    probe_rows,
    engine_rows,
)


class NoDeviceError(RuntimeError):
    """The requested device is not available."""


def digest_rows(device: str) -> Iterator[Row]:
    """Yield the rows of the CPU and, for ``cuda``, those of the device.

    Raises:
        NoDeviceError: no CUDA device is visible to torch.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise NoDeviceError("no CUDA device is visible to torch")
    yield from cpu_rows()
    if device == "cuda":
        digester = digester_for("cuda")
        for part in PARTS:
            yield from part(digester)
