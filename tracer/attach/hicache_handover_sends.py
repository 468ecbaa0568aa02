"""What prefill sends: its tiles are digested while they are written."""

import time
from dataclasses import dataclass

from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.requests import Sending
from hicache_dbg.tracer.attach.hicache_handover_beside import Beside, Job
from hicache_dbg.tracer.attach.hicache_handover_kept import Kept, reallocated
from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord
from hicache_dbg.tracer.attach.hicache_handover_records import COMPLETE, NOT_TAKEN, Records
from hicache_dbg.tracer.events import Op, SkipReason
from hicache_dbg.tracer.session import Session

__all__ = ["Sends"]


@dataclass(slots=True, eq=False)
class _Send:
    """A request being sent: its pages when it was offered, and the job that digests its tiles.

    It keeps ``sending`` alive, by whose identity it is found.
    """

    sending: Sending
    kept: Kept | None = None
    job: Job | None = None
    record: HandoverRecord | None = None


class Sends:
    """The requests that prefill is sending."""

    def __init__(self, session: Session, records: Records, beside: Beside) -> None:
        self._session = session
        self._records = records
        self._beside = beside
        self._under_way: dict[int, _Send] = {}  # by identity of the sending

    def offered(self, end: PrefillEnd, sending: Sending) -> None:
        """Remember the generations of the offered pages."""
        if end.generation is not None:
            self._under_way[id(sending)] = _Send(sending, Kept(sending.pages, end.generation))

    def read(self, end: PrefillEnd, sending: Sending) -> None:
        """Digest on the thread what is being written, once. Hashing is faster than the wire."""
        send = self._under_way.setdefault(id(sending), _Send(sending))
        if send.job is not None:
            return

        def read() -> None:
            send.record = self._records.open(Op.SEND, end.link, sending)
            self._records.digest(send.record)

        send.job = Job(read)
        self._beside.give(send.job)

    def sent(self, end: PrefillEnd, sending: Sending, *, good: bool, reason: str) -> None:
        """Record a request that is over, once its tiles are digested."""
        took = time.monotonic() - sending.began if sending.began else 0.0
        send = self._under_way.pop(id(sending), _Send(sending))
        if send.job is not None:
            begun = time.perf_counter()
            send.job.wait()
            self._session.probe.overhead_s += time.perf_counter() - begun
        elif not good:  # never begun, or begun before the attachment
            send.record = self._records.open(Op.SEND, end.link, sending)
        if send.kept is not None and sending.began:
            self._session.tell(reallocated(end.link, sending, send.kept))
        record = send.record
        if record is None:
            return
        record.duration_us = took * 1e6
        if not good:
            record.skip = record.skip or SkipReason.FAILED
        self._records.close(record, COMPLETE if good else NOT_TAKEN, "ok" if good else reason)

    def forget(self) -> None:
        """Forget the requests under way."""
        self._under_way.clear()
