"""Statements of a rank of our own engine for a join; a single rank states nothing."""

from collections.abc import Callable, Sequence
from itertools import count

import msgspec
import numpy as np
import pytest
import torch
from tests.pools.caching import P, group_of, sequences, turn

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import mla
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import FaultClass, Finding, Stated, Topic
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

CHOICES = [[0, 1], [2, 3], [0, 1], [2]]


def rank_of(
    rank: int, ranks: int = 2, choices: list[list[int]] | None = None, lost: int = -1
) -> MemorySink:
    """Return the events of a rank after these turns; the ring had no room for one of its insertions."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, rank=rank, ranks=ranks)
    with (
        Runtime.start(settings, sinks=[sink]) as runtime,
        HiCacheController(group_of(4, 32)) as controller,
    ):
        check, insertions = runtime.session.check, count()

        def crowded(detect: Callable[[], Sequence[Finding]]) -> bool:
            """Room for everything but one insertion."""
            of_ranks = "RankStatements" in getattr(detect, "__qualname__", "")
            return not (of_ranks and next(insertions) == lost) and check(detect)

        runtime.session.check = crowded  # type: ignore[method-assign]
        for tokens in sequences(CHOICES if choices is None else choices):
            turn(controller, tokens)
            controller.flush()
        assert runtime.flush()
    return sink


def stated(sink: MemorySink, topic: Topic) -> list[Stated]:
    """Return the statements on a topic."""
    return [said for said in sink.of(Stated) if said.topic is topic]


def test_a_rank_says_what_it_found_and_which_tiles_it_has() -> None:
    """Hits in pages for each lookup; each backed-up page of each pool, a digest a layer."""
    sink = rank_of(0)
    assert [said.values for said in stated(sink, Topic.HIT_PAGES)] == [
        ("0",),
        ("0",),
        ("2",),
        ("1",),
    ]
    said = stated(sink, Topic.TILES)
    assert {(one.pool, one.page) for one in said} == {
        (pool, page) for pool in ("mla", "dsa_index_k") for page in range(2)
    }
    assert all(len(one.values) == len(one.layers) == 3 for one in said)


def test_one_rank_alone_says_nothing() -> None:
    """There is no other rank to disagree with."""
    assert rank_of(0, ranks=1).of(Stated) == []


def test_ranks_that_do_the_same_agree() -> None:
    """The same turns on two ranks give no finding, in either or between them."""
    sinks = [rank_of(rank) for rank in range(2)]
    assert join([sink.events for sink in sinks]) == []
    assert [sink.of(Finding) for sink in sinks] == [[], []]


@pytest.mark.parametrize("lost", range(6))
def test_a_rank_that_lost_some_of_it_is_not_accused(lost: int) -> None:
    """Pages whose insertion was lost are not taken for those of the previous tokens."""
    choices = [[0, 1], [2, 3], [4, 5], [0, 1], [6, 7], [2, 3]]
    sinks = [rank_of(0, choices=choices), rank_of(1, choices=choices, lost=lost)]
    assert join([sink.events for sink in sinks]) == []


def test_a_rank_that_computes_otherwise_is_found() -> None:
    """One page filled from other tokens is found in its tiles."""
    ours, theirs = rank_of(0), rank_of(1, choices=[[0, 1], [2, 4], [0, 1], [2]])
    assert join([ours.events, theirs.events]) == []  # other requests are no disagreement
    changed = [
        said if not isinstance(said, Stated) or said.topic is not Topic.TILES else _other(said)
        for said in theirs.events
    ]
    found = join([ours.events, changed])
    assert {finding.cls for finding in found} == {FaultClass.RANK_DIVERGENCE}
    assert {finding.pool for finding in found} == {"mla", "dsa_index_k"}


def _other(said: Stated) -> Stated:
    """Return the same tiles with other digests."""
    return msgspec.structs.replace(said, values=tuple(np.roll(said.values, 1).tolist()))


@pytest.mark.parametrize("ranks", [1, 2])
def test_detaching_restores_the_very_same_methods(ranks: int) -> None:
    """This holds even if statements wrap the other wrappers."""
    before = {name: vars(HiCacheController)[name] for name in ("match", "insert", "close")}
    runtime = Runtime.start(Settings(gate=Gate.ON, ranks=ranks), sinks=[])
    runtime.stop()
    assert {name: vars(HiCacheController)[name] for name in before} == before


def two_caches(rank: int, order: tuple[int, int]) -> MemorySink:
    """Return a rank with two caches whose pools share names but not sizes, served in this order."""
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON, rank=rank, ranks=2), sinks=[sink]) as runtime,
        HiCacheController(group_of(4, 32)) as first,
        HiCacheController(other_group()) as second,
    ):
        (tokens,) = sequences([[0, 1]])
        for cache in (first, second):  # both look up before either computes
            cache.unlock(cache.match(tokens))
        for at in order:
            cache = (first, second)[at]
            cache.insert(tokens, cache.alloc_device(2))
            cache.flush()
        assert runtime.flush()
    return sink


def other_group() -> PoolGroup:
    """Return a cache with one pool that shares a name with the first cache and has fewer layers."""
    return PoolGroup.build(
        [mla(2, P, torch.uint8, kv_lora_rank=256, rope_dim=2)],
        device_pages=6,
        host_pages=8,
        layout=Layout.PAGE_FIRST,
    )


def test_two_caches_with_pools_of_one_name_speak_for_themselves() -> None:
    """Served in another order on the other rank, they are not mixed up: no finding."""
    sinks = [two_caches(0, (0, 1)), two_caches(1, (1, 0))]
    assert join([sink.events for sink in sinks]) == []
    for sink in sinks:
        said = [one for one in stated(sink, Topic.TILES) if one.pool == "mla"]
        assert {(one.shard, len(one.layers)) for one in said} == {("", 3), ("cache 2", 2)}
        assert len(said) == 2 * 2
