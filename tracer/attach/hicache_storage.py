"""Attach to the storage tier of ``hicache_dbg.pools``: trace what is stored and what is fetched."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.fetches import Fetches, FetchRequest
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.tracer.attach.hicache_storage_judge import StorageJudge
from hicache_dbg.tracer.attach.hicache_storage_late import UnreadPages
from hicache_dbg.tracer.attach.hicache_storage_record import StorageRecord, sample_of
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import MirrorViews, SpanIds
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.words import failure

__all__ = ["INTERRUPTED", "StorageAttachment"]

#: Larger operations (bytes) are digested on the bus's thread, so that nobody waits for them.
AT_ONCE_BYTES = 1 << 20
#: The status of an operation that the host stopped (``KeyboardInterrupt`` and its like): no failure.
INTERRUPTED = "interrupted"

Views = Callable[[Mirror], MirrorViews]
Filled = Callable[[CacheState, Pages, Pages], None]
Asking = Callable[[], Sequence[SpanIds]]
"""Returns the requests that the calling thread works for."""


class StorageAttachment:
    """Wraps the methods of the storage engine that move or look up pages.

    A fetched page is compared with what this process stored under its key, or else with the digest
    in its record's header. For that the host memory is read again: by the fetching thread for small
    operations, by the bus's thread for large ones. After a store that could not be recorded, what
    was stored is forgotten.
    """

    def __init__(self, session: Session, views: Views, filled: Filled, asking: Asking) -> None:
        self._session = session
        self._asking = asking
        self._filled = filled
        self._views = views
        self._patches = Patches()
        self._judge = StorageJudge(session)
        self._asked = threading.local()
        self._unread = UnreadPages(self._read)
        self._gap = False  # whether a store was not recorded
        self._unlock()
        after_fork(self._unlock)  # a lock may be held by a thread that the child lacks

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may store, too

    def attach(self) -> None:
        """Wrap the engine's functions that are not wrapped yet."""
        for name, around in (
            ("store", self._around_store),
            ("fetch", self._around_fetch),
            ("present", self._around_present),
            ("gave_up", self._around_gave_up),
        ):
            self._patches.replace(StorageEngine, name, around)
        self._patches.replace(Fetches, "enter", self._around_enter)
        self._patches.replace(PageAllocator, "free", self._around_free)

    def detach(self) -> None:
        """Restore the engine's own functions."""
        self._patches.undo()

    # -- what is wrapped ----------------------------------------------------------------------

    def _around_store(self, original: Callable[..., None]) -> Callable[..., None]:
        def store(engine: StorageEngine, op: StorageOp) -> None:
            self._observe(engine, op, lambda: original(engine, op))

        return store

    def _around_fetch(self, original: Callable[..., None]) -> Callable[..., None]:
        def fetch(engine: StorageEngine, op: StorageOp) -> None:
            self._observe(engine, op, lambda: original(engine, op))

        return fetch

    def _around_present(self, original: Callable[..., int]) -> Callable[..., int]:
        def present(engine: StorageEngine, keys: Sequence[PageKey]) -> int:
            self._asked.evicted = engine.backend.evicted
            found = original(engine, keys)
            if self._session.probe.enabled:
                with self._session.errors.at("storage/present"):
                    names = [key.name for key in keys]
                    pool, evicted = _pools(engine), engine.backend.evicted
                    store = _store_of(engine)
                    self._session.check(
                        lambda: self._judge.looked_up(store, names, found, evicted, pool=pool)
                    )
            return found

        return present

    def _around_gave_up(self, original: Callable[..., None]) -> Callable[..., None]:
        def gave_up(engine: StorageEngine, kind: str, pages: int, why: str) -> None:
            original(engine, kind, pages, why)
            if self._session.probe.enabled:
                with self._session.errors.at("storage/gave_up"):
                    pool, now = _pools(engine), time.time_ns()
                    self._session.check(
                        lambda: self._judge.gave_up(kind, why, pool=pool, time_ns=now)
                    )

        return gave_up

    def _around_enter(self, original: Callable[..., int]) -> Callable[..., int]:
        def enter(fetches: Fetches, request: FetchRequest, op: StorageOp) -> int:
            with self._session.errors.at("storage/enter"):
                good = np.array([result.good for result in op.results], np.bool_)
                pages = op.host[: good.size][good]
                generations = op.generations[: good.size][good].astype(np.int64)
                self._filled(fetches.state, pages, generations)
                record = getattr(self._asked, "record", None)
                if record is not None and record.op_id == op.op_id and not record.judged:
                    self._unread.add(fetches.state.host, record)
                self._asked.record = None
            return original(fetches, request, op)

        return enter

    def _around_free(self, original: Callable[..., None]) -> Callable[..., None]:
        def free(allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
            with self._session.errors.at("storage/free"):
                self._unread.freed(allocator, page_ids)
            original(allocator, page_ids)

        return free

    # -- one operation ------------------------------------------------------------------------

    def _observe(self, engine: StorageEngine, op: StorageOp, call: Callable[[], None]) -> None:
        session = self._session
        if not session.probe.enabled or not session.settings.traces_op(op.kind):
            call()
            return
        begun = time.perf_counter()
        record: StorageRecord | None = None
        noted = False
        try:
            with session.errors.at("storage/before"):
                record = self._open(engine, op)
            started, status = time.perf_counter(), INTERRUPTED
            try:
                call()
                status = "ok"
            except Exception as error:
                status = failure(error)
                raise
            finally:
                # Not a context of ours: an interrupt on its way into one would lose the record.
                try:
                    ended = time.perf_counter()
                    if record is not None:
                        noted = self._close(engine, op, record, status, (ended - started) * 1e6)
                    spent = time.perf_counter() - ended + started - begun
                    session.probe.overhead_s += spent
                except BaseException as error:
                    if not session.errors.swallows("storage/after", error):
                        raise
        finally:  # wherever an interrupt came
            if not noted:
                self._lose(op, record)

    def _open(self, engine: StorageEngine, op: StorageOp) -> StorageRecord:
        settings = self._session.settings
        chosen = np.full(len(op.keys), settings.checksum is not Checksum.OFF)
        if settings.checksum is Checksum.SAMPLE:
            chosen = np.array([int(key.name[:8], 16) / 2**32 < settings.sample for key in op.keys])
        mirrors = [self._views(mirror) for mirror in engine.group.mirrors]
        if op.kind == "fetch":
            for mirror in mirrors:
                mirror.writes[op.host] += 1
        mirrors = [mirror for mirror in mirrors if settings.traces(mirror.pool)]
        record = StorageRecord(
            op=Op(op.kind),
            op_id=op.op_id,
            keys=op.keys,
            host=op.host.copy(),
            generations=op.generations.astype(np.int64),
            mirrors=mirrors,
            writes=[mirror.writes[op.host] for mirror in mirrors],
            image=engine.image,
            chosen=chosen,
            off=settings.checksum is Checksum.OFF,
            store=_store_of(engine),
            backend=engine.backend.name,
            fallback=engine.backend.fallback,
            judge=self._judge,
            requests=self._asking(),
        )
        if record.op is Op.FETCH and not record.off:
            record.before = self._samples(record)
        return record

    def _close(
        self,
        engine: StorageEngine,
        op: StorageOp,
        record: StorageRecord,
        status: str,
        duration_us: float,
    ) -> bool:
        """Hand in the record of an operation that is over; return False if there was no room."""
        none = PageResult(PageState.FAILED, status)
        record.results = list(op.results) if status == "ok" else [none] * len(op.keys)
        record.status, record.duration_us, record.time_ns = status, duration_us, time.time_ns()
        record.let_go = self._let_go(engine, record, status)
        if not record.off:
            self._take(record)
        with self._lock:  # nobody's record overtakes the one that tells of the gap
            record.after_gap, self._gap = self._gap, False
            return self._session.bus.push(record)

    def _lose(self, op: StorageOp, record: StorageRecord | None = None) -> None:
        """Note that ``op`` was not recorded: after a store, its keys may hold other contents."""
        if record is not None:
            record.drop()
        with self._lock:
            self._gap = self._gap or op.kind == "store" or (record is not None and record.after_gap)

    def _let_go(self, engine: StorageEngine, record: StorageRecord, status: str) -> frozenset[int]:
        """Return the missing pages to excuse: the index forgot them too, or the store evicted meanwhile.

        All pages, if the host stopped the operation: that is not the store's fault.
        """
        if status == INTERRUPTED:
            return frozenset(range(len(record.keys)))
        missing = [at for at, end in enumerate(record.results) if end.state is PageState.MISSING]
        if not missing:
            return frozenset()
        evicted = engine.backend.evicted
        if evicted != getattr(self._asked, "evicted", evicted):
            return frozenset(missing)
        try:
            there = engine.backend.exists([record.keys[at].name for at in missing])
        except OSError:  # it claimed to have them, and does not take that back
            return frozenset()
        return frozenset(at for at, here in zip(missing, there, strict=True) if not here)

    def _take(self, record: StorageRecord) -> None:
        """Digest on this thread what cannot wait, or is too small to be worth deferring."""
        pages = [at for at, end in enumerate(record.results) if end.good and record.chosen[at]]
        small = record.image.page_bytes * len(pages) <= AT_ONCE_BYTES
        at_once = small or self._session.settings.checksum is Checksum.THREE
        record.after = self._samples(record)
        if record.op is Op.STORE:  # the engine computed the digest, unless digests are off
            vouched = [at for at in pages if not record.results[at].digest]
            record.payloads = {at: record.payload_now(at) for at in vouched}
            return
        if at_once:
            for at in pages:
                self._read(record, at)
        self._asked.record = record if pages and not at_once else None

    def _read(self, record: StorageRecord, at: int) -> None:
        """Digest a fetched page, and its tiles unless the page is known to be what was stored."""
        record.payloads[at] = record.payload_now(at)
        if not self._judge.knows(record, at):
            record.tiles[at] = self._judge.tiles_now(record, at)

    @staticmethod
    def _samples(record: StorageRecord) -> dict[int, int]:
        return {at: sample_of(record.image, page) for at, page in enumerate(record.host.tolist())}


def _store_of(engine: StorageEngine) -> object:
    """Return a hashable reference to an engine's store that does not keep it alive."""
    store = weakref.ref(engine.backend)
    hash(store)  # cached, so that it works after the store is gone
    return store


def _pools(engine: StorageEngine) -> str:
    return "+".join(engine.group.device)
