"""The end that goes on with a request: gives pages for it, and admits it when they are written."""

import threading
import time
from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.handover.channel import POLL_S
from hicache_dbg.pools.handover.errors import PeerLost, Refused
from hicache_dbg.pools.handover.link import IDLE_S, Link, Pump
from hicache_dbg.pools.handover.messages import Abort, Ended, Landed, Message, Offer, Room, decode
from hicache_dbg.pools.handover.quarantine import Quarantine
from hicache_dbg.pools.handover.requests import Receiving, RecvState
from hicache_dbg.pools.indices import Ids

__all__ = ["DecodeEnd"]

Free = Callable[[Ids], None]
Generation = Callable[[Ids], npt.NDArray[np.uint32]]


class DecodeEnd:
    """Takes requests over; every method is safe from any thread, and none but ``wait`` waits.

    The pages of a request that landed are the engine's again. Those of one that failed are not:
    they are kept until prefill can write them no more, and then given to ``free``, on the pump's
    thread. That is so when

    - the transfer's notification came: its last byte was written before;
    - or prefill says that it wrote nothing, and will not;
    - or this end has closed its wire, and prefill has released its transfer or is gone.

    Args:
        link: to prefill; its contract must be agreed on.
        free: takes pages back that nobody writes any more.
        generation: how often each page was handed out, for whoever looks at pages later and must
            tell a page from its next life.
        pump: look after transfers on a thread of its own; else the caller calls :meth:`step`.
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
        self._pump = Pump(self.step, self._lose, "hicache-decode", link.device) if pump else None

    @property
    def link(self) -> Link:
        """The pair of channel and wire."""
        return self._link

    @property
    def quarantined(self) -> Ids:
        """Pages of failed requests that prefill may still write."""
        with self._changed:
            return self._held.pages

    # -- what the engine calls -------------------------------------------------------------------

    def expect(self, request: str, pages: Ids, tokens: int) -> Receiving:
        """Lend ``pages`` to a request of ``tokens`` tokens, until it has landed."""
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
            self._answer(receiving, offer)
        return receiving

    def wait(self, receiving: Receiving, timeout: float) -> None:
        """Until every byte is there.

        Raises:
            HandoverError: it did not come about, and why; after ``timeout`` seconds it is aborted.
        """
        with self._changed:
            landed = self._changed.wait_for(lambda: receiving.over, timeout)
        if not landed:
            self.abort(receiving, f"not written within {timeout:g} s")
        if receiving.state is RecvState.FAILED:
            kind = PeerLost if self.lost else Refused
            raise kind(f"request {receiving.request}: {receiving.reason}")

    def abort(self, receiving: Receiving, reason: str) -> None:
        """Do not wait for it any more; its pages are freed when nobody can write them."""
        with self._changed:
            if receiving.over:
                return
        if receiving.attempt:
            self._say(Abort(attempt=receiving.attempt, reason=reason))
        self.fail(receiving, reason)

    def close(self, timeout: float = 5.0) -> None:
        """Abort what has not landed, and leave, in bounded time."""
        for receiving in self._waiting():
            self.abort(receiving, "decode is closing")
        if self._pump is None or self._pump.close(timeout):
            self._lose("this end was closed")
            self._release_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the pump --------------------------------------------------------------------------------

    def step(self, patience: float = 0.0) -> float:
        """Listen for ``patience`` seconds at most and look for what landed; how long to listen next.

        A word of prefill's wakes it, also when a write is done. The notification may come later.
        """
        if self.lost:
            self._await_end(patience)
            return IDLE_S
        try:
            message = self._link.channel.receive(patience)
            while message is not None:
                self._hear(message)
                message = self._link.channel.receive()
            self._link.channel.keep()
        except PeerLost as error:
            self._notifications()  # what landed before counts
            self._lose(str(error))
            return IDLE_S
        if self._granted:
            self._notifications()
        return POLL_S if self._granted else IDLE_S

    def landed(self, receiving: Receiving) -> None:
        """Every byte is there: the engine may read."""
        with self._changed:
            if not receiving.over:
                receiving.state = RecvState.LANDED
                self._expected.pop(receiving.request, None)
                self._changed.notify_all()
        self._release(receiving.attempt)  # where it was given up meanwhile

    def fail(self, receiving: Receiving, reason: str) -> None:
        """A request is given up."""
        with self._changed:
            if receiving.over:
                return
            granted = receiving.state is RecvState.GRANTED
            if granted:
                self._held.hold(receiving.attempt, receiving.pages)
            receiving.state, receiving.reason = RecvState.FAILED, reason
            self._expected.pop(receiving.request, None)
            self._changed.notify_all()
        if not granted:
            self._free(receiving.pages)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Offer):
            with self._changed:
                receiving = self._expected.get(message.request)
                if receiving is None:
                    self._offers[message.request] = message
            if receiving is not None:
                self._answer(receiving, message)
        elif isinstance(message, Ended):
            self._ended(message)
        elif isinstance(message, Abort):
            self._withdrawn(message)

    def _answer(self, receiving: Receiving, offer: Offer) -> None:
        """Give room for an offer, if both ends count alike."""
        receiving.attempt, receiving.trace = offer.attempt, offer.trace
        counts = (offer.pages, offer.tokens), (len(receiving.pages), receiving.tokens)
        if counts[0] != counts[1]:
            (pages, tokens), (ours, mine) = counts
            reason = (
                f"prefill hands over {pages} pages for {tokens} tokens, decode expects {ours} pages for "
                f"{mine} tokens"
            )
            self._say(Abort(attempt=offer.attempt, reason=reason))
            self.fail(receiving, reason)
            return
        with self._changed:
            receiving.state, receiving.began = RecvState.GRANTED, time.monotonic()
            self._granted[offer.attempt] = receiving
        self._say(Room(attempt=offer.attempt, pages=tuple(receiving.pages.tolist())))

    def _withdrawn(self, message: Abort) -> None:
        """Prefill does not want it any more; what it has begun to write will land all the same."""
        with self._changed:
            waiting = [one for one in self._expected.values() if one.attempt == message.attempt]
            self._offers = {
                name: offer
                for name, offer in self._offers.items()
                if offer.attempt != message.attempt
            }
        for receiving in waiting:
            self.fail(receiving, message.reason)
        if message.attempt not in self._granted:  # no room was given: nothing is under way
            self._say(message)

    def _ended(self, message: Ended) -> None:
        receiving = self._granted.get(message.attempt)
        if message.torn:
            self._lose(message.reason)
            self._release_all()  # its handle is released, and the wire is closed
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

    def _say(self, message: Message) -> None:
        try:
            self._link.channel.send(message)
        except PeerLost:
            return  # who listens will hear of it as well

    def _lose(self, reason: str) -> None:
        """Nothing more comes from this peer; its pages are free at once only where it is gone."""
        with self._changed:
            if self.lost:
                return
            self.lost = reason
        self._link.wire.close()
        for receiving in self._waiting():
            self.fail(receiving, reason)
        if not self._link.channel.is_open:
            self._release_all()

    def _await_end(self, patience: float) -> None:
        """A silent peer may wake up and write on: only its end, or its word, frees the pages."""
        if not self._link.channel.is_open:
            time.sleep(patience)
            return
        try:
            message = self._link.channel.receive(patience)
        except PeerLost:
            self._release_all()
            return
        if isinstance(message, Ended):
            self._release(message.attempt)
