"""The scrubber: a bit that flips at rest is found, and nothing else is said."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.pools.caching import group_of, sequences, turn
from tests.pools.forking import FORKS, in_child

from hicache_dbg.exporters.nvml import Gpu
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.transfer import TransferEngine
from hicache_dbg.tracer.checks.resting import Resting
from hicache_dbg.tracer.events import FaultClass, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.scrub import Scrubber
from hicache_dbg.tracer.settings import Gate, Settings


@contextmanager
def scrubbed(**gate: float) -> Iterator[tuple[Runtime, MemorySink, HiCacheController]]:
    """A cache whose pages have come to rest on the host, under a tracer with a scrubber."""
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON, **gate), sinks=[sink]) as runtime,  # type: ignore[arg-type]
        HiCacheController(group_of()) as controller,
    ):
        for tokens in sequences([[0], [1], [2], [0, 1]]):
            turn(controller, tokens)
        controller.flush()
        assert runtime.flush()
        assert controller.stats.backups > 0
        yield runtime, sink, controller


def by_hand(runtime: Runtime) -> Scrubber:
    """The runtime's scrubber, with its thread stopped: turns are taken by the test."""
    scrubber = runtime._scrubber
    assert scrubber is not None
    scrubber.stop()
    return scrubber


def resting_page(controller: HiCacheController) -> int:
    """A host page that the tree has."""
    return next(int(node.host[0]) for node in controller.tree.nodes() if node.host.size)


def flip(controller: HiCacheController, page: int, bits: int = 1) -> str:
    """Change one bit of a resting page of the last pool; the pool's name."""
    mirror = controller.group.mirrors[-1]
    buffer = next(iter(mirror.host.buffers.values()))
    memory = buffer.tensors[0].view(torch.uint8).select(buffer.dims.index("page"), page)
    memory[(0,) * memory.ndim] ^= bits
    return mirror.name


def findings(runtime: Runtime, sink: MemorySink) -> list[Finding]:
    """All findings so far."""
    assert runtime.flush()
    return sink.of(Finding)


def test_a_bit_that_flips_at_rest_is_found_once() -> None:
    """Nobody loads the page: the scrubber reads it, names pool and page, and says it once."""
    with scrubbed(scrub_mb_s=1000.0) as (runtime, sink, controller):
        scrubber = by_hand(runtime)
        page = resting_page(controller)
        pool = flip(controller, page)
        for _ in range(3):
            scrubber.turn()
        (finding,) = findings(runtime, sink)
        assert (finding.cls, finding.check) == (FaultClass.BIT_FLIP, "scrub")
        assert (finding.pool, finding.pages) == (pool, (page,))
        assert scrubber.read_bytes > 0
        flip(controller, page)  # as it was: what follows is about other things


def test_the_gpus_counters_stand_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML counts is in the finding, read when the flip was found."""
    read = []

    class Counting:
        def read(self) -> list[Gpu]:
            read.append(1)
            values = {
                "ecc_errors": {"corrected": 2.0, "uncorrected": 0.0},
                "memory_bytes": {"": 1.0},
            }
            return [Gpu(0, "GPU-1", "H", "00:1", values, {})]

    monkeypatch.setattr("hicache_dbg.exporters.nvml.Nvml", Counting)
    with scrubbed(scrub_mb_s=1000.0) as (runtime, sink, controller):
        scrubber = by_hand(runtime)
        scrubber.turn()
        assert read == []
        flip(controller, resting_page(controller))
        scrubber.turn()
        (finding,) = findings(runtime, sink)
        assert finding.message.endswith(
            "GPU counters: GPU 0: ecc_errors corrected 2, ecc_errors uncorrected 0"
        )


def test_pages_at_rest_are_never_accused() -> None:
    """The clean twin: everything is read several times, and nothing is said."""
    with scrubbed(scrub_mb_s=1000.0) as (runtime, sink, _):
        scrubber = by_hand(runtime)
        for _ in range(3):
            scrubber.turn()
        assert scrubber.read_bytes > 0
        assert findings(runtime, sink) == []
    assert sink.of(Health)[-1].errors == {}


def test_a_page_that_is_written_meanwhile_is_not_judged() -> None:
    """A writer counts itself before its first byte: what was read then proves nothing."""
    with scrubbed(scrub_mb_s=1000.0) as (runtime, sink, controller):
        scrubber = by_hand(runtime)
        page = resting_page(controller)
        flip(controller, page)
        for mirror in scrubber._resting:
            mirror.writes[page] += 1
        scrubber.turn()
        assert findings(runtime, sink) == []
        flip(controller, page)


@pytest.mark.parametrize("again", [False, True])
def test_a_page_that_may_have_been_written_unseen_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Tracing ends while a page is being read: nobody counts its writers from then on."""
    with scrubbed(scrub_mb_s=1000.0) as (runtime, sink, controller):
        scrubber = by_hand(runtime)
        page, digest = resting_page(controller), scrubber._digester.digest

        def write_and_digest(*call: Any) -> Any:
            runtime.switch(on=False)
            flip(controller, page)
            if again:
                runtime.switch(on=True)
            read = digest(*call)
            flip(controller, page)
            return read

        monkeypatch.setattr(scrubber._digester, "digest", write_and_digest)
        scrubber.turn()
        assert findings(runtime, sink) == []


def test_the_thread_finds_it_by_itself() -> None:
    """With the gate set nobody has to call anything; the wait is bounded."""
    with scrubbed(scrub_mb_s=10_000.0) as (runtime, sink, controller):
        flip(controller, resting_page(controller))
        deadline = time.monotonic() + 20
        while not sink.of(Finding) and time.monotonic() < deadline:
            runtime.flush()
        assert sink.of(Finding)[0].cls is FaultClass.BIT_FLIP
    assert "hicache-dbg-scrub" not in {thread.name for thread in threading.enumerate()}


@FORKS
def test_a_forked_child_reads_its_own_pages_again_and_not_its_parents() -> None:
    """Its cache is watched like any other; the pages that it inherited are the parent's to watch."""

    def found(sink: MemorySink, runtime: Runtime) -> list[str]:
        deadline = time.monotonic() + 10
        while not sink.of(Finding) and time.monotonic() < deadline:
            runtime.flush()
        return [each.cls.value for each in sink.of(Finding)]

    with scrubbed(scrub_mb_s=10_000.0) as (runtime, sink, controller):
        scrubber = runtime._scrubber
        assert scrubber is not None

        def inherited() -> int:
            flip(controller, resting_page(controller))
            scrubber.turn()
            return len(scrubber._resting)

        def own() -> list[str]:
            with HiCacheController(group_of()) as cache:
                for tokens in sequences([[0], [1], [2], [0, 1]]):
                    turn(cache, tokens)
                cache.flush()
                runtime.flush()
                flip(cache, resting_page(cache))
                return found(sink, runtime)

        assert in_child(inherited) == ["0"]
        assert in_child(own) == ["['bit_flip']"]
        assert sink.of(Finding) == []


@FORKS
def test_a_scrubber_that_was_stopped_stays_so_in_a_child() -> None:
    """Nobody starts a thread that the parent has ended."""
    with scrubbed(scrub_mb_s=10_000.0) as (runtime, _, _controller):
        scrubber = by_hand(runtime)

        def runs() -> bool:
            return scrubber._thread.is_alive()

        assert in_child(runs) == ["False"]


@pytest.mark.parametrize("rate", [1.0, 250.0])
def test_the_rate_is_bounded(rate: float) -> None:
    """A turn asks for the rest that makes its bytes cost what the rate allows."""
    with scrubbed(scrub_mb_s=rate) as (runtime, _, _controller):
        scrubber = by_hand(runtime)
        before = scrubber.read_bytes
        pause = scrubber.turn()
        assert pause == pytest.approx((scrubber.read_bytes - before) / (rate * 1e6))


def test_without_a_thread_to_start_nothing_stays_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host at its limit of threads keeps its own functions."""
    bare = vars(TransferEngine)["backup"]

    def refused(_: Scrubber) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Scrubber, "start", refused)
    with pytest.raises(RuntimeError):
        Runtime.start(Settings(gate=Gate.ON, scrub_mb_s=1.0), sinks=[])
    assert vars(TransferEngine)["backup"] is bare


def test_without_the_setting_there_is_no_thread() -> None:
    """Off means off."""
    with scrubbed() as (runtime, _, _controller):
        assert runtime._scrubber is None


@given(
    pages=st.sets(st.integers(0, 31), min_size=1),
    most=st.integers(1, 8),
)
def test_every_noted_page_is_visited_in_turn(pages: set[int], most: int) -> None:
    """In as many turns as it takes, none twice before all were seen once."""
    resting, ids = Resting(32), np.array(sorted(pages), np.int64)
    resting.note(ids, ids + 100, ids + 200)
    seen: list[int] = []
    while len(seen) < len(pages):
        visited, generations, writes = resting.turn(most)
        assert (generations == visited + 100).all()
        assert (writes == visited + 200).all()
        seen += visited.tolist()
    assert set(seen[: len(pages)]) == pages
    resting.forget(ids)
    assert resting.turn(most)[0].size == 0
