"""Attachment to the handover of ``hicache_dbg.pools``: what prefill sends, and what decode receives.

Both ends state digests under (request, logical page, layer), for a join of both recordings: neither
sees the other's bytes. Nobody waits for them. A thread digests prefill's tiles while they are written,
and is waited for before the pages are the engine's again; decode's beside whoever reads them, if
their generation tells whether they had another life by then, and whoever frees one before waits a
little. Of a last page only the filled slots are digested: the next token goes behind them, but for a
ring's, which is digested before the request is admitted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import ContractRefused
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.messages import Hello
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.requests import Receiving, RecvState, Sending, SendState
from hicache_dbg.pools.host import Mirror
from hicache_dbg.tracer.attach.hicache_handover_beside import Beside, Job
from hicache_dbg.tracer.attach.hicache_handover_contract import refusals, state_contract
from hicache_dbg.tracer.attach.hicache_handover_held import HeldPages
from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord, open_record
from hicache_dbg.tracer.attach.hicache_handover_tiles import HandedTiles
from hicache_dbg.tracer.attach.hicache_handover_views import KnownViews
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.requests import current_span
from hicache_dbg.tracer.events import Op, SkipReason
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import Session

__all__ = ["HandoverAttachment", "handover_of"]

Views = Callable[[Mirror], MirrorViews]
COMPLETE, NOT_TAKEN, LOST = "complete", "not taken over", "peer lost"


@dataclass(slots=True, eq=False)
class _Send:
    """A request that is written, and what becomes of its tiles beside."""

    job: Job
    record: HandoverRecord | None = None


class HandoverAttachment:
    """Wraps the methods of both ends through which a request's pages go from one to the other.

    ``attach`` and ``detach`` are a symmetric, idempotent pair. Also a context manager.
    """

    def __init__(self, session: Session, views: Views | None = None) -> None:
        self._session = session
        self._views = views or KnownViews()
        self._patches = Patches()
        self._tiles = HandedTiles(session)
        self._beside = Beside(session.errors)
        self._under_way: dict[int, _Send] = {}  # by identity of the sending
        self._held = HeldPages()

    def attach(self) -> None:
        """Wrap what is not wrapped yet."""
        self._beside.start()
        self._patches.replace(Link, "agree", self._around_agree)
        self._patches.replace(PrefillEnd, "offer", self._around_offer)
        self._patches.replace(PrefillEnd, "begin", self._around_begin)
        self._patches.replace(PrefillEnd, "finish", self._around_finish)
        self._patches.replace(DecodeEnd, "landed", self._around_landed)
        self._patches.replace(DecodeEnd, "fail", self._around_fail)
        self._patches.replace(PageAllocator, "free", self._around_free)

    def detach(self) -> None:
        """Put the engine's own functions back, and finish what is being digested."""
        self._patches.undo()
        self._beside.stop()
        self._under_way.clear()

    def settle(self) -> None:
        """Wait until everything that was to be digested so far has been."""
        self._beside.settle()

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- what is wrapped ----------------------------------------------------------------------

    def _around_agree(self, original: Callable[..., Hello]) -> Callable[..., Hello]:
        def agree(link: Link) -> Hello:
            with self._session.errors.at("handover/contract"):
                state_contract(self._session, link)
            try:
                return original(link)
            except ContractRefused as refused:
                with self._session.errors.at("handover/contract"):
                    found = refusals(link, refused)
                    self._session.check(lambda: found)
                raise

        return agree

    def _around_offer(self, original: Callable[..., None]) -> Callable[..., None]:
        def offer(end: PrefillEnd, sending: Sending) -> None:
            if sending.trace == ("", ""):
                with self._session.errors.at("handover/trace"):
                    sending.trace = _trace()
            if end.link.device.type != "cpu":  # to be launched before, not beside
                with self._session.errors.at("handover/offer"):
                    self._read(end, sending)
            original(end, sending)

        return offer

    def _around_begin(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(end: PrefillEnd, sending: Sending) -> None:
            with self._session.errors.at("handover/begin"):
                self._read(end, sending)
            original(end, sending)

        return begin

    def _around_finish(self, original: Callable[..., None]) -> Callable[..., None]:
        def finish(end: PrefillEnd, sending: Sending, state: SendState, reason: str = "") -> None:
            with self._session.errors.at("handover/finish"):
                self._sent(end, sending, good=state is SendState.DONE, reason=reason)
            original(end, sending, state, reason)

        return finish

    def _around_landed(self, original: Callable[..., None]) -> Callable[..., None]:
        def landed(end: DecodeEnd, receiving: Receiving) -> None:
            begun = time.perf_counter()
            job = None
            with self._session.errors.at("handover/landed"):
                job = self._received(end, receiving)
            self._session.probe.overhead_s += time.perf_counter() - begun
            original(end, receiving)
            if job is not None:
                self._beside.give(job)

        return landed

    def _around_free(self, original: Callable[..., None]) -> Callable[..., None]:
        def free(allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
            with self._session.errors.at("handover/free"):
                self._held.freed(allocator, page_ids)
            original(allocator, page_ids)

        return free

    def _around_fail(self, original: Callable[..., None]) -> Callable[..., None]:
        def fail(end: DecodeEnd, receiving: Receiving, reason: str) -> None:
            with self._session.errors.at("handover/fail"):
                if receiving.attempt and not receiving.over:
                    self._failed(end, receiving, reason)
            original(end, receiving, reason)

        return fail

    # -- one request --------------------------------------------------------------------------

    def _open(
        self, op: Op, link: Link, one: Sending | Receiving, skip: SkipReason | None = None
    ) -> HandoverRecord:
        settings = self._session.settings
        mirrors = [self._views(mirror) for mirror in link.group.mirrors]
        if not self._session.probe.enabled or not any(fnmatchcase(op, g) for g in settings.ops):
            mirrors = []
        mirrors = [mirror for mirror in mirrors if settings.traces(mirror.pool)]
        geometries = {mirror.name: mirror.device.geometry for mirror in link.group.mirrors}
        return open_record(
            one,
            op=op,
            role=link.role,
            mirrors=mirrors,
            geometries=geometries,
            settings=settings,
            skip=skip,
        )

    def _read(self, end: PrefillEnd, sending: Sending) -> None:
        """Have digested what is written, once: faster than the wire, it soon is ahead of it."""
        if id(sending) in self._under_way:
            return

        def read() -> None:
            send.record = self._open(Op.SEND, end.link, sending)
            self._digest(send.record)

        send = self._under_way[id(sending)] = _Send(Job(read))
        self._beside.give(send.job)

    def _sent(self, end: PrefillEnd, sending: Sending, *, good: bool, reason: str) -> None:
        """A request is over; when its tiles are digested as well its pages are the engine's again."""
        took = time.monotonic() - sending.began if sending.began else 0.0
        send = self._under_way.pop(id(sending), None)
        if send is not None:
            begun = time.perf_counter()
            send.job.wait()
            self._session.probe.overhead_s += time.perf_counter() - begun
            record = send.record
        else:  # never begun, or before this was attached
            record = None if good else self._open(Op.SEND, end.link, sending)
        if record is None:
            return
        record.duration_us = took * 1e6
        if not good:
            record.skip = record.skip or SkipReason.FAILED
        self._push(record, COMPLETE if good else NOT_TAKEN, "ok" if good else reason)

    def _received(self, end: DecodeEnd, receiving: Receiving) -> Job | None:
        """Digest at once what the next token may change; the rest is for the thread beside."""
        took = time.monotonic() - receiving.began
        generation, pages = end.generation, receiving.pages
        if generation is None:  # nobody could tell a page from its next life
            record = self._open(Op.RECV, end.link, receiving)
            self._digest(record)
            record.duration_us = took * 1e6
            self._push(record, COMPLETE, "ok")
            return None
        first = self._rewritten(end.link, receiving)
        lives = generation(pages)

        def rest() -> None:
            record = first or self._open(Op.RECV, end.link, receiving)
            self._tiles.digest(record, rewritten=False)
            record.duration_us = took * 1e6
            record.reused = record.chosen & (generation(pages) != lives)
            self._push(record, COMPLETE, "ok")
            self._tiles.say(record)

        job = Job(rest)
        self._held.hold(end, pages, job)
        return job

    def _rewritten(self, link: Link, receiving: Receiving) -> HandoverRecord | None:
        """A record with the tiles that the next token may change, if there are any."""
        geometries = [mirror.device.geometry for mirror in link.group.mirrors]
        full = receiving.tokens % link.group.page_tokens == 0
        if full or all(geometry.single_slots for geometry in geometries):
            return None
        record = self._open(Op.RECV, link, receiving)
        self._tiles.digest(record, rewritten=True)
        return record

    def _digest(self, record: HandoverRecord) -> None:
        """All that is chosen of a request, and say so."""
        self._tiles.digest(record)
        self._tiles.say(record)

    def _failed(self, end: DecodeEnd, receiving: Receiving, reason: str) -> None:
        """What a lost peer left in the pages is stated: it says which tiles had arrived."""
        lost = bool(end.lost) and receiving.state is RecvState.GRANTED
        record = self._open(Op.RECV, end.link, receiving, None if lost else SkipReason.FAILED)
        self._digest(record)
        record.skip = record.skip or SkipReason.FAILED
        self._push(record, LOST if lost else NOT_TAKEN, reason)

    def _push(self, record: HandoverRecord, word: str, status: str) -> None:
        record.word, record.status, record.time_ns = word, status, time.time_ns()
        if not record.duration_us:
            record.duration_us = (time.perf_counter() - record.began) * 1e6
        if record.mirrors:
            self._session.bus.push(record)


def _trace() -> tuple[str, str]:
    """Trace and span id of the caller's own OpenTelemetry span, empty where there is none."""
    span = current_span()
    return (f"{span[0]:032x}", f"{span[1]:016x}") if span is not None else ("", "")


def handover_of(runtime: Runtime) -> HandoverAttachment:
    """The one of a runtime whose process hands pages over.

    Raises:
        TypeError: it is attached to another system, or was started before this one was imported.
    """
    found = getattr(runtime.attachment, "handover", None)
    if not isinstance(found, HandoverAttachment):
        raise TypeError(f"{type(runtime.attachment).__name__} follows no handover")
    return found
