"""An interrupt anywhere in a traced storage operation accuses neither the store nor its contents."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.pools.stored import Bench
from tests.storage.test_tracing import watching
from tests.tracer.interrupting import interrupted

from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.tracer.attach.hicache_storage import INTERRUPTED
from hicache_dbg.tracer.events import Health, Op

FEW = 2


class _Breaking(FileStore):
    """A store that an exception ends behind the first page."""

    ends_with: BaseException | None = None

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Put the records; if it is to break, only the first."""
        for result in super().put(records):
            yield result
            if self.ends_with is not None:
                raise self.ends_with


def _stored_again(bench: Bench) -> None:
    """Make room under the keys, and other bytes to store there."""
    for key in bench.keys[:FEW]:
        bench.engine.backend.discard(key.name)
    bench.fill(seed=1)


def test_a_store_is_recorded_or_what_was_stored_is_forgotten(
    tmp_path: Path, internal_errors: list[str]
) -> None:
    """Without digests in the headers, only what is known here could accuse the new contents."""
    at = 0
    for at in count(1):
        with watching() as watched:
            store = FileStore(tmp_path / str(at))
            bench = Bench(store, digests=False)
            pools = len(bench.group.mirrors)
            bench.store(FEW)
            _stored_again(bench)
            hit = interrupted(partial(bench.store, FEW), at)
            moved = all(store.exists([key.name for key in bench.keys[:FEW]]))
            bench.fetch(FEW)
            assert watched.findings == []
            recorded = len(watched.copies(Op.STORE)) // pools
        last = watched.sink.of(Health)[-1]
        assert recorded + sum(last.errors.values()) >= 1 + moved
        if not hit:
            break
    assert at > 100
    internal_errors.clear()


def test_a_fetch_is_recorded_or_counted(tmp_path: Path, internal_errors: list[str]) -> None:
    """What is fetched afterwards is compared as ever."""
    at = 0
    for at in count(1):
        with watching() as watched:
            bench = Bench(FileStore(tmp_path), digests=False)
            bench.store(FEW)
            hit = interrupted(partial(bench.fetch, FEW), at)
            bench.fetch(FEW)
            assert watched.findings == []
            last = watched.copies(Op.FETCH)[-1]
            assert last.verified == last.tiles > 0
        if not hit:
            break
    assert at > 100
    internal_errors.clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "gone")])
def test_a_store_that_did_not_end_leaves_either_contents(
    tmp_path: Path, error: BaseException
) -> None:
    """Its pages may have been put or not; only an error is held against the store."""
    store = _Breaking(tmp_path)
    with watching() as watched:
        bench = Bench(store, digests=False)
        bench.store(FEW)
        _stored_again(bench)
        store.ends_with = error
        with pytest.raises(type(error)):
            bench.store(FEW)
        store.ends_with = None
        bench.fetch(FEW - 1)
        stopped = isinstance(error, KeyboardInterrupt)
        assert [found.cls for found in watched.findings] == ([] if stopped else ["dead_tier"])
        ended = watched.copies(Op.STORE)[-1]
        assert ended.skipped == {"failed": ended.tiles}
        assert (ended.status == INTERRUPTED) is stopped
        witnessed = watched.copies(Op.FETCH)[-1]
        assert witnessed.witnessed == witnessed.tiles > 0
