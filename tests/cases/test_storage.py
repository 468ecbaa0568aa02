"""Published fault reports about keys, stale indexes and damaged stores, with their diagnosis."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from tests.pools.caching import P, group_of, sequences, turn
from tests.tracer.checks.statements import named

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.header import HEADER_BYTES, MAGIC, PRELUDE, Header, check
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.pools.storage.tier import StorageTier
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.checks.storage import of_failure
from hicache_dbg.tracer.collapse import FindingCollapser
from hicache_dbg.tracer.events import FaultClass, Finding


class Bench:
    """A file store behind a group of pools, accessed page by page."""

    def __init__(self, folder: Path, *, group: PoolGroup | None = None, **engine: bool) -> None:
        self.store = FileStore(folder)
        self.group = group if group is not None else group_of(8, 160)
        self.engine = StorageEngine(self.group, self.store, Identity("model"), **engine)
        generator = torch.Generator().manual_seed(3)
        for pool in self.group.host.values():
            for buffer in pool.buffers.values():
                for tensor in buffer.tensors:
                    flat = tensor.view(torch.uint8)
                    flat.random_(0, 256, generator=generator)

    def keys(self, tokens: Sequence[int]) -> list:  # type: ignore[type-arg]  # of page keys
        """Return the keys of whole pages."""
        return self.engine.keys(np.array(tokens, "<i4").tobytes())

    def run(self, kind: str, keys: Sequence[object], first: int = 0) -> StorageOp:
        """Store or fetch host pages, starting at ``first``."""
        host = np.arange(first, first + len(keys), dtype=np.int64)
        op = self.engine.op(kind, keys, host, np.ones(len(keys), np.uint32))  # type: ignore[arg-type]
        getattr(self.engine, kind)(op)
        return op

    def page(self, number: int) -> bytes:
        """Return all bytes of a host page."""
        return b"".join(bytes(piece) for piece in self.engine.image.pieces(number))


def failure(result: PageResult) -> FaultClass:
    """Return the tracer's name for the failure of a page."""
    return of_failure(result.state, result.reason, result.errno, result.expected, result.got).cls


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A store and pools; the host is full of random bytes."""
    return Bench(tmp_path)


class Full(FileStore):
    """A store whose writes fail from the fifth page of each batch on."""

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Store four pages, then fail."""
        for number, record in enumerate(records):
            if number < 4:
                yield from super().put([record])
            else:
                yield PageResult(PageState.FAILED, "no space left on device", errno=28)


class Deaf(FileStore):
    """A store whose every get fails with -1."""

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read nothing."""
        for _ in records:
            yield PageResult(PageState.FAILED, "get returned -1", errno=1)


def test_a_get_that_failed_is_computed_again(tmp_path: Path) -> None:
    """Entry 62: return code -1 for 1 key of 1.

    Nothing counts as found, and the page is recomputed.
    """
    (tokens,) = sequences([[3]])
    for store, gained in ((FileStore(tmp_path), 0), (Deaf(tmp_path), 0), (FileStore(tmp_path), 1)):
        with HiCacheController(
            group_of(8, 32), storage=StorageTier(store, Identity("model"))
        ) as controller:
            assert controller.prefetch(tokens) == gained
            match = controller.match(tokens)
            recompute = len(tokens) // P - match.pages
            controller.unlock(match)
            assert recompute == 1 - gained
            turn(controller, tokens)
            controller.flush()
            assert controller.storage is not None
            misses = controller.storage.stats.misses
            assert misses.get("failed", 0) == isinstance(store, Deaf)


def test_the_same_tokens_in_another_dtype(tmp_path: Path) -> None:
    """Entry 65: run 1 stores bf16, run 2 fp8.

    Keys are equal, headers are not, and the page is refused.
    """
    groups = [
        PoolGroup.build(
            [mla(2, P), index_k(2, P, dtype)],
            device_pages=4,
            host_pages=8,
            layout=Layout.PAGE_FIRST,
        )
        for dtype in ("bf16", "fp8")
    ]
    first, second = (Bench(tmp_path, group=group) for group in groups)
    keys = first.keys(range(P))
    assert keys == second.keys(range(P))
    assert first.run("store", keys).results[0].good
    (result,) = second.run("fetch", keys).results
    assert result.state is PageState.MISKEYED
    assert failure(result) is FaultClass.KEY_IDENTITY
    assert "bfloat16" in result.got
    assert first.run("fetch", keys, first=4).results[0].good  # refused, not destroyed


def test_a_seed_that_each_process_draws() -> None:
    """Entry 70: two processes with random hash seeds, tokens [1, 2, 3].

    The finding says "same content, keys k1 and k2".
    """
    (found,) = join([[named("123", "k1")], [named("123", "k2", 1)]])
    assert found.cls is FaultClass.KEY_IDENTITY
    assert "same content, keys k1 and k2" in found.message
    assert join([[named("123", "k1")], [named("123", "k1", 1), named("124", "k2", 1)]]) == []


def test_pairs_here_and_single_tokens_there() -> None:
    """Entry 71: the writer hashes pairs (6634, 30181), the reader single tokens.

    Keys differ, tokens do not.
    """
    tokens = np.array([6634, 30181, 15], "<i4")
    pairs = np.stack([tokens[:-1], tokens[1:]], axis=1)
    assert pairs.tolist() == [[6634, 30181], [30181, 15]]
    content = xxhash.xxh3_64_hexdigest(tokens.tobytes())
    keys = [xxhash.xxh3_64_hexdigest(items.tobytes()) for items in (pairs, tokens)]
    (found,) = join([[named(content, key, rank)] for rank, key in enumerate(keys)])
    assert (found.expected, found.got) == tuple(keys)


def test_a_batch_that_failed_midway(tmp_path: Path) -> None:
    """Entry 75: 8 pages in batches of 4, the second fails: 4 are believed stored."""
    bench = Bench(tmp_path)
    bench.engine.backend = Full(tmp_path)
    keys = bench.keys(range(8 * P))
    op = bench.run("store", keys)
    assert [result.good for result in op.results] == [True] * 4 + [False] * 4
    assert bench.engine.present(keys) == 4
    assert failure(op.results[4]) is FaultClass.DEAD_TIER


def test_a_positive_answer_does_not_outlive_a_failed_get(bench: Bench) -> None:
    """Entry 76: exists says yes and the get fails.

    The answer is withdrawn and not asked for again.
    """
    keys = bench.keys(range(P))
    bench.run("store", keys)
    assert bench.engine.present(keys) == 1
    bench.store.path(keys[0].name).unlink()
    (result,) = bench.run("fetch", keys).results
    assert (result.state, failure(result)) == (PageState.MISSING, FaultClass.STALE_INDEX)
    assert [bench.engine.present(keys) for _ in range(2)] == [0, 0]


def test_a_value_that_is_empty(bench: Bench) -> None:
    """Entry 77: as many bytes were put as a page has, and 0 are read: truncated, not a hit."""
    keys = bench.keys(range(P))
    bench.run("store", keys)
    bench.store.path(keys[0].name).write_bytes(b"")
    (result,) = bench.run("fetch", keys).results
    assert (result.state, result.got) == (PageState.SHORT, "0 B")
    assert failure(result) is FaultClass.STORAGE_DAMAGE


def test_two_writers_of_one_bucket(bench: Bench) -> None:
    """Entry 78: ranks 0 and 1 both write bucket 100: rank 0 reads writer 1, and refuses."""
    (key,) = bench.keys(range(P))
    header = bench.engine.header(key)
    other = msgspec.structs.replace(header, rank=1)
    size = HEADER_BYTES + header.nbytes
    result = check(other.encode(), header, size)
    assert (result.state, result.expected, result.got) == (PageState.FOREIGN, "0", "1")
    assert failure(result) is FaultClass.STORAGE_DAMAGE
    assert check(header.encode(), header, size).good
    seeds = {Identity("model", rank=rank).seed() for rank in range(4)}
    assert len(seeds) == 4  # ranks of the whole job: those of a group may all be 0


def test_a_tier_whose_every_write_fails(bench: Bench) -> None:
    """Entry 79: 57 stores fail with errno 22.

    The tier is dead, reported in one line with a count.
    """
    fault = of_failure("failed", "write: invalid argument", 22, "", "")
    assert fault.cls is FaultClass.DEAD_TIER
    assert "errno 22" in fault.cause
    collapser = FindingCollapser()
    found = Finding(time_ns=1, cls=fault.cls, pool="kv", message=fault.cause, check="storage")
    passed = list(collapser.pass_on([replace_time(found, at) for at in range(57)]))
    (rest,) = collapser.drain()
    assert isinstance(rest, Finding)
    assert len(passed) + rest.count == 57


def replace_time(finding: Finding, at: int) -> Finding:
    """Return the same finding with another time."""
    return msgspec.structs.replace(finding, time_ns=at)


@pytest.mark.parametrize("digests", [True, False])
def test_one_bit_of_a_stored_block(tmp_path: Path, *, digests: bool) -> None:
    """Entry 81: bit 0 of byte 100 flips: the load fails.

    A block without a digest loads, unverified.
    """
    bench = Bench(tmp_path, digests=digests)
    keys = bench.keys(range(P))
    bench.run("store", keys)
    path = bench.store.path(keys[0].name)
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 100] ^= 1
    path.write_bytes(raw)
    (result,) = bench.run("fetch", keys).results
    assert result.good is not digests
    if digests:
        assert failure(result) is FaultClass.STORAGE_DAMAGE
    else:
        assert result.digest == 0  # nothing to verify with: it is counted as such


def test_a_record_whose_dtype_nobody_knows_any_more(bench: Bench) -> None:
    """Entry 82: after a restart the size is known and the dtype is not.

    This is a miss, not an assertion.
    """
    (key,) = bench.keys(range(P))
    wanted = bench.engine.header(key)
    fields = msgspec.to_builtins(wanted)
    for part in fields["components"]:
        del part["dtype"]
    body = msgspec.json.encode(fields)
    raw = PRELUDE.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body)) + body
    result = check(raw.ljust(HEADER_BYTES, b"\0"), wanted, HEADER_BYTES + wanted.nbytes)
    assert result.state is PageState.DAMAGED
    assert "dtype" in result.reason
    assert Header.decode(wanted.encode()) == wanted  # what is on disk says everything by itself


def test_a_prefix_whose_first_pages_are_missing(bench: Bench) -> None:
    """Entry 83: pages 2..127 of 128 are there: 0 hits, the first missing is 0, 126 are present."""
    keys = bench.keys(range(128 * P))
    bench.run("store", keys)
    for key in keys[:2]:
        bench.store.discard(key.name)
    there = bench.store.exists([key.name for key in keys])
    assert (bench.engine.present(keys), there.index(False), sum(there)) == (0, 0, 126)


def test_the_span_that_two_requests_share(bench: Bench) -> None:
    """Entry 84: A stores tokens 0..1151, B shares 0..63.

    B reads the bytes of the span that ends at 64.
    """
    ours = bench.keys(range(64))
    theirs = bench.keys([*range(64), *range(5000, 5064)])
    longer = bench.engine.keys(np.arange(1152, dtype="<i4").tobytes())
    shared = 64 // P
    assert longer[:shared] == theirs[:shared] == ours
    assert theirs[shared] != longer[shared]
    stored = bench.run("store", ours)
    fetched = bench.run("fetch", theirs[:shared], first=shared)
    assert [result.digest for result in fetched.results] == [r.digest for r in stored.results]
    assert [bench.page(shared + at) for at in range(shared)] == [
        bench.page(at) for at in range(shared)
    ]


def test_pages_that_a_failed_batch_skips(tmp_path: Path) -> None:
    """Entry 102: a batch of 10 pages fails after 4: 4 written, 6 skipped with the reason."""
    group = group_of(12, 32)
    tier = StorageTier(Full(tmp_path), Identity("model"), queue_pages=32)
    with HiCacheController(group, storage=tier) as controller:
        turn(controller, sequences([list(range(10))])[0])
        controller.flush()
        assert controller.storage is not None
        stats = controller.storage.stats
        assert (stats.stored_pages, stats.unstored) == (4, {"failed": 6})
