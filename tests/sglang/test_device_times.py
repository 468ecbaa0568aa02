"""How long an operation beside SGLang's takes, by the clock of a real device."""

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NBYTES = 64 << 20


@dataclass
class Nothing:
    """An operation of which nothing is digested."""

    size: int
    work: Any
    loads: bool = False

    def digest(self) -> None:
        """There is nothing."""


@pytest.mark.parametrize("beside", [False, True])
def test_the_device_tells_how_long_a_copy_took(beside: bool) -> None:
    """Longer than the bus could be fast, no longer than the host waited, though the call returned at once."""
    from hicache_dbg.tracer.attach.sglang.gpu import IN_LINE_BYTES, Lane

    lane = Lane("cuda")
    source = torch.empty(NBYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty(NBYTES, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    torch.cuda.synchronize()
    for _ in range(2):  # a slot is used again, and its events with it
        began = time.perf_counter()
        work = lane.begin(1, timed=False)
        target.copy_(source, non_blocking=True)
        lane.conclude([Nothing(IN_LINE_BYTES + 1 if beside else 0, work)], None, None, timed=False)
        torch.cuda.synchronize()
        waited_us = (time.perf_counter() - began) * 1e6
        assert work.ready()
        took_us = work.device_us()
        assert took_us is not None
        assert NBYTES / 200e9 * 1e6 < took_us <= waited_us
        lane.give_back(work.slot)
