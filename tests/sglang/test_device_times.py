"""The duration of an operation beside SGLang's, by a real device's clock."""

import time
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NBYTES = 64 << 20


class Nothing:
    """An operation without digests."""

    loads = False

    def __init__(self, lane: Any, size: int) -> None:
        self._lane, self._size = lane, size
        self.stream: int = lane.stream()
        self.mark = lane.mark(self.stream)
        self.slot: Any = None
        self.clock: tuple[Any, Any] = (self.mark, None)

    def prepare(self) -> int:
        """Prepare a slot anyway."""
        self.slot = self._lane.slot(1)
        self.clock = self.mark, self.slot.event
        return self._size

    def digest(self, on: int, *, during: bool) -> None:
        """Digest nothing."""


@pytest.mark.parametrize("beside", [False, True])
def test_the_device_tells_how_long_a_copy_took(beside: bool) -> None:
    """It is longer than the bus allows at best and no longer than the host waited."""
    from hicache_dbg.tracer.attach.sglang.gpu import IN_LINE_BYTES, Lane

    lane = Lane("cuda")
    source = torch.empty(NBYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty(NBYTES, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    torch.cuda.synchronize()
    for _ in range(2):  # a slot is used again, and its events with it
        began = time.perf_counter()
        job = Nothing(lane, IN_LINE_BYTES + 1 if beside else 0)
        target.copy_(source, non_blocking=True)
        lane.conclude([job], None, None, timed=False)
        torch.cuda.synchronize()
        waited_us = (time.perf_counter() - began) * 1e6
        begin, end = job.clock
        assert end.query()
        took_us = begin.elapsed_time(end) * 1e3
        assert NBYTES / 200e9 * 1e6 < took_us <= waited_us
        lane.give_back(job.slot, job.mark)
