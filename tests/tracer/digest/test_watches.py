"""Watched operations on a GPU: exact, bounded, non-blocking, and complete before the operation is."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from tests.tracer.digest.waiting import no_waiting

from hicache_dbg.tracer.digest import lane, watches
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.digest.tiles import DigestRefusedError, TileDigester
from hicache_dbg.tracer.digest.watch import Wanted, Watch
from hicache_dbg.tracer.view import Run, View

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LAYERS, PAGES, HOST, PAGE = 7, 24, 40, 8448


class Mirror:
    """The owner of the books."""


class Bench:
    """A device pool of random bytes, the same in host memory, and watches of it."""

    def __init__(self) -> None:
        self.host = torch.randint(0, 256, (LAYERS, PAGES * PAGE), dtype=torch.uint8)
        self.device = self.host.cuda()
        self.on_device = self._view(self.device)
        self.on_host = self._view(self.host)
        self.mirror: object = Mirror()
        self.digester = TileDigester()
        self.stream = torch.cuda.Stream()

    def _view(self, memory: torch.Tensor) -> View:
        return View(
            pool="pool",
            component="kv",
            tier="device",
            layout="layer_first",
            dtype="uint8",
            itemsize=1,
            bases=tuple(layer.data_ptr() for layer in memory),
            page_stride=PAGE,
            page_span=PAGE,
            pages=PAGES,
            slots_per_page=64,
            runs=(Run(0, 132, 132),),
            device=str(memory.device),
            owner=memory,
        )

    def wanted(self, pages: list[int], entries: list[int], *, loads: bool, life: int = 1) -> Wanted:
        """Describe all layers of these device pages, with these host pages' entries."""
        lives = np.full(len(pages), life, np.int64)
        return Wanted(
            mirror=self.mirror,
            component="kv",
            view=self.on_device,
            loads=loads,
            layers=tuple(range(LAYERS)),
            pages=np.array(pages, np.int64),
            entries=np.array(entries, np.int64),
            generations=lives,
            writes=lives,
            size=HOST,
        )

    def watch(self, *args: object, **kwargs: object) -> Watch:
        """Return a watch, which must be available."""
        watch = self.digester.watch(self.wanted(*args, **kwargs))  # type: ignore[arg-type]
        assert watch is not None
        return watch

    def run(self, pages: list[int], entries: list[int], *, loads: bool, life: int = 1) -> Watch:
        """Run an operation that moves nothing."""
        watch = self.watch(pages, entries, loads=loads, life=life)
        watch.queued(self.stream.cuda_stream, 3)
        self.stream.synchronize()
        assert watch.ready()
        return watch

    def expected(self, pages: list[int]) -> np.ndarray:
        """Return the CPU's digests of the host copy."""
        return CpuDigester().digest(self.on_host, range(LAYERS), np.array(pages))


@pytest.fixture(params=["small", "large"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose operations count as small or as large ones."""
    if request.param == "large":
        monkeypatch.setattr(watches, "IN_LINE_BYTES", 0)
        monkeypatch.setattr(lane, "NEAR_PAGES", 0)
    return Bench()


def test_a_backup_is_digested_and_its_load_confirmed(bench: Bench) -> None:
    """The digests are the CPU's; the load of the same bytes sends none home, and finds them equal."""
    pages, entries = [3, 0, 11, 5], [30, 7, 9, 2]
    backup = bench.run(pages, entries, loads=False).seen()
    assert (backup.digests == bench.expected(pages)).all()
    assert not backup.confirmed.any()
    load = bench.run(pages[::-1], entries[::-1], loads=True).seen()
    assert load.confirmed.all()
    assert not load.digests.any()


def test_room_is_used_again_by_fewer_and_more_pages(bench: Bench) -> None:
    """Whatever an earlier operation left in its lane, the next one sees only its own pages."""
    for count in (5, 8, 1, 3, 17, 9, 24, 2):
        pages = np.random.default_rng(count).permutation(PAGES)[:count].tolist()
        entries = np.random.default_rng(count + 1).permutation(HOST)[:count].tolist()
        seen = bench.run(pages, entries, loads=False, life=count).seen()
        assert (seen.digests == bench.expected(pages)).all()
        assert bench.run(pages, entries, loads=True, life=count).seen().confirmed.all()


def test_one_flipped_bit_is_one_page(bench: Bench) -> None:
    """Its page is not confirmed, and its digests in every layer are what lies there now."""
    pages, entries = list(range(16)), list(range(16))
    bench.run(pages, entries, loads=False).seen()
    for memory in (bench.device, bench.host):
        memory[4, 6 * PAGE + 99] ^= 2
    torch.cuda.synchronize()
    seen = bench.run(pages, entries, loads=True).seen()
    assert np.flatnonzero(~seen.confirmed).tolist() == [6]
    assert (seen.digests[:, 6] == bench.expected([6])[:, 0]).all()
    assert not np.delete(seen.digests, 6, axis=1).any()


def test_what_the_device_does_not_know_is_read_back(bench: Bench) -> None:
    """With unknown pages, another generation or only some layers, nothing is confirmed and all digests come back."""
    pages, entries = [1, 2, 3], [1, 2, 3]
    bench.run(pages, entries, loads=False).seen()
    for unknown in (
        bench.run(pages, [11, 12, 13], loads=True),
        bench.run(pages, entries, loads=True, life=2),
    ):
        seen = unknown.seen()
        assert not seen.confirmed.any()
        assert (seen.digests == bench.expected(pages)).all()
    some = bench.wanted(pages, entries, loads=True)._replace(layers=(2, 5))
    watch = bench.digester.watch(some)
    assert watch is not None
    watch.finish()
    assert (watch.seen().digests == bench.expected(pages)[[2, 5]]).all()


def test_where_every_page_differs_all_digests_are_there(bench: Bench) -> None:
    """However much is wrong, nothing is lost: it is read back from the operation's own room."""
    pages = list(range(PAGES))
    bench.run(pages, pages, loads=False).seen()
    bench.device += 1
    bench.host += 1
    torch.cuda.synchronize()
    seen = bench.run(pages, pages, loads=True).seen()
    assert not seen.confirmed.any()
    assert (seen.digests == bench.expected(pages)).all()


def test_a_load_is_compared_with_what_its_copies_wrote(bench: Bench) -> None:
    """Late copies of either group are waited for; and the mark behind them waits for the digests."""
    pages = list(range(PAGES))
    good, zeros = bench.device.clone(), torch.zeros_like(bench.device)
    bench.run(pages, pages, loads=False).seen()
    for _ in range(10):
        bench.device.zero_()
        torch.cuda.synchronize()
        watch = bench.watch(pages, pages, loads=True)
        with torch.cuda.stream(bench.stream):
            for rows in (slice(0, LAYERS - 3), slice(LAYERS - 3, LAYERS)):
                torch.cuda._sleep(300_000)
                bench.device[rows].copy_(good[rows])
                if rows.start == 0:
                    watch.arrived(bench.stream.cuda_stream)
            watch.queued(bench.stream.cuda_stream, 3)
            bench.device.copy_(zeros)  # whoever comes after the mark
        bench.stream.synchronize()
        assert watch.ready()
        assert watch.seen().confirmed.all()


def test_an_engine_that_says_nothing_is_waited_for(bench: Bench) -> None:
    """Without a word of what was queued, finish blocks until the digests are taken."""
    pages = [4, 5]
    backup = bench.watch(pages, pages, loads=False)
    backup.finish()
    assert backup.ready()
    assert (backup.seen().digests == bench.expected(pages)).all()
    load = bench.watch(pages, pages, loads=True)
    load.finish()
    assert load.seen().confirmed.all()


def test_a_warm_operation_neither_waits_nor_allocates(bench: Bench) -> None:
    """Between its first byte and its mark no call waits for the device, and no memory is taken."""
    pages = list(range(9))
    for loads in (False, True):
        bench.run(pages, pages, loads=loads).seen()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with no_waiting():
        watches = [bench.watch(pages, pages, loads=loads) for loads in (False, True)]
        for watch in watches:
            watch.queued(bench.stream.cuda_stream, 3)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    torch.cuda.synchronize()
    assert watches[1].seen().confirmed.all()


def test_a_caller_that_captures_is_refused(bench: Bench) -> None:
    """The reason is graph, and its graph is not disturbed."""
    value, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    bench.run([1], [1], loads=False).seen()
    gc.collect()  # graphs of other tests: one that is destroyed during a capture invalidates it
    with torch.cuda.graph(graph):
        value.add_(1)
        with pytest.raises(DigestRefusedError) as refused:
            bench.watch([1], [1], loads=False)
    graph.replay()
    assert refused.value.reason == "graph"
    assert value.item() == 1


def test_a_bus_that_lags_is_not_waited_for(bench: Bench) -> None:
    """With every lane in use there is no watch; reading one makes room for another."""
    watches = list(
        itertools.takewhile(
            lambda watch: watch is not None,
            (bench.digester.watch(bench.wanted([1], [1], loads=False)) for _ in range(100)),
        )
    )
    assert len(watches) == 64
    for watch in watches:
        assert watch is not None
        watch.finish()
        watch.seen()
    assert bench.digester.watch(bench.wanted([1], [1], loads=False)) is not None


def test_eight_bytes_a_page_that_end_with_the_mirror(bench: Bench) -> None:
    """The roll-ups take 8 bytes a host page and component; they and the view go with the mirror."""
    bench.run([1], [1], loads=False).seen()
    device = bench.digester._device(str(bench.device.device))
    assert device.watches is not None
    assert device.watches.device_bytes() == 8 * HOST
    mirror, view = weakref.ref(bench.mirror), weakref.ref(bench.device)
    bench.mirror, bench.on_device, bench.device = Mirror(), bench.on_host, bench.host
    gc.collect()
    assert mirror() is None
    assert view() is None
    assert device.watches.device_bytes() == 0
