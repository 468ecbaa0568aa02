"""The model's kernels report their accesses, so that a missing wait is found in plain sessions."""

import re

import numpy as np
import pytest
from tests.repro.samples import SMALL

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.repro.faults.registry import FAULTS
from hicache_dbg.repro.kernels import ToldKernels
from hicache_dbg.repro.run import run
from hicache_dbg.repro.workload import Truth
from hicache_dbg.tracer.checks.ordering import CHECK
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings


@pytest.mark.parametrize(
    ("fault", "this", "previous"),
    [
        (
            "a_getter_without_a_wait",
            "kernel read layer 1 on stream forward",
            "load \\d+ on",
        ),
        (
            "backup_without_a_wait",
            "backup \\d+ on hicache-backup",
            "kernel write on stream forward",
        ),
        ("backup_waits_for_an_older_event", "backup \\d+ on", "kernel write on stream forward"),
    ],
)
def test_the_conflicting_pair_is_told(
    fault: str, this: str, previous: str, small_truth: Truth
) -> None:
    """The finding names both accesses and the allocation of the page, though no byte was wrong."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        result = run(SMALL, FAULTS[fault], truth=small_truth)
        assert runtime.flush()
    found = [finding for finding in sink.of(Finding) if finding.check == CHECK]
    assert {finding.cls for finding in found} == {FAULTS[fault].cls}
    message = found[0].message
    assert re.search(
        f"this access: {this}.*previous access: {previous}.*allocated: alloc on", message
    )
    assert result.sessions.corrupted == 0


def test_a_mark_is_passed_when_it_is_made() -> None:
    """A thread that waits for the reported kernels never blocks: their work is done."""
    group = PoolGroup.build(
        [mla(2, 4), index_k(2, 4, "bf16")],
        device_pages=4,
        host_pages=4,
        layout=Layout.PAGE_FIRST,
    )
    with HiCacheController(group) as controller:
        kernels = ToldKernels(controller)
        kernels.write(np.array([1, 2]))
        kernels.read(1, np.array([], np.int64))
        event = controller._state.mark()
        assert event is not None
        assert event.query()
        event.synchronize()
    group.close()
