"""What runs on the host's own threads around a copy: digest, call, digest, append.

Nothing here waits, logs or raises on its own account. The digests are judged on the bus's thread
(:mod:`hicache_dbg.tracer.judge`). Whole pages on a GPU are watched there
(:mod:`hicache_dbg.tracer.digest.watch`); everything else is digested by call.
"""

import threading
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import numpy as np

from hicache_dbg.tracer.beside import Beside, ascends, misfit, written
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.by_call import ByCall, digest_tiles
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.following import Watcher, parts_of
from hicache_dbg.tracer.gates import Gates, LayerDone
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.record import (
    DEVICE_END,
    POINTS,
    Copies,
    CopyRecord,
    Digester,
    Followed,
    Noted,
    Point,
)
from hicache_dbg.tracer.sampling import chosen
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum, Settings

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


class Probe(ByCall):
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
        super().__init__(digester, errors, POINTS[settings.checksum])
        self.enabled = True
        self.overhead_s = 0.0
        self._bus = bus
        self._settings = settings
        self._judge = judge
        self._enforce = enforce
        self._samples = settings.checksum is Checksum.SAMPLE
        self._traces: dict[tuple[str, Op], bool] = {}
        self._watcher: Watcher | None = None
        if isinstance(digester, Watcher) and settings.checksum is not Checksum.THREE:
            self._watcher = digester
        self._beside: Beside | None = None
        if self._watcher is not None and self._points and not self._samples:
            self._beside = Beside(self._watcher, bus, errors, self._by_call, self._judged)
        #: Whether the attachment reports what the engine has queued, through :meth:`queued`.
        self.watching = False
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
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            took = (ended - started) * 1e6
            self._bus.push(Noted(self._noted, copies, time.time_ns(), took, status))
            self.overhead_s += time.perf_counter() - ended

    def _noted(self, noted: Noted) -> list[Event]:
        """Describe and judge copies that were not digested, on the bus's thread."""
        events: list[Event] = []
        for copy in noted.copies():
            if self._traced(copy):
                record = self._open(copy)
                record.time_ns, record.duration_us = noted.time_ns, noted.duration_us
                record.status = noted.status
                events += self._judge(record)
        return events

    def _described(self, copies: Copies) -> Sequence[Copy]:
        """Return the copies that are to be traced."""
        try:
            return [copy for copy in copies() if self._traced(copy)]
        except Exception as error:
            self._errors.record("probe/before", error)
            if self._errors.reraise:
                raise
            return ()

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
        self._under_way.now = now
        status, started = "ok", time.perf_counter()
        try:
            call()
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            took = (ended - started) * 1e6
            self._under_way.now = outer
            self._describe(now)
            if self._beside is not None and now.followed:
                self._beside.over(now.followed, took, status)
            elif now.records:
                with self._errors.at("probe/after"):
                    if status == "ok":
                        take(now.records)
                    self._join(now.records)
                    self._append(now.records, took, status)
            self.overhead_s += time.perf_counter() - ended

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
        outer, self._under_way.now = self._under_way.now, _Operation(None, records)
        started = time.perf_counter()
        status, ours = "ok", 0.0  # seconds the instrument spent inside the call
        try:
            ours = call(records)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            self._under_way.now = outer
            with self._errors.at("probe/after"):
                if status == "ok":
                    after(records)
                    self._take(records, Point.SOURCE_AFTER)
                self._join(records)
                self._append(records, (ended - started - ours) * 1e6, status)
            spent = time.perf_counter() - ended + ours + started - began
            self.overhead_s += spent  # no call within the addition: other threads add here too

    def _traced(self, copy: Copy) -> bool:
        settings, what = self._settings, (copy.mirror.pool, copy.op)
        traced = self._traces.get(what)
        if traced is None:
            traced = self._traces[what] = settings.traces(copy.mirror.pool) and any(
                fnmatchcase(copy.op, glob) for glob in settings.ops
            )
        return traced

    def _opened(self, copies: Sequence[Copy]) -> list[CopyRecord]:
        """Open records for these copies, and let a device follow what it can."""
        records: list[CopyRecord] = []
        with self._errors.at("probe/before"):
            records = [self._open(copy) for copy in copies]
            self._watch(records)
        return records

    def _open(self, copy: Copy) -> CopyRecord:
        fill = np.ones if copy.op in self._points else np.zeros
        digested = fill(len(copy.host_pages), np.bool_)
        if self._samples and copy.op in self._points:
            digested = chosen(copy.host_pages, copy.generations, self._settings.sample)
        skip = misfit(copy)
        if skip is not None:  # the ids are unusable, whether or not the engine refuses them
            none = np.zeros(len(copy.host_pages), np.int64)
            return CopyRecord(copy, self._judged, digested, none, skip=skip)
        return CopyRecord(copy, self._judged, digested, written(copy))

    def _judged(self, record: CopyRecord) -> list[Event]:
        """Read what the device found, then judge; on the bus's thread."""
        try:
            record.take_over()
        except Exception as error:  # noqa: BLE001 - digests that cannot be read prove nothing
            record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/read", error)
        return self._judge(record)

    def _watch(self, records: Sequence[CopyRecord]) -> None:
        """Let the device follow what it can: whole pages of components in its memory."""
        if self._watcher is None or not self.watching:
            return
        for record in records:
            copy = record.copy
            if copy.op not in self._points or copy.spans is not None or record.skip is not None:
                continue
            if not ascends(copy.model_layers):
                continue
            try:
                followed, which = True, record.digested if self._samples else None
                for component, view in copy.mirror.device.items():
                    parts = parts_of(self._watcher, copy, which, record.writes, component, view)
                    record.watched += parts
                    followed = followed and bool(parts)
                record.is_followed = followed
            except DigestRefusedError as refused:
                record.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - our failure must not stop the copy
                record.skip = SkipReason.INTERNAL_ERROR
                self._errors.record("digest/watch", error)

    def _append(self, records: Sequence[CopyRecord], duration_us: float, status: str) -> None:
        now = time.time_ns()
        for record in records:
            record.time_ns = now
            record.duration_us = duration_us
            record.status = status
            if not self._bus.push(record):
                for part in record.watched:
                    part.watch.drop()
