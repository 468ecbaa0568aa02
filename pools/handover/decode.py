"""Decode's end of a handover: it lends pages to a request and admits it once they are written."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import numpy as np

from hicache_dbg.pools.forks import FORKED, left_to_parent
from hicache_dbg.pools.handover.errors import PeerLost, Refused
from hicache_dbg.pools.handover.frames import POLL_S
from hicache_dbg.pools.handover.link import IDLE_S, Link, Pump
from hicache_dbg.pools.handover.messages import Abort, Ended, Landed, Message, Offer, Room, decode
from hicache_dbg.pools.handover.quarantine import Quarantine
from hicache_dbg.pools.handover.requests import Generation, Receiving, RecvState
from hicache_dbg.pools.indices import Ids

__all__ = ["DecodeEnd"]

Free = Callable[[Ids], None]


class DecodeEnd:
    """Takes requests over. Every method is thread-safe, and only :meth:`wait` blocks.

    In a forked child the handover is still the parent's: it refuses requests, and closing it does
    nothing.

    When a request has landed, its pages belong to the engine again. The pages of a failed request
    stay in quarantine until prefill can no longer write them, and are then passed to ``free`` on the
    pump's thread. That is the case when

    - the transfer's notification has arrived, which follows its last byte;
    - or prefill states that it wrote nothing and will not;
    - or this end has closed its wire, and prefill has released its transfer or is gone.

    Args:
        link: The connection to prefill; its contract must be agreed on.
        free: Takes back pages that can no longer be written.
        generation: Returns how often each page was allocated. It tells an observer that looks later
            whether a page was reallocated meanwhile.
        pump: Run :meth:`step` on a thread; otherwise the caller does.
    """

    def __init__(
        self, link: Link, free: Free, *, generation: Generation | None = None, pump: bool = True
    ) -> None:
        if link.theirs is None:
            raise ValueError("the contract was not agreed on; call Link.agree first")
        self.lost = ""
        self.generation = generation
        self._link = link
        self._free = free
        self._changed = threading.Condition()
        self._expected: dict[str, Receiving] = {}
        self._offers: dict[str, Offer] = {}
        self._granted: dict[int, Receiving] = {}
        self._held = Quarantine()
        left_to_parent(self)
        self._pump = Pump(self.step, self._lose, "hicache-decode", link.device) if pump else None

    def leave_to_parent(self) -> None:
        """Give every request up in a forked child. Its pages are the parent's, and none is freed."""
        self._changed = threading.Condition()
        self.lost = f"the handover {FORKED}"
        for receiving in self._waiting():
            receiving.reason, receiving.state = self.lost, RecvState.FAILED
        self._expected.clear()
        self._granted.clear()
        self._held.release_all()

    @property
    def link(self) -> Link:
        """The connection to prefill."""
        return self._link

    @property
    def quarantined(self) -> Ids:
        """Pages of failed requests that prefill may still write."""
        with self._changed:
            return self._held.pages

    @property
    def receiving(self) -> bool:
        """Whether prefill may be writing pages here at this moment."""
        return bool(self._granted)

    # -- what the engine calls -------------------------------------------------------------------

    def expect(self, request: str, pages: Ids, tokens: int) -> Receiving:
        """Expect a request of ``tokens`` tokens, and lend it ``pages`` until it has landed."""
        receiving = Receiving(request, np.array(pages, np.int64), tokens)
        with self._changed:
            if self.lost:
                raise PeerLost(self.lost)
            if request in self._expected:
                raise ValueError(
                    f"request {request} is expected already; give each a name of its own"
                )
            self._expected[request] = receiving
            offer = self._offers.pop(request, None)
            if offer is not None:
                receiving.attempt, receiving.trace = offer.attempt, offer.trace
        if offer is not None:
            self._answer(receiving, offer)
        return receiving

    def wait(self, receiving: Receiving, timeout: float) -> None:
        """Block until every byte has arrived.

        Raises:
            HandoverError: The handover failed, or was aborted after ``timeout`` seconds.
        """
        with self._changed:
            landed = self._changed.wait_for(lambda: receiving.over, timeout)
        if not landed:
            self.abort(receiving, f"not written within {timeout:g} s")
        if receiving.state is not RecvState.LANDED:
            kind = PeerLost if self.lost else Refused
            raise kind(f"request {receiving.request}: {receiving.reason}")

    def abort(self, receiving: Receiving, reason: str) -> None:
        """Give the request up; its pages are freed once they can no longer be written."""
        with self._changed:
            if receiving.over:
                return
        if receiving.attempt:
            self._link.channel.tell(Abort(attempt=receiving.attempt, reason=reason))
        self.fail(receiving, reason)

    def close(self, timeout: float = 5.0) -> None:
        """Abort what has not landed, and close the link, in bounded time.

        Pages that prefill has not stopped writing by then stay in quarantine.
        """
        until = time.monotonic() + timeout
        for receiving in self._waiting():
            self.abort(receiving, "decode is closing")
        if self._pump is not None and not self._pump.close(timeout):
            return
        self._lose("this end was closed")
        while self._link.channel.is_open and (left := until - time.monotonic()) > 0:
            self._await_end(left)
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the pump --------------------------------------------------------------------------------

    def step(self, patience: float = 0.0) -> float:
        """Listen for at most ``patience`` seconds and process arrivals; returns the next patience.

        Prefill's messages wake it, including the one behind a write; the notification may come later.
        """
        if self.lost:
            self._await_end(patience)
            return IDLE_S
        try:
            message = self._link.channel.receive(patience)
            while message is not None:
                self._hear(message)
                if self.lost:
                    return IDLE_S
                message = self._link.channel.receive()
            self._link.channel.keep()
        except PeerLost as error:
            self._notifications()  # what landed before counts
            self._lose(str(error))
            return IDLE_S
        if self._granted:
            self._notifications()
        return POLL_S if self._granted else IDLE_S

    def grant(self, receiving: Receiving) -> None:
        """Tell prefill the pages of a request, which it may write from now on."""
        with self._changed:
            given_up = receiving.reason
            if not given_up:
                receiving.state, receiving.began = RecvState.GRANTED, time.monotonic()
                self._granted[receiving.attempt] = receiving
        said: Message = Room(attempt=receiving.attempt, pages=tuple(receiving.pages.tolist()))
        if given_up:
            said = Abort(attempt=receiving.attempt, reason=given_up)
        self._link.channel.tell(said)

    def landed(self, receiving: Receiving) -> None:
        """Mark a request as landed: every byte has arrived, and the engine may read."""
        with self._changed:
            if not receiving.reason:
                receiving.state = RecvState.LANDED
                self._expected.pop(receiving.request, None)
                self._changed.notify_all()
        self._release(receiving.attempt)  # in case it was given up meanwhile

    def fail(self, receiving: Receiving, reason: str) -> None:
        """Decide that a request fails, unless it is decided already."""
        with self._changed:
            if receiving.over or receiving.reason:
                return
            receiving.reason = reason or "no reason was given"
        self.failed(receiving)

    def failed(self, receiving: Receiving) -> None:
        """Mark a request as failed, once, and quarantine its pages if prefill may write them."""
        with self._changed:
            written = receiving.attempt in self._granted
            if written:
                self._held.hold(receiving.attempt, receiving.pages)
            receiving.state = RecvState.FAILED
            self._expected.pop(receiving.request, None)
            self._changed.notify_all()
        if not written:
            self._free(receiving.pages)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Offer):
            self._offered(message)
        elif isinstance(message, Ended):
            self._ended(message)
        elif isinstance(message, Abort):
            self._withdrawn(message)

    def _offered(self, offer: Offer) -> None:
        """Answer an offer if its request is expected; keep it otherwise."""
        name = offer.request
        with self._changed:
            receiving = self._expected.get(name)
            twice = bool(receiving.attempt) if receiving is not None else name in self._offers
            if not twice and receiving is None:
                self._offers[name] = offer
            elif not twice and receiving is not None:
                receiving.attempt, receiving.trace = offer.attempt, offer.trace
        if twice:
            # Of two writes into one request's pages, the later one would land after the admission.
            reason = f"request {name} is offered already; give each a name of its own"
            self._link.channel.tell(Abort(attempt=offer.attempt, reason=reason))
        elif receiving is not None:
            self._answer(receiving, offer)

    def _answer(self, receiving: Receiving, offer: Offer) -> None:
        """Grant pages for an offer, if both ends agree on the counts."""
        counts = (offer.pages, offer.tokens), (len(receiving.pages), receiving.tokens)
        if counts[0] != counts[1]:
            (pages, tokens), (ours, mine) = counts
            reason = (
                f"prefill hands over {pages} pages for {tokens} tokens, decode expects {ours} pages for "
                f"{mine} tokens"
            )
            self._link.channel.tell(Abort(attempt=offer.attempt, reason=reason))
            self.fail(receiving, reason)
            return
        self.grant(receiving)

    def _withdrawn(self, message: Abort) -> None:
        """Prefill withdraws a request. A write it has begun lands nevertheless."""
        with self._changed:
            waiting = [one for one in self._expected.values() if one.attempt == message.attempt]
            self._offers = {
                name: offer
                for name, offer in self._offers.items()
                if offer.attempt != message.attempt
            }
        for receiving in waiting:
            self.fail(receiving, message.reason)
        if message.attempt not in self._granted:  # no pages were granted: nothing is under way
            self._link.channel.tell(message)

    def _ended(self, message: Ended) -> None:
        receiving = self._granted.get(message.attempt)
        if message.torn:
            self._notifications()  # what landed before counts
            self._lose(message.reason)  # its other writes end when it closes its end, as it will
        elif receiving is not None:
            self.fail(receiving, message.reason)
            self._release(message.attempt)

    def _notifications(self) -> None:
        for note in self._link.wire.notes():
            told = decode(note)
            receiving = self._granted.get(getattr(told, "attempt", 0))
            if not isinstance(told, Landed) or receiving is None:
                continue
            if receiving.over:
                self._release(told.attempt)
            else:
                self.landed(receiving)

    def _release(self, attempt: int) -> None:
        with self._changed:
            self._granted.pop(attempt, None)
            pages = self._held.release(attempt)
        if pages.size:
            self._free(pages)

    def _release_all(self) -> None:
        with self._changed:
            self._granted.clear()
            pages = self._held.release_all()
        if pages.size:
            self._free(pages)

    def _waiting(self) -> list[Receiving]:
        with self._changed:
            return list(self._expected.values())

    def _lose(self, reason: str) -> None:
        """Give the peer up, and tell it. Quarantined pages are freed at once only if it is gone."""
        with self._changed:
            if self.lost:
                return
            self.lost = reason = reason or "no reason was given"
        self._link.wire.close()
        self._link.channel.hang_up(reason)
        for receiving in self._waiting():
            self.fail(receiving, reason)
        if not self._link.channel.is_open:
            self._release_all()

    def _await_end(self, patience: float) -> None:
        """Wait for a lost peer to end: it may continue writing until its end of the channel is closed."""
        if not self._link.channel.is_open:
            time.sleep(patience)
            return
        message = None
        with suppress(PeerLost):
            message = self._link.channel.receive(patience)
        if isinstance(message, Ended) and not message.torn:
            self._release(message.attempt)
        if not self._link.channel.is_open:
            self._release_all()
