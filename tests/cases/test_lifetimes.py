"""Published fault reports about ordering, slots and completion, each with its correct diagnosis."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from tests.pools.caching import group_of, sequences, turn
from tests.tracer.checks.statements import contract, received, sent
from tests.tracer.rig import Rig

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

BY = Access("test", "reader")


def test_both_groups_of_a_block_are_digested_and_no_hit_is_no_proof() -> None:
    """Entry 13: both pools of a block are witnessed.

    Without a load, nothing was checked (share 0).
    """
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime,
        HiCacheController(group_of()) as controller,
    ):
        turn(controller, sequences([[0]])[0])
        controller.flush()
        assert runtime.flush()
    copies = sink.of(Copied)
    assert {copy.pool for copy in copies} == set(controller.group.device)
    assert all(copy.witnessed for copy in copies)
    assert Evidence.of(sink.events).checked_share == 0.0


def _late_writer(rig: Rig) -> None:
    rig.backup([1], [3], during=lambda: rig.device[:, 3].fill(9))


def _bad_wire(rig: Rig) -> None:
    def call() -> None:
        rig.host[:, [1]] = rig.device[:, [3]]
        rig.host[0, 1, 5] ^= 1

    rig.session.probe.observe(lambda: [rig.copy(Op.BACKUP, [1], [3])], call)


def _good(rig: Rig) -> None:
    rig.backup([1], [3])


@pytest.mark.parametrize(
    ("copy", "cls"),
    [
        (_bad_wire, FaultClass.FAILED_LOAD),
        (_late_writer, FaultClass.STORE_BEFORE_WRITE),
        (_good, None),
    ],
)
def test_three_digests_tell_who_is_at_fault(
    copy: Callable[[Rig], None], cls: FaultClass | None
) -> None:
    """Entry 39: before = after != there blames the transfer, before != after the source.

    If all three are equal, neither is blamed.
    """
    assert 4 * 2_424_832 + 4 * 16_384 == 9_764_864
    rig = Rig(Checksum.THREE)
    copy(rig)
    copies, found = rig.finish()
    assert copies[0].tiles == 3
    assert [finding.cls for finding in found] == ([] if cls is None else [cls])


def pages(*numbers: int) -> npt.NDArray[np.int64]:
    """Return an int64 array."""
    return np.array(numbers, np.int64)


def test_reuse_of_a_block_that_was_never_registered() -> None:
    """Entry 50: two blocks, dropped before they were registered, then offered by prefix.

    This is a finding.
    """
    book = Ownership("device", 8)
    book.alloc(pages(2, 3), pages(1, 1), 1, BY)
    assert book.free(pages(2, 3), BY) == []
    (free,) = book.read(pages(2, 3), pages(1, 1), BY)
    assert (free.cls, free.pages) == (FaultClass.SLOT_REUSE, (2, 3))
    book.alloc(pages(2, 3), pages(2, 2), 2, BY)
    (stale,) = book.read(pages(2, 3), pages(1, 1), BY)
    assert stale.got == "generation 2, owner 2"
    assert book.read(pages(2, 3), pages(2, 2), BY) == []


def retained(array: npt.NDArray[np.int64]) -> int:
    """Return the bytes that ``array`` keeps alive.

    Its own, or those of the array it is a view of.
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


def test_what_is_kept_of_a_free_list_is_what_was_taken() -> None:
    """Entry 54: 64 ids taken from a list of a million keep 512 B alive.

    They do not keep the list's 8,000,000 B.
    """
    allocator = PageAllocator(1_000_000, "device")
    given = allocator.alloc(64)
    assert given is not None
    assert retained(given) == 512
    with HiCacheController(group_of(8, 32)) as controller:
        for tokens in sequences([[0, 1], [0, 2]]):
            turn(controller, tokens)
        controller.flush()
        nodes = [node for node in controller.tree.nodes() if node.device.size]
        assert nodes
        assert all(retained(node.device) <= 8 * 8 for node in nodes)


@pytest.mark.parametrize(
    ("status", "pages_sent", "told"), [("aborted", 0, True), ("complete", 2, False)]
)
def test_decode_commits_what_prefill_completed(status: str, pages_sent: int, *, told: bool) -> None:
    """Entry 63: prefill aborts room 7 with 0 pages, decode commits it with 2: a finding."""
    ours = [contract("prefill", "v", 1), sent("room 7", pages_sent, status)]
    theirs = [contract("decode", "v", 1), received("room 7", 2, "complete")]
    found: list[Finding] = join([ours, theirs])
    assert bool(found) is told
    if told:
        assert found[0].cls is FaultClass.PD_CONTRACT
        assert "room 7" in found[0].message
        assert "0 pages (aborted)" in found[0].expected
