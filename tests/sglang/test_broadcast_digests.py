"""Broadcast loads as several ranks state them, joined."""

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hicache_dbg.tracer.attach.sglang.broadcast_digests import Arrival, BroadcastDigests
from hicache_dbg.tracer.attach.sglang.broadcast_loads import Load
from hicache_dbg.tracer.attach.sglang.dedup_broadcasts import DedupBroadcasts
from hicache_dbg.tracer.attach.sglang.late_indices import LateIndices
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import (
    OWNER_BROADCAST,
    LayerSplitBroadcasts,
)
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Copied, Event, Stated
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

PAGES, LAYERS = 2, 3


class Broadcaster:
    """Whoever a rank counts loads of."""

    layer_num = LAYERS


class SplitPool:
    """A pool whose layers are divided among ranks."""

    layer_shard_enabled, layer_num, start_layer, page_size = True, LAYERS, 0, 1

    def __init__(self) -> None:
        self.remote_kv_buffer = torch.zeros(PAGES, 16, dtype=torch.uint8)


def recorded(
    rank: int, loads: Sequence[int], *, late: bool = False, checksum: Checksum = Checksum.LOADS
) -> list[Event]:
    """Return what a rank records of these loads, each of which has other bytes."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=checksum, rank=rank, ranks=2)
    session = SglangSession(settings, [sink], TileDigester(), version="0")
    digests = BroadcastDigests(Say(lambda: session, {}), LateIndices())
    digests.numbered = not late
    source, rows = Broadcaster(), torch.arange(PAGES)
    for number in loads:
        load = Load(f"broadcast {digests.count(source)}", LAYERS)
        for layer in range(LAYERS):
            tensor = torch.full((PAGES, 16), 10 * number + layer, dtype=torch.uint8)
            digests.arrived(load, Arrival("latent", layer, tensor, rows))
        digests.finish(load, copied_by="Receiver")
    session.close()
    return sink.events


def test_ranks_that_count_from_the_same_load_agree() -> None:
    """Every load is stated by both, and the tiles are equal."""
    ranks = [recorded(rank, range(4)) for rank in range(2)]
    assert join(ranks) == []
    assert [sum(isinstance(event, Stated) for event in one) for one in ranks] == [4 * PAGES] * 2


def test_a_rank_that_was_switched_on_between_other_loads_accuses_nobody() -> None:
    """It does not know which number the other ranks give to a load, and says that nothing was seen."""
    late = recorded(1, range(1, 4), late=True)
    assert join([recorded(0, range(4)), late]) == []
    copies = [event for event in late if isinstance(event, Copied)]
    assert [copy.skipped for copy in copies] == [{"unwitnessed": PAGES * LAYERS}] * 3


@pytest.mark.parametrize("late", [False, True])
def test_without_digests_the_tiles_say_so(late: bool) -> None:
    """Checksums are off, whoever counts."""
    copies = [
        e for e in recorded(0, [0], late=late, checksum=Checksum.OFF) if isinstance(e, Copied)
    ]
    assert [copy.skipped for copy in copies] == [{"off": PAGES * LAYERS}]


def test_loads_are_counted_while_nobody_traces() -> None:
    """Another rank may be traced meanwhile, and its numbers go on."""
    digests = BroadcastDigests(Say(lambda: None, {}), LateIndices())
    prepare = DedupBroadcasts(digests).preparing(lambda _: "prepared")
    source = Broadcaster()
    assert [prepare(source) for _ in range(2)] == ["prepared"] * 2
    assert digests.count(source) == 3


def test_a_load_of_several_pools_is_counted_once_traced_or_not() -> None:
    """A broadcaster of 0.5.23 prepares each of its pools by the method that it extends."""
    session = SglangSession(Settings(gate=Gate.ON), [MemorySink()], TileDigester(), version="0")
    digests = BroadcastDigests(Say(lambda: session, {}), LateIndices())
    dedup = DedupBroadcasts(digests)
    one = dedup.preparing(lambda _: object())
    several = dedup.preparing(lambda source: [one(source) for _ in range(3)])
    source = Broadcaster()
    for on in (True, False, True):
        session.switch(on=on)
        several(source)
    session.close()
    assert digests.count(source) == 4


def test_what_arrives_of_an_untraced_load_is_not_the_previous_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tracing goes off before a load and on again while its layers arrive."""
    monkeypatch.setitem(sys.modules, OWNER_BROADCAST[0], ModuleType("split"))
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, ranks=2)
    session = SglangSession(settings, [sink], TileDigester(), version="0")
    split = LayerSplitBroadcasts(BroadcastDigests(Say(lambda: session, {}), LateIndices()))
    pool = SplitPool()
    queue = [SimpleNamespace(device_indices=torch.arange(PAGES))]
    controller = SimpleNamespace(mem_pool_device=pool, load_queue=queue)
    load = split.loading(lambda _: None)
    arrive = split.shared(lambda pool, tensor, layer_id: None)  # noqa: ARG005
    load(controller)
    arrive(pool, pool.remote_kv_buffer, 0)
    session.switch(on=False)
    load(controller)
    session.switch(on=True)
    arrive(pool, pool.remote_kv_buffer, 1)
    load(controller)
    session.close()
    stated = [event for event in sink.events if isinstance(event, Stated)]
    assert [(one.request, one.page, one.layers) for one in stated] == [
        ("load 1", page, (0,)) for page in range(PAGES)
    ]
