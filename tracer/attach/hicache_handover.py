"""Attachment to the handover of ``hicache_dbg.pools``: records what prefill sends and decode receives.

Neither end sees the other's bytes, so both record digests under (request, logical page, layer), and a
join of the two recordings compares them. Neither the write nor the reader waits for a digest:

- Prefill's tiles are digested on a thread while they are written. The pages return to the engine when
  that is done.
- Decode's tiles are digested on a second thread after the request was admitted, once nothing more is
  being written, or ``LATEST_S`` after the landing. Freeing a page that is still to be digested waits
  for its digest. The page's generation tells whether it was reallocated nevertheless.
- Of a partly filled last page only the filled slots are digested, because decode appends behind them.
  In a ring, where the next token may overwrite any slot, that page is digested before admission.
"""

import time
from collections.abc import Callable
from typing import Self

import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import ContractRefused
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.messages import Hello
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.requests import Receiving, Sending, SendState
from hicache_dbg.tracer.attach.hicache_handover_beside import Beside
from hicache_dbg.tracer.attach.hicache_handover_contract import refusals, state_contract
from hicache_dbg.tracer.attach.hicache_handover_receipts import Receipts
from hicache_dbg.tracer.attach.hicache_handover_records import Records, Views
from hicache_dbg.tracer.attach.hicache_handover_sends import Sends
from hicache_dbg.tracer.attach.hicache_handover_views import KnownViews
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.requests import current_span
from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import Session

__all__ = ["HandoverAttachment", "handover_of"]


class HandoverAttachment:
    """Wraps the methods of both ends that hand a request over.

    ``attach`` and ``detach`` are a symmetric, idempotent pair. Also a context manager.
    """

    def __init__(self, session: Session, views: Views | None = None) -> None:
        self._session = session
        self._patches = Patches()
        records = Records(session, views or KnownViews())
        self._sent_beside = Beside(session.errors)
        self._received_beside = Beside(
            session.errors
        )  # gives way to writes, which would delay sends
        self._sends = Sends(session, records, self._sent_beside)
        self._receipts = Receipts(records, self._received_beside)
        after_fork(self._forget)  # the requests under way are the parent's, and so are their jobs

    def attach(self) -> None:
        """Wrap the methods that are not wrapped yet."""
        self._sent_beside.start()
        self._received_beside.start()
        self._patches.replace(Link, "agree", self._around_agree)
        self._patches.replace(PrefillEnd, "offer", self._around_offer)
        self._patches.replace(PrefillEnd, "begin", self._around_begin)
        self._patches.replace(PrefillEnd, "finish", self._around_finish)
        self._patches.replace(DecodeEnd, "grant", self._around_grant)
        self._patches.replace(DecodeEnd, "landed", self._around_landed)
        self._patches.replace(DecodeEnd, "failed", self._around_failed)
        self._patches.replace(PageAllocator, "free", self._around_free)

    def detach(self) -> None:
        """Restore the engine's own methods, and finish pending digests."""
        self._patches.undo()
        self._sent_beside.stop()
        self._received_beside.stop()
        self._forget()

    def _forget(self) -> None:
        self._sends.forget()
        self._receipts.forget()

    def settle(self) -> None:
        """Wait until all digests requested so far are taken."""
        self._sent_beside.settle()
        self._received_beside.settle()

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- the wrappers ------------------------------------------------------------------------

    def _around_agree(self, original: Callable[..., Hello]) -> Callable[..., Hello]:
        def agree(link: Link) -> Hello:
            with self._session.errors.at("handover/contract"):
                state_contract(self._session, link)
            try:
                return original(link)
            except ContractRefused as refused:
                with self._session.errors.at("handover/contract"):
                    self._session.tell(refusals(link, refused))
                raise

        return agree

    def _around_offer(self, original: Callable[..., None]) -> Callable[..., None]:
        def offer(end: PrefillEnd, sending: Sending) -> None:
            if sending.trace == ("", ""):
                with self._session.errors.at("handover/trace"):
                    sending.trace = _trace()
            with self._session.errors.at("handover/offered"):
                self._sends.offered(end, sending)
            if end.link.device.type != "cpu":  # launched ahead of the write
                with self._session.errors.at("handover/offer"):
                    self._sends.read(end, sending)
            original(end, sending)

        return offer

    def _around_begin(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(end: PrefillEnd, sending: Sending) -> None:
            with self._session.errors.at("handover/begin"):
                self._sends.read(end, sending)
            original(end, sending)

        return begin

    def _around_finish(self, original: Callable[..., None]) -> Callable[..., None]:
        def finish(end: PrefillEnd, sending: Sending, state: SendState, reason: str = "") -> None:
            with self._session.errors.at("handover/finish"):
                self._sends.sent(end, sending, good=state is SendState.DONE, reason=reason)
            original(end, sending, state, reason)

        return finish

    def _around_grant(self, original: Callable[..., None]) -> Callable[..., None]:
        def grant(end: DecodeEnd, receiving: Receiving) -> None:
            original(end, receiving)
            with self._session.errors.at("handover/grant"):
                self._receipts.granted(end, receiving)

        return grant

    def _around_landed(self, original: Callable[..., None]) -> Callable[..., None]:
        def landed(end: DecodeEnd, receiving: Receiving) -> None:
            begun = time.perf_counter()
            job = None
            with self._session.errors.at("handover/landed"):
                job = self._receipts.landed(end, receiving)
            self._session.probe.overhead_s += time.perf_counter() - begun
            original(end, receiving)
            if job is not None:
                self._receipts.give(receiving, job)

        return landed

    def _around_free(self, original: Callable[..., None]) -> Callable[..., None]:
        def free(allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
            with self._session.errors.at("handover/free"):
                self._receipts.freed(allocator, page_ids)
            original(allocator, page_ids)

        return free

    def _around_failed(self, original: Callable[..., None]) -> Callable[..., None]:
        def failed(end: DecodeEnd, receiving: Receiving) -> None:
            with self._session.errors.at("handover/failed"):
                if receiving.attempt:
                    self._receipts.failed(end, receiving)
            original(end, receiving)

        return failed


def _trace() -> tuple[str, str]:
    """Return trace and span id of the caller's OpenTelemetry span, both empty without one."""
    span = current_span()
    return (f"{span[0]:032x}", f"{span[1]:016x}") if span is not None else ("", "")


def handover_of(runtime: Runtime) -> HandoverAttachment:
    """Return the handover attachment of a runtime.

    Raises:
        TypeError: The runtime is attached to another system, or was started before the handover
            modules were imported.
    """
    found = getattr(runtime.attachment, "handover", None)
    if not isinstance(found, HandoverAttachment):
        raise TypeError(f"{type(runtime.attachment).__name__} follows no handover")
    return found
