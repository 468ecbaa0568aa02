"""What runs on the host's own threads, around a copy: digest, call, digest, append.

Nothing here waits, logs or raises on its own account. What the digests mean is worked out on the
bus's thread (:mod:`hicache_dbg.tracer.judge`). Whole pages on a GPU are watched there
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

LayerDone = Callable[[int], None]


class _UnderWay(threading.local):
    """This thread's operation: what a device follows of it, or else its records."""

    followed: Sequence[Followed] = ()
    records: Sequence[CopyRecord] = ()


class Probe(ByCall):
    """Wraps one call that moves bytes.

    Args:
        bus: where records go.
        digester: takes the digests.
        settings: what is traced, and how closely.
        errors: where failures of the probe itself are counted.
        judge: turns a record into events; called on the bus's thread.
        enforce: raises where the host asked to be stopped by an earlier finding.
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
        #: Whether the attachment says what the engine has queued (:meth:`queued`).
        self.watching = False
        #: Whether copies may be described on the bus's thread: what they refer to does not change.
        self.describes_later = False
        self._under_way = _UnderWay()

    def queued(self, stream: int, under_way: int) -> None:
        """The engine has given ``stream`` all copies of this thread's operation.

        To be called before the engine marks there what it waits for last: digests are joined
        there. Of a load no more than the last ``under_way`` layers have not arrived.
        """
        mine = self._under_way
        if self._beside is not None and mine.followed:
            began = time.perf_counter()
            self._beside.queued(mine.followed, stream, under_way)
            self.overhead_s += time.perf_counter() - began
        for record in mine.records:
            for part in record.watched:
                try:
                    part.watch.queued(stream, under_way)
                except Exception as error:  # noqa: BLE001 - whatever it is, the copy goes on
                    record.skip = SkipReason.INTERNAL_ERROR
                    self._errors.record("digest/queued", error)

    def observe(self, copies: Copies, call: Callable[[], None]) -> None:
        """Run ``call``, which performs what ``copies()`` describes, with digests around it.

        An exception of ``call`` is recorded as the operation's status and goes on to the host;
        one of ours is counted and goes no further.
        """
        if not self.enabled:
            call()
            return
        if self.describes_later and not self._points:
            self._note(copies, call)
            return
        began = time.perf_counter()
        described, followed = self._begin(copies)
        if followed is not None:
            self._leave(followed, call, began)
            return

        def plain(_: list[CopyRecord]) -> float:
            call()
            return 0.0

        def arrived(records: list[CopyRecord]) -> None:
            self._take(records, Point.DESTINATION)

        self._run(described, plain, arrived, began)

    def observe_layers(
        self, copies: Copies, call: Callable[[LayerDone], None], on_layer_done: LayerDone
    ) -> None:
        """As :meth:`observe`, for a load that says of each layer when its bytes are there.

        A layer is digested after its gate opened, beside whatever reads it; the last one before,
        because with its gate the engine takes the load for complete and lets the pages go.
        """
        if not self.enabled:
            call(on_layer_done)
            return
        if self.describes_later and not self._points:
            self._note(copies, lambda: call(on_layer_done))
            return
        began = time.perf_counter()
        described, followed = self._begin(copies)
        if followed is not None:  # the device knows by itself when the bytes are there
            self._leave(followed, lambda: call(on_layer_done), began)
            return

        waiting: set[int] = set()

        def tapped(records: list[CopyRecord]) -> float:
            ours = 0.0
            waiting.update(layer for record in records for layer in record.copy.model_layers)
            if all(record.is_followed for record in records):
                waiting.clear()
                call(on_layer_done)
                return ours

            def layer_done(layer: int) -> None:
                nonlocal ours
                waiting.discard(layer)
                if waiting:
                    on_layer_done(layer)
                began = time.perf_counter()
                self._take(records, Point.DESTINATION, layer)
                if not waiting:
                    self._join(records)
                ours += time.perf_counter() - began
                if not waiting:
                    on_layer_done(layer)

            call(layer_done)
            return ours

        def unannounced(records: list[CopyRecord]) -> None:
            for layer in waiting:
                self._take(records, Point.DESTINATION, layer)

        self._run(described, tapped, unannounced, began)

    def _note(self, copies: Copies, call: Callable[[], None]) -> None:
        """Run ``call`` and leave everything else to the bus's thread: nothing is digested."""
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
            self._bus.push(Noted(self._describe, copies, time.time_ns(), took, status))
            self.overhead_s += time.perf_counter() - ended

    def _describe(self, noted: Noted) -> list[Event]:
        """On the bus's thread: what :meth:`_run` would have said of the same copies."""
        events: list[Event] = []
        for copy in noted.copies():
            if self._traced(copy):
                record = self._open(copy)
                record.time_ns, record.duration_us = noted.time_ns, noted.duration_us
                record.status = noted.status
                events += self._judge(record)
        return events

    def _begin(self, copies: Copies) -> tuple[Sequence[Copy], list[Followed] | None]:
        """What is to be traced and, where a device can follow all of it by itself, that."""
        self._enforce()
        try:
            described = [copy for copy in copies() if self._traced(copy)]
            if self._beside is None or not self.watching:
                return described, None
            return described, self._beside.begin(described)
        except Exception as error:
            self._errors.record("probe/before", error)
            if self._errors.reraise:
                raise
            return (), None

    def _leave(self, followed: list[Followed], call: Callable[[], None], began: float) -> None:
        """Run ``call`` and leave everything else to the device and the bus's thread."""
        beside = self._beside
        assert beside is not None  # noqa: S101 - who began them
        self._under_way.followed = followed
        status, started = "ok", time.perf_counter()
        try:
            call()
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            self._under_way.followed = ()
            beside.over(followed, (ended - started) * 1e6, status)
            self.overhead_s += time.perf_counter() - ended + started - began

    def _by_call(self, record: CopyRecord) -> None:
        """Digest what no device follows, now that the bytes are there and still the operation's."""
        self._take([record], DEVICE_END[record.copy.op])
        self._join([record])

    def _run(
        self,
        copies: Sequence[Copy],
        call: Callable[[list[CopyRecord]], float],
        after: Callable[[list[CopyRecord]], None],
        began: float,
    ) -> None:
        records: list[CopyRecord] = []
        with self._errors.at("probe/before"):
            records = [self._open(copy) for copy in copies]
            self._watch(records)
            self._take(records, Point.SOURCE_BEFORE)
        self._under_way.records = records
        started = time.perf_counter()
        status, ours = "ok", 0.0  # seconds of our own inside the call
        try:
            ours = call(records)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            self._under_way.records = ()
            with self._errors.at("probe/after"):
                if status == "ok":
                    after(records)
                    self._take(records, Point.SOURCE_AFTER)
                self._join(records)
                self._append(records, (ended - started - ours) * 1e6, status)
            spent = time.perf_counter() - ended + ours + started - began
            self.overhead_s += spent  # nothing is called in between: another thread adds as well

    def _traced(self, copy: Copy) -> bool:
        settings, what = self._settings, (copy.mirror.pool, copy.op)
        traced = self._traces.get(what)
        if traced is None:
            traced = self._traces[what] = settings.traces(copy.mirror.pool) and any(
                fnmatchcase(copy.op, glob) for glob in settings.ops
            )
        return traced

    def _open(self, copy: Copy) -> CopyRecord:
        digested = np.full(len(copy.host_pages), copy.op in self._points)
        if self._samples and copy.op in self._points:
            digested = chosen(copy.host_pages, copy.generations, self._settings.sample)
        skip = misfit(copy)
        if skip is not None:  # whoever refuses it or not
            none = np.zeros(len(copy.host_pages), np.int64)
            return CopyRecord(copy, self._judged, digested, none, skip=skip)
        return CopyRecord(copy, self._judged, digested, written(copy))

    def _judged(self, record: CopyRecord) -> list[Event]:
        """On the bus's thread: read what the device found, then judge."""
        try:
            record.take_over()
        except Exception as error:  # noqa: BLE001 - what cannot be read vouches for nothing
            record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/read", error)
        return self._judge(record)

    def _watch(self, records: Sequence[CopyRecord]) -> None:
        """Let the device follow what it can: whole pages, of components that lie there."""
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the copy goes on
                record.skip = SkipReason.INTERNAL_ERROR
                self._errors.record("digest/watch", error)

    def _append(self, records: list[CopyRecord], duration_us: float, status: str) -> None:
        now = time.time_ns()
        for record in records:
            record.time_ns = now
            record.duration_us = duration_us
            record.status = status
            if not self._bus.push(record):
                for part in record.watched:
                    part.watch.drop()
