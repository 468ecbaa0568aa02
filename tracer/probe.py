"""What runs on the host's own threads, around a copy: digest, call, digest, append.

Nothing here waits, logs or raises on its own account. What the digests mean is worked out on the
bus's thread (:mod:`hicache_dbg.tracer.judge`). Whole pages on a GPU are watched there
(:mod:`hicache_dbg.tracer.digest.watch`); everything else is digested by call.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Event, Op, SkipReason, Tier
from hicache_dbg.tracer.following import Watcher, parts_of
from hicache_dbg.tracer.ledger import Digests
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.record import (
    POINTS,
    Copies,
    CopyRecord,
    Digester,
    Noted,
    Pending,
    Point,
)
from hicache_dbg.tracer.sampling import chosen
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum, Settings
from hicache_dbg.tracer.view import View

__all__ = ["CopyRecord", "Digester", "Point", "Probe", "digest_tiles"]

LayerDone = Callable[[int], None]


class Probe:
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
        self.enabled = True
        self.overhead_s = 0.0
        self._bus = bus
        self._digester = digester
        self._settings = settings
        self._errors = errors
        self._judge = judge
        self._enforce = enforce
        self._points = POINTS[settings.checksum]
        self._samples = settings.checksum is Checksum.SAMPLE
        self._traces: dict[tuple[str, Op], bool] = {}
        self._watcher: Watcher | None = None
        if isinstance(digester, Watcher) and settings.checksum is not Checksum.THREE:
            self._watcher = digester
        #: Whether the attachment says what the engine has queued (:meth:`queued`).
        self.watching = False
        #: Whether copies may be described on the bus's thread: what they refer to does not change.
        self.describes_later = False
        self._local = threading.local()

    def queued(self, stream: int, under_way: int) -> None:
        """The engine has given ``stream`` all copies of this thread's operation.

        To be called before the engine marks there what it waits for last: digests are joined
        there. Of a load no more than the last ``under_way`` layers have not arrived.
        """
        for record in getattr(self._local, "records", ()):
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

        def plain(_: list[CopyRecord]) -> float:
            call()
            return 0.0

        def arrived(records: list[CopyRecord]) -> None:
            self._take(records, Point.DESTINATION)

        self._run(copies, plain, arrived)

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

        waiting: set[int] = set()

        def tapped(records: list[CopyRecord]) -> float:
            ours = 0.0
            waiting.update(layer for record in records for layer in record.copy.model_layers)
            if all(record.is_followed for record in records):
                waiting.clear()
                call(on_layer_done)  # the device knows by itself when the bytes are there
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

        self._run(copies, tapped, unannounced)

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

    def _run(
        self,
        copies: Copies,
        call: Callable[[list[CopyRecord]], float],
        after: Callable[[list[CopyRecord]], None],
    ) -> None:
        begun = time.perf_counter()
        self._enforce()
        records: list[CopyRecord] = []
        with self._errors.at("probe/before"):
            records = [self._open(copy) for copy in copies() if self._traced(copy)]
            self._watch(records)
            self._take(records, Point.SOURCE_BEFORE)
        self._local.records = records
        started = time.perf_counter()
        status, ours = "ok", 0.0  # seconds of our own inside the call
        try:
            ours = call(records)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            self._local.records = ()
            with self._errors.at("probe/after"):
                if status == "ok":
                    after(records)
                    self._take(records, Point.SOURCE_AFTER)
                self._join(records)
                self._append(records, (ended - started - ours) * 1e6, status)
            spent = time.perf_counter() - ended + ours + started - begun
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
        if not copy.fits:  # whoever refuses it or not: such pages have no tiles to look at
            none = np.zeros(len(copy.host_pages), np.int64)
            unknown = (copy.host_pages < 0).any()  # nobody could tell which pages they are
            skip = SkipReason.UNREADABLE if unknown else SkipReason.UNWITNESSED
            return CopyRecord(copy, self._judged, digested, none, skip=skip)
        writes = copy.mirror.writes
        if copy.tiers[1] is Tier.HOST:
            writes[copy.host_pages] += 1
        return CopyRecord(copy, self._judged, digested, writes[copy.host_pages])

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
            if list(copy.model_layers) != sorted(copy.model_layers):  # the order of the copies
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

    def _take(self, records: list[CopyRecord], point: Point, layer: int | None = None) -> None:
        """Digest at ``point`` what the level asks for: all layers, or the model's ``layer``."""
        for record in records:
            copy = record.copy
            if record.is_followed or record.skip is not None:
                continue
            if point not in self._points.get(copy.op, ()):
                continue
            rows = slice(None)
            if layer is not None:
                if layer not in copy.model_layers:
                    continue
                row = copy.model_layers.index(layer)
                rows = slice(row, row + 1)
            watched = {part.component for part in record.watched}
            try:
                for component in copy.mirror.device:
                    if component not in watched:
                        self._digest(record, point, component, rows)
            except DigestRefusedError as refused:
                record.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - whatever it is, the copy goes on
                record.skip = SkipReason.INTERNAL_ERROR
                self._errors.record(f"digest/{point}", error)

    def _digest(self, record: CopyRecord, point: Point, component: str, rows: slice) -> None:
        view = _view(record.copy, component, point)
        if view is None:  # a component that this end does not have
            return
        into = record.room(point, component)
        parts = digest_tiles(self._digester, record.copy, component, point, record.digested, rows)
        for columns, digests in parts:
            if view.device == "cpu":
                into[rows, columns] = digests
            else:
                record.pending.append(Pending(into, (rows, columns), digests))

    def _join(self, records: Sequence[CopyRecord] = ()) -> None:
        """With the engine's next step the pages may be written: every digest must be taken."""
        try:
            self._digester.join()
            for record in records:
                record.settle()
                for part in record.watched:
                    part.watch.finish()
        except Exception as error:  # noqa: BLE001 - as above: what is not there vouches for nothing
            for record in records:
                record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/join", error)

    def _append(self, records: list[CopyRecord], duration_us: float, status: str) -> None:
        now = time.time_ns()
        for record in records:
            record.time_ns = now
            record.duration_us = duration_us
            record.status = status
            if not self._bus.push(record):
                for part in record.watched:
                    part.watch.drop()


def _view(copy: Copy, component: str, point: Point) -> View | None:
    mirror = copy.mirror
    return (mirror.host if _tier(copy, point) is Tier.HOST else mirror.device).get(component)


def _tier(copy: Copy, point: Point) -> Tier:
    source, destination = copy.tiers
    return destination if point is Point.DESTINATION else source


def digest_tiles(  # noqa: PLR0917
    digester: Digester,
    copy: Copy,
    component: str,
    point: Point,
    digested: np.ndarray,
    rows: slice = slice(None),
) -> Iterator[tuple[slice | np.ndarray, Digests]]:
    """Digests of the chosen tiles of one component at one point, in parts.

    Yields which of the chosen pages, and their digests, uint64 [layers, pages]. Each end is read
    through its own view. ``rows`` chooses among the copy's layers. Pages of a token-granular copy
    are digested in groups of equal slot range.
    """
    at_host = _tier(copy, point) is Tier.HOST
    view = (copy.mirror.host if at_host else copy.mirror.device)[component]
    pages = (copy.host_pages if at_host else copy.device_pages)[digested]
    layers = copy.layers[rows]
    if copy.spans is None:
        yield slice(None), digester.digest(view, layers, pages)
        return
    ends = copy.spans[digested][:, 0:2] if at_host else copy.spans[digested][:, 2:4]
    for first, last in np.unique(ends, axis=0):
        group = (ends == (first, last)).all(axis=1)
        if last > first:
            yield group, digester.digest(view, layers, pages[group], int(first), int(last))
