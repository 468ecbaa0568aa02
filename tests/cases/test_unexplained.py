"""Published fault reports whose cause was never found: what the tracer would have reported."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tests.pools.caching import group_of, sequences, turn
from tests.tracer.rig import Rig

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

BY = Access("test", "reader")


def test_one_block_at_offload_on_the_host_and_after_onboard() -> None:
    """Entry 103: three equal digests of one block clear the copies; the fault is elsewhere."""
    rig = Rig(Checksum.THREE)
    rig.backup([2], [5])
    rig.load([2], [6])
    copies, found = rig.finish()
    assert [(copy.op, copy.verified) for copy in copies] == [(Op.BACKUP, 3), (Op.LOAD, 3)]
    assert found == []
    assert (rig.device[:, 6] == rig.device[:, 5]).all()


def test_an_anchor_that_is_evicted_under_its_load() -> None:
    """Entry 105: the host anchor is released before the acknowledgement: slot reuse."""
    book, page = Ownership("host", 8), np.array([4], np.int64)
    book.alloc(page, np.array([1], np.int64), 1, BY)
    book.open(page, BY, writes=False)
    (found,) = book.free(page, BY)
    assert found.cls is FaultClass.SLOT_REUSE
    book.close(page, BY, writes=False)


def test_eight_readers_of_one_prefix() -> None:
    """Entry 107: eight threads share a prefix on a device too small for all of them: no finding."""
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime,
        HiCacheController(group_of(36, 64)) as controller,
    ):
        tokens = sequences([[0, 1, 10 + reader % 8] for reader in range(48)])
        with ThreadPoolExecutor(8) as readers:
            list(readers.map(lambda own: turn(controller, own), tokens))
        controller.flush()
        assert runtime.flush()
    assert sink.of(Finding) == []
    assert sum(copy.witnessed + copy.verified for copy in sink.of(Copied)) > 0
