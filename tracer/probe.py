"""What runs on the host's own threads around a copy: digest, call, digest, append.

Nothing here waits, logs or raises on its own account. The digests are judged on the bus's thread
(:mod:`hicache_dbg.tracer.judge`). Whole pages on a GPU are watched there
(:mod:`hicache_dbg.tracer.digest.watch`); everything else is digested by call.
"""

import threading
import time
from collections.abc import Callable, Sequence

from hicache_dbg.tracer.beside import Beside
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.by_call import digest_tiles
from hicache_dbg.tracer.events import Event, SkipReason
from hicache_dbg.tracer.gates import Gates, LayerDone
from hicache_dbg.tracer.open_records import OpenRecords
from hicache_dbg.tracer.record import (
    DEVICE_END,
    Copies,
    CopyRecord,
    Digester,
    Followed,
    Noted,
    Point,
)
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.words import failure

__all__ = ["CopyRecord", "Digester", "Point", "Probe", "digest_tiles"]


class _Operation:
    """One operation: its undescribed copies, or what a device follows of them, or their records."""

    __slots__ = ("copies", "followed", "records")

    def __init__(self, copies: Copies | None, records: Sequence[CopyRecord] = ()) -> None:
        self.copies = copies
        self.followed: Sequence[Followed] = ()
        self.records = records


class _UnderWay(threading.local):
    """The operation of the current thread."""

    now: _Operation | None = None


class Probe(OpenRecords):
    """Wraps calls that move bytes.

    Args:
        bus: where records go.
        digester: takes the digests.
        settings: what is traced, and how closely.
        errors: counts failures of the probe itself.
        judge: turns a record into events; called on the bus's thread.
        enforce: raises if the host asked to be stopped by an earlier finding.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        digester: Digester,
        settings: Settings,
        errors: InternalErrors,
        judge: Callable[[CopyRecord], list[Event]],
        enforce: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(bus=bus, digester=digester, settings=settings, errors=errors, judge=judge)
        self.enabled = True
        self.overhead_s = 0.0
        self._enforce = enforce
        self._beside: Beside | None = None
        if self._watcher is not None and self._points and not self._samples:
            self._beside = Beside(self._watcher, bus, errors, self._by_call, self._judged)
        #: Whether copies may be described later, on the bus's thread, because their arguments are
        #: immutable.
        self.describes_later = False
        self._under_way = _UnderWay()

    def ahead(self) -> None:
        """Describe this thread's operation now, while the engine is about to wait for it anyway."""
        if self._under_way.now is not None:
            self._describe(self._under_way.now)

    def queued(self, stream: int, under_way: int) -> None:
        """Enqueue the digests: ``stream`` has all copies of this thread's operation.

        Call it before the engine records its final event on the stream, because the digests are
        joined there. During a load, at most the last ``under_way`` layers have not arrived yet.
        """
        now = self._under_way.now
        if now is None:
            return
        self._describe(now)
        if self._beside is not None and now.followed:
            began = time.perf_counter()
            self._beside.queued(now.followed, stream, under_way)
            self.overhead_s += time.perf_counter() - began
        for record in now.records:
            for part in record.watched:
                try:
                    part.watch.queued(stream, under_way)
                except Exception as error:  # noqa: BLE001 - our failure must not stop the copy
                    record.skip = SkipReason.INTERNAL_ERROR
                    self._errors.record("digest/queued", error)

    def observe(self, copies: Copies, call: Callable[[], None], *, on_device: bool = False) -> None:
        """Run ``call``, which performs what ``copies()`` describes, with digests around it.

        An exception of ``call`` is recorded as the operation's status and propagates to the host;
        one of our own is counted and swallowed.

        Args:
            copies: describes the copies; called before ``call`` or while it runs.
            call: performs them.
            on_device: the engine reports what it has queued, so a device may follow the copies;
                they are then described while in flight.
        """
        if not self.enabled:
            call()
            return
        if self.describes_later and not self._points:
            self._note(copies, call)
            return
        self._enforce()
        if on_device and self._beside is not None and self.watching:
            self._run_ahead(copies, call, self._take_device_ends)
            return

        def plain(_: Sequence[CopyRecord]) -> float:
            call()
            return 0.0

        self._run(copies, plain, lambda records: self._take(records, Point.DESTINATION))

    def observe_layers(
        self,
        copies: Copies,
        call: Callable[[LayerDone], None],
        on_layer_done: LayerDone,
        *,
        on_device: bool = False,
    ) -> None:
        """Run ``call`` as :meth:`observe` does, for a load that reports each layer's arrival."""
        if not self.enabled:
            call(on_layer_done)
            return
        if self.describes_later and not self._points:
            self._note(copies, lambda: call(on_layer_done))
            return
        self._enforce()
        gates = Gates(
            on_layer_done,
            lambda records, layer: self._take(records, Point.DESTINATION, layer),
            self._join,
        )

        def layer_done(layer: int) -> None:
            now = self._under_way.now
            if now is not None:
                self._describe(now)
                gates.begin(now.records)
            gates(layer)

        def through_gates(records: Sequence[CopyRecord]) -> float:
            gates.begin(records)
            call(gates)
            return gates.ours

        if on_device and self._beside is not None and self.watching:
            self._run_ahead(copies, lambda: call(layer_done), gates.take_rest)
        else:
            self._run(copies, through_gates, gates.take_rest)

    def _note(self, copies: Copies, call: Callable[[], None]) -> None:
        """Run ``call`` without digests, and leave everything else to the bus's thread."""
        self._enforce()
        status, started = "ok", time.perf_counter()
        try:
            call()
        except BaseException as error:
            status = failure(error)
            raise
        finally:
            try:
                ended = time.perf_counter()
                took = (ended - started) * 1e6
                self._bus.push(Noted(self._noted, copies, time.time_ns(), took, status))
                self.overhead_s += time.perf_counter() - ended
            except BaseException as error:
                if not self._errors.swallows("probe/after", error):
                    raise

    def _describe(self, now: _Operation) -> None:
        """Describe and begin an operation's copies unless that has been done."""
        copies = now.copies
        if copies is None:
            return
        now.copies = None
        began = time.perf_counter()
        described = self._described(copies)
        followed = self._beside.begin(described) if self._beside is not None else None
        if followed is None:
            now.records = self._opened(described)
        else:
            now.followed = followed
        self.overhead_s += time.perf_counter() - began

    def _run_ahead(
        self,
        copies: Copies,
        call: Callable[[], None],
        take: Callable[[Sequence[CopyRecord]], None],
    ) -> None:
        """Run ``call`` and describe its copies meanwhile, which adds no time to the operation.

        ``take`` digests by call what no device follows, once the bytes have arrived.
        """
        outer, now = self._under_way.now, _Operation(copies)
        status, started = "ok", time.perf_counter()
        try:
            self._under_way.now = now
            call()
        except BaseException as error:
            status = failure(error)
            raise
        finally:
            try:
                self._under_way.now = outer
                ended = time.perf_counter()
                took = (ended - started) * 1e6
                self._describe(now)
                if self._beside is not None and now.followed:
                    self._beside.over(now.followed, took, status)
                elif now.records:
                    if status == "ok":
                        take(now.records)
                    self._join(now.records)
                    self._append(now.records, took, status)
                self.overhead_s += time.perf_counter() - ended
            except BaseException as error:
                if not self._cut_short([*now.followed, *now.records], status, error):
                    raise

    def _by_call(self, record: CopyRecord) -> None:
        """Digest a copy that no device follows, while the operation still owns the pages."""
        self._take_device_ends([record])
        self._join([record])

    def _take_device_ends(self, records: Sequence[CopyRecord]) -> None:
        for record in records:
            self._take([record], DEVICE_END[record.copy.op])

    def _run(
        self,
        copies: Copies,
        call: Callable[[Sequence[CopyRecord]], float],
        after: Callable[[Sequence[CopyRecord]], None],
    ) -> None:
        began = time.perf_counter()
        records = self._opened(self._described(copies))
        with self._errors.at("probe/before"):
            self._take(records, Point.SOURCE_BEFORE)
        outer, now = self._under_way.now, _Operation(None, records)
        started = time.perf_counter()
        status, ours = "ok", 0.0  # seconds the instrument spent inside the call
        try:
            self._under_way.now = now
            ours = call(records)
        except BaseException as error:
            status = failure(error)
            raise
        finally:
            # Not a context of ours: an interrupt on its way into one would lose the records.
            try:
                self._under_way.now = outer
                ended = time.perf_counter()
                if status == "ok":
                    after(records)
                    self._take(records, Point.SOURCE_AFTER)
                self._join(records)
                self._append(records, (ended - started - ours) * 1e6, status)
                spent = time.perf_counter() - ended + ours + started - began
                self.overhead_s += spent  # no call within the addition: other threads add here too
            except BaseException as error:
                if not self._cut_short(records, status, error):
                    raise
