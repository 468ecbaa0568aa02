"""Attachment to the handover of ``hicache_dbg.pools``: what prefill sends, and what decode receives.

Both ends state digests under (request, logical page, layer), for a join of both recordings: neither
sees the other's bytes. A thread of its own digests prefill's tiles, from the offer on, while other
requests are written; no write begins before its tiles are digested, so that a page which changes under
it is seen. At decode a small request, and of a large one the last page, which the next token may go
into, is digested after the notification and before the request is admitted; a large one's other pages,
which nobody writes, beside whoever reads them, if their generation tells whether they had another life
by then; whoever frees one before waits a little.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Self

import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd, Receiving, RecvState
from hicache_dbg.pools.handover.errors import ContractRefused
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.messages import Hello
from hicache_dbg.pools.handover.prefill import PrefillEnd, Sending, SendState
from hicache_dbg.pools.host import Mirror
from hicache_dbg.tracer.attach.hicache_handover_held import HeldPages
from hicache_dbg.tracer.attach.hicache_handover_record import (
    HandoverRecord,
    TileStatements,
    open_record,
)
from hicache_dbg.tracer.attach.hicache_handover_views import KnownViews, current
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.requests import current_span
from hicache_dbg.tracer.checks.contract import compare_fields
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Finding, Op, SkipReason, Topic
from hicache_dbg.tracer.ledger import Flags
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import Session

__all__ = ["HandoverAttachment", "handover_of"]

Views = Callable[[Mirror], MirrorViews]
#: A request of no more bytes is digested at once; a larger one keeps nobody waiting.
AT_ONCE_BYTES = 8 << 20
COMPLETE, NOT_TAKEN, LOST = "complete", "not taken over", "peer lost"


class HandoverAttachment:
    """Wraps the methods of both ends through which a request's pages go from one to the other.

    ``attach`` and ``detach`` are a symmetric, idempotent pair. Also a context manager.
    """

    def __init__(self, session: Session, views: Views | None = None) -> None:
        self._session = session
        self._views = views or KnownViews()
        self._patches = Patches()
        self._digester = TileDigester()
        self._under_way: dict[int, HandoverRecord] = {}  # by identity of the sending
        self._beside: ThreadPoolExecutor | None = None
        self._held = HeldPages()

    def attach(self) -> None:
        """Wrap what is not wrapped yet."""
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "hicache-digest")
        self._patches.replace(Link, "agree", self._around_agree)
        self._patches.replace(PrefillEnd, "offer", self._around_offer)
        self._patches.replace(PrefillEnd, "post", self._around_post)
        self._patches.replace(PrefillEnd, "finish", self._around_finish)
        self._patches.replace(DecodeEnd, "landed", self._around_landed)
        self._patches.replace(DecodeEnd, "fail", self._around_fail)
        self._patches.replace(PageAllocator, "free", self._around_free)

    def detach(self) -> None:
        """Put the engine's own functions back, and finish what is being digested."""
        self._patches.undo()
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.shutdown()
        self._under_way.clear()

    def settle(self) -> None:
        """Wait until everything that was to be digested so far has been."""
        if self._beside is not None:
            self._beside.submit(_nothing).result()

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- what is wrapped ----------------------------------------------------------------------

    def _around_agree(self, original: Callable[..., Hello]) -> Callable[..., Hello]:
        def agree(link: Link) -> Hello:
            with self._session.errors.at("handover/contract"):
                for field, value in link.ours.contract.items():
                    if "." not in field:  # the rest is in the mirrors' geometry
                        self._session.state(Topic.CONTRACT, (value,), role=link.role, key=field)
            try:
                return original(link)
            except ContractRefused as refused:
                with self._session.errors.at("handover/contract"):
                    self._refused(link, refused)
                raise

        return agree

    def _around_offer(self, original: Callable[..., None]) -> Callable[..., None]:
        def offer(end: PrefillEnd, sending: Sending) -> None:
            if sending.trace == ("", ""):
                with self._session.errors.at("handover/trace"):
                    sending.trace = _trace()
            with self._session.errors.at("handover/offer"):
                record = self._open(Op.SEND, end.link, sending)
                record.pending = self._later(lambda: self._digest(record, record.chosen))
                self._under_way[id(sending)] = record
            original(end, sending)

        return offer

    def _around_post(self, original: Callable[..., None]) -> Callable[..., None]:
        def post(end: PrefillEnd, sending: Sending) -> None:
            begun = time.perf_counter()
            with self._session.errors.at("handover/post"):
                record = self._under_way.get(id(sending))
                if record is not None and record.pending is not None:
                    record.pending.result()  # what was offered while others were written is there
                    record.began = time.perf_counter()
                    self._session.probe.overhead_s += record.began - begun
            original(end, sending)

        return post

    def _around_finish(self, original: Callable[..., None]) -> Callable[..., None]:
        def finish(end: PrefillEnd, sending: Sending, state: SendState, reason: str = "") -> None:
            with self._session.errors.at("handover/finish"):
                good = state is SendState.DONE
                record = self._under_way.pop(id(sending), None)
                if record is not None:
                    record.duration_us = (time.perf_counter() - record.began) * 1e6
                    if record.pending is not None:
                        record.pending.result()  # after this the pages are the engine's again
                    if not good:
                        record.skip = record.skip or SkipReason.FAILED
                    self._push(record, COMPLETE if good else NOT_TAKEN, "ok" if good else reason)
            original(end, sending, state, reason)

        return finish

    def _around_landed(self, original: Callable[..., None]) -> Callable[..., None]:
        def landed(end: DecodeEnd, receiving: Receiving) -> None:
            begun = time.perf_counter()
            with self._session.errors.at("handover/landed"):
                record = self._open(Op.RECV, end.link, receiving)
                record.duration_us = (time.monotonic() - receiving.began) * 1e6
                self._landed(end, record)
                self._session.probe.overhead_s += time.perf_counter() - begun
            original(end, receiving)

        return landed

    def _landed(self, end: DecodeEnd, record: HandoverRecord) -> None:
        """Digest at once what may change next, the rest later."""
        now = record.chosen.copy()
        generation = end.generation if record.bytes > AT_ONCE_BYTES else None
        if generation is not None:
            now[:-1] = False
        before = generation(record.pages) if generation is not None else None
        self._digest(record, now, say=False)

        def rest() -> None:
            self._digest(record, record.chosen & ~now, say=False)
            if generation is not None:
                record.reused = generation(record.pages) != before
                record.reused[-1:] = False
            self._push(record, COMPLETE, "ok")
            self._say_tiles(record)

        if now.all():
            rest()
        else:
            self._held.hold(end, record.pages, self._later(rest))

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
        layers = {
            mirror.name: tuple(mirror.device.geometry.layer_ids) for mirror in link.group.mirrors
        }
        return open_record(
            one,
            op=op,
            role=link.role,
            mirrors=mirrors,
            layers=layers,
            settings=settings,
            skip=skip,
        )

    def _later(self, work: Callable[[], None]) -> Future[None] | None:
        """Have it done beside the engine, after what was asked for before."""

        def guarded() -> None:
            with self._session.errors.at("handover/beside"):
                work()

        beside = self._beside
        return beside.submit(guarded) if beside is not None else None

    def _digest(self, record: HandoverRecord, which: Flags, *, say: bool = True) -> None:
        """Those tiles of this end that are in these logical pages; and say so."""
        if record.skip is not None:
            return
        for mirror in record.mirrors:
            for component, view in mirror.device.items():
                digests = record.room(mirror.pool, component, view.layers)
                with current(view.device):
                    layers = tuple(range(view.layers))
                    found = self._digester.digest(view, layers, record.pages[which])
                    self._digester.join()
                digests[:, which] = found
        if say:
            self._say_tiles(record)

    def _say_tiles(self, record: HandoverRecord) -> None:
        record.time_ns = time.time_ns()
        if record.digests:
            self._session.bus.push(TileStatements(record))

    def _failed(self, end: DecodeEnd, receiving: Receiving, reason: str) -> None:
        """What a lost peer left in the pages is stated: it says which tiles had arrived."""
        lost = bool(end.lost) and receiving.state is RecvState.GRANTED
        record = self._open(Op.RECV, end.link, receiving, None if lost else SkipReason.FAILED)
        self._digest(record, record.chosen)
        record.skip = record.skip or SkipReason.FAILED
        self._push(record, LOST if lost else NOT_TAKEN, reason)

    def _push(self, record: HandoverRecord, word: str, status: str) -> None:
        record.word, record.status, record.time_ns = word, status, time.time_ns()
        if not record.duration_us:
            record.duration_us = (time.perf_counter() - record.began) * 1e6
        if record.mirrors:
            self._session.bus.push(record)

    def _refused(self, link: Link, refused: ContractRefused) -> None:
        """One finding a pool, at prefill: of both ends' recordings a join makes it as well."""
        if link.role != "prefill":
            return
        by_pool: dict[str, list[dict[str, str]]] = {}
        for name, *values in refused.differences:
            pool, _, field = name.rpartition(".") if "." in name else ("", "", name)
            pool, _, component = pool.partition(".")
            ends = by_pool.setdefault(pool, [{}, {}])
            for end, value in zip(ends, values, strict=True):
                end[f"{component}.{field}" if component else field] = value
        now = time.time_ns()

        def found() -> list[Finding]:
            return [
                finding
                for pool, ends in by_pool.items()
                for finding in compare_fields(pool, ends[0], ends[1], time_ns=now)
            ]

        self._session.check(found)


def _nothing() -> None:
    """Do nothing, in its turn."""


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
