"""What decode receives: its tiles are digested after the request was admitted."""

import time
from dataclasses import dataclass

import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.requests import Receiving, RecvState
from hicache_dbg.tracer.attach.hicache_handover_beside import Beside, Job
from hicache_dbg.tracer.attach.hicache_handover_held import HeldPages
from hicache_dbg.tracer.attach.hicache_handover_kept import Kept
from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord
from hicache_dbg.tracer.attach.hicache_handover_records import COMPLETE, LOST, NOT_TAKEN, Records
from hicache_dbg.tracer.events import Op, SkipReason

__all__ = ["LATEST_S", "Receipts"]

#: How long after its landing a request's digests may give way to writes, in seconds.
LATEST_S = 0.1


@dataclass(slots=True, eq=False)
class _Receipt:
    """A request being written, with what is prepared meanwhile. It keeps ``receiving`` alive."""

    receiving: Receiving
    record: HandoverRecord
    kept: Kept


class Receipts:
    """The requests that decode is receiving."""

    def __init__(self, records: Records, beside: Beside) -> None:
        self._records = records
        self._beside = beside
        self._held = HeldPages()
        self._under_way: dict[int, _Receipt] = {}  # by identity of the receiving

    def granted(self, end: DecodeEnd, receiving: Receiving) -> None:
        """Prepare the record while prefill writes, so that the admission does not wait for it."""
        if end.generation is None:
            return
        known = list(self._under_way.items())  # the pump or a request's own thread may change it
        for key in [key for key, receipt in known if receipt.receiving.over]:
            self._under_way.pop(key, None)
        self._under_way[id(receiving)] = self._prepared(end, receiving)

    def landed(self, end: DecodeEnd, receiving: Receiving) -> Job | None:
        """Digest at once what the next token may change; return the job that digests the rest."""
        took = (time.monotonic() - receiving.began) * 1e6
        if end.generation is None:  # a reallocated page could not be told
            record = self._records.open(Op.RECV, end.link, receiving)
            self._records.digest(record)
            record.duration_us = took
            self._records.close(record, COMPLETE, "ok")
            return None
        receipt = self._under_way.pop(id(receiving), None) or self._prepared(end, receiving)
        record, kept, until = receipt.record, receipt.kept, time.monotonic() + LATEST_S
        record.duration_us = took
        if _overwritten(end.link, receiving):
            self._records.tiles.digest(record, rewritten=True)

        def rest() -> None:
            job.give_way(lambda: end.receiving, until - time.monotonic())
            self._records.tiles.digest(record, rewritten=False)
            record.reused = record.chosen & kept.changed()
            self._records.close(record, COMPLETE, "ok")
            self._records.tiles.say(record)

        job = Job(rest)
        self._held.hold(end, receiving, job)
        return job

    def give(self, receiving: Receiving, job: Job) -> None:
        """Have the job of a request done, unless it was given up as it landed."""
        if receiving.state is RecvState.LANDED:
            self._beside.give(job)
        else:
            job.drop()

    def freed(self, allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
        """Wait for the digests of pages that are about to be freed."""
        self._held.freed(allocator, page_ids)

    def failed(self, end: DecodeEnd, receiving: Receiving) -> None:
        """Record a failed request. After the loss of the peer, the digests tell which tiles arrived."""
        self._under_way.pop(id(receiving), None)
        lost = bool(end.lost) and receiving.state is RecvState.GRANTED
        skip = None if lost else SkipReason.FAILED
        record = self._records.open(Op.RECV, end.link, receiving, skip)
        self._records.digest(record)
        record.skip = record.skip or SkipReason.FAILED
        self._records.close(record, LOST if lost else NOT_TAKEN, receiving.reason)

    def forget(self) -> None:
        """Forget the requests under way."""
        self._under_way.clear()

    def _prepared(self, end: DecodeEnd, receiving: Receiving) -> _Receipt:
        assert end.generation is not None  # noqa: S101 - both callers have looked
        record = self._records.open(Op.RECV, end.link, receiving)
        return _Receipt(receiving, record, Kept(receiving.pages, end.generation))


def _overwritten(link: Link, receiving: Receiving) -> bool:
    """Return whether the next token may change filled slots: those of a ring in a partial page."""
    partial = receiving.tokens % link.group.page_tokens != 0
    return partial and not all(m.device.geometry.single_slots for m in link.group.mirrors)
