"""An interrupt anywhere in the tracer: the host goes on, and the recording neither lies nor loses."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from tests.pools.caching import group_of, sequences, turn
from tests.tracer.interrupting import interrupted
from tests.tracer.rig import LAYERS, Rig

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.events import Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings


@pytest.mark.parametrize("checksum", [Checksum.OFF, Checksum.LOADS, Checksum.THREE])
@pytest.mark.parametrize("loads", [True, False])
def test_a_copy_that_moved_bytes_is_recorded_or_counted(
    checksum: Checksum, loads: bool, internal_errors: list[str]
) -> None:
    """Its tiles are skipped if its digests are incomplete, and what comes later is compared as ever."""
    at = 0
    for at in count(1):
        rig = Rig(checksum)
        rig.backup([0, 1], [0, 1])
        took_place = rig.device.copy() if loads else rig.host.copy()

        def step(rig: Rig = rig) -> None:
            (rig.load if loads else rig.backup)([1, 0] if loads else [1, 2], [2, 3])

        hit = interrupted(step, at)
        moved = took_place.tobytes() != (rig.device if loads else rig.host).tobytes()
        rig.backup([2], [5])
        rig.load([2], [6])
        copied, found = rig.finish()
        last = rig.sink.of(Health)[-1]
        assert found == []
        assert last.closing
        assert all(event.tiles == LAYERS * event.pages for event in copied)
        assert len(copied) + sum(last.errors.values()) >= 3 + moved
        if checksum is not Checksum.OFF:
            assert copied[-1].verified == LAYERS
        if not hit:
            break
    assert at > 30
    internal_errors.clear()


@pytest.mark.parametrize(
    "step",
    [
        lambda pages: pages.free(pages.alloc(3)),
        lambda pages: (held := pages.alloc(1), pages.acquire(held), pages.release(held)),
    ],
)
def test_pages_that_an_interrupt_lost_accuse_nobody(
    step: Callable[[PageAllocator], object], internal_errors: list[str]
) -> None:
    """Whether the interrupted call was carried out is unknown, and so nothing is held against it."""
    at = 0
    for at in count(1):
        sink = MemorySink()
        with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.OFF), sinks=[sink]):
            pages = PageAllocator(8, "host")
            kept = pages.alloc(2)
            hit = interrupted(partial(step, pages), at)
            pages.free(pages.alloc(pages.available))
            pages.free(kept)
        assert sink.of(Finding) == []
        if not hit:
            break
    assert at > 30
    internal_errors.clear()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_cache_goes_on_after_an_interrupt(first: int, internal_errors: list[str]) -> None:
    """Later readers get right bytes, and only what the interrupt itself left behind is reported."""
    at = 0
    for at in count(first, 9):
        sink = MemorySink()
        with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.LOADS), sinks=[sink]):
            cache = HiCacheController(group_of())
            one, other, third = sequences([[0, 1], [0, 2, 3], [4, 5]])
            turn(cache, one)
            hit = interrupted(partial(turn, cache, other), at)
            for tokens in (one, third, one):
                turn(cache, tokens)
            cache.close()
        # Pages, or an operation, that the host itself lost on the way.
        left = "pages are in use that nobody has", "still held", "never reported as done or failed"
        found = [each.message for each in sink.of(Finding)]
        assert [said for said in found if not any(words in said for words in left)] == []
        assert sink.of(Health)[-1].mismatched == 0
        if not hit:
            break
    assert at > 200
    internal_errors.clear()


def test_an_interrupt_is_counted_and_goes_on_to_the_host(internal_errors: list[str]) -> None:
    """It is the host's to handle; what it cut short is shown in the health events."""
    rig = Rig(Checksum.LOADS)
    with pytest.raises(KeyboardInterrupt), rig.session.errors.at("somewhere"):
        raise KeyboardInterrupt
    rig.finish()
    assert rig.sink.of(Health)[-1].errors == {"somewhere": 1}
    internal_errors.clear()
