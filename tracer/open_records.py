"""Which copies are traced, and their records: opened before a copy, handed to the bus after it."""

import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from hicache_dbg.tracer.beside import ascends, misfit, written
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.by_call import ByCall
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.following import Watcher, parts_of
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.record import POINTS, Copies, CopyRecord, Digester, Followed, Noted
from hicache_dbg.tracer.sampling import chosen
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["OpenRecords"]


class OpenRecords(ByCall):
    """Opens the records of copies, lets a device follow what it can, and pushes them.

    Args:
        bus: where records go.
        digester: takes the digests.
        settings: what is traced, and how closely.
        errors: counts failures of the probe itself.
        judge: turns a record into events; called on the bus's thread.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        digester: Digester,
        settings: Settings,
        errors: InternalErrors,
        judge: Callable[[CopyRecord], list[Event]],
    ) -> None:
        super().__init__(digester, errors, POINTS[settings.checksum])
        self._bus = bus
        self._settings = settings
        self._judge = judge
        self._samples = settings.checksum is Checksum.SAMPLE
        self._traces: dict[tuple[str, Op], bool] = {}
        self._watcher: Watcher | None = None
        if isinstance(digester, Watcher) and settings.checksum is not Checksum.THREE:
            self._watcher = digester
        #: Whether the attachment reports what the engine has queued, through :meth:`Probe.queued`.
        self.watching = False

    def _described(self, copies: Copies) -> Sequence[Copy]:
        """Return the copies that are to be traced."""
        try:
            return [copy for copy in copies() if self._traced(copy)]
        except Exception as error:
            self._errors.record("probe/before", error)
            if self._errors.reraise:
                raise
            return ()

    def _traced(self, copy: Copy) -> bool:
        settings, what = self._settings, (copy.mirror.pool, copy.op)
        traced = self._traces.get(what)
        if traced is None:
            traced = self._traces[what] = settings.traces(what[0]) and settings.traces_op(what[1])
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

    def _judged(self, record: CopyRecord) -> list[Event]:
        """Read what the device found, then judge; on the bus's thread."""
        try:
            record.take_over()
        except Exception as error:  # noqa: BLE001 - digests that cannot be read prove nothing
            record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/read", error)
            record.drop()
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

    def _append(
        self, records: Sequence[CopyRecord | Followed], duration_us: float, status: str
    ) -> None:
        now = time.time_ns()
        for record in records:
            record.duration_us = duration_us
            record.status = status
            record.time_ns = now  # last: the mark of a record that was handed in
            if not self._bus.push(record):
                record.drop()

    def _cut_short(
        self, records: Sequence[CopyRecord | Followed], status: str, error: BaseException
    ) -> bool:
        """Hand in what ``error`` kept from being handed in: the bytes moved, and nothing vouches for them.

        Return whether the host goes on as if it had not been raised.
        """
        left = [record for record in records if not record.time_ns]
        for record in left:
            record.skip = record.skip or SkipReason.INTERNAL_ERROR
            for part in record.watched or ():
                with contextlib.suppress(Exception):  # counted already
                    part.watch.finish()  # its room may not be used again while a device writes there
        self._append(left, 0.0, status)
        return self._errors.swallows("probe/after", error)
