"""Prefill's end of a handover: it offers a request, and writes its pages where decode says."""

import threading
import time
from itertools import count
from typing import Self

import numpy as np

from hicache_dbg.pools.forks import FORKED, left_to_parent
from hicache_dbg.pools.handover.errors import HandoverError, PeerLost, Refused
from hicache_dbg.pools.handover.link import IDLE_S, Link, Pump
from hicache_dbg.pools.handover.messages import Abort, Ended, Landed, Message, Offer, Room, encode
from hicache_dbg.pools.handover.planes import descriptors_of
from hicache_dbg.pools.handover.requests import Generation, Sending, SendState
from hicache_dbg.pools.indices import Ids

__all__ = ["PrefillEnd"]

#: The longest a transfer may take, in seconds.
WRITE_TIMEOUT_S = 60.0
#: How long the pump listens at a time while a write is under way, in seconds.
WRITING_S = 0.0002


class PrefillEnd:
    """Hands requests over. Every method is thread-safe, and only :meth:`wait` blocks.

    In a forked child the handover is still the parent's: it refuses requests, and closing it does
    nothing.

    Args:
        link: The connection to decode; its contract must be agreed on.
        generation: Returns how often each page was allocated. It tells an observer whether a page was
            reallocated before its request was over.
        write_timeout_s: A transfer that takes longer is released, and the peer given up.
        pump: Run :meth:`step` on a thread; otherwise the caller does.
    """

    def __init__(
        self,
        link: Link,
        *,
        generation: Generation | None = None,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        pump: bool = True,
    ) -> None:
        if link.theirs is None:
            raise ValueError("the contract was not agreed on; call Link.agree first")
        self.lost = ""
        self.generation = generation
        self._link = link
        self._theirs = link.theirs
        self._timeout = write_timeout_s
        self._attempts = count(1)
        self._changed = threading.Condition()
        self._sendings: dict[int, Sending] = {}
        left_to_parent(self)
        self._pump = Pump(self.step, self._lose, "hicache-prefill", link.device) if pump else None

    def leave_to_parent(self) -> None:
        """Give every request up in a forked child; the parent goes on with them."""
        self._changed = threading.Condition()
        self.lost = f"the handover {FORKED}"
        for sending in self._open():
            sending.reason, sending.state = self.lost, SendState.FAILED
        self._sendings.clear()

    @property
    def link(self) -> Link:
        """The connection to decode."""
        return self._link

    # -- what the engine calls -------------------------------------------------------------------

    def send(
        self, request: str, pages: Ids, tokens: int, trace: tuple[str, str] = ("", "")
    ) -> Sending:
        """Offer a computed request. Its pages must not change until it is over.

        Raises:
            PeerLost: The peer is gone.
            ValueError: A page is none of this end's.
        """
        own = np.array(pages, np.int64)
        most = self._link.ours.pages
        outside = own[(own < 0) | (own >= most)]
        if outside.size:
            raise ValueError(
                f"request {request}: {outside.size} of {own.size} pages, the first {outside[0]}, outside "
                f"of this end's 0..{most - 1}"
            )
        with self._changed:
            if self.lost:
                raise PeerLost(self.lost)
            sending = Sending(next(self._attempts), request, own, tokens, trace)
            self._sendings[sending.attempt] = sending
        self.offer(sending)
        return sending

    def offer(self, sending: Sending) -> None:
        """Send the offer to decode."""
        said = Offer(
            attempt=sending.attempt,
            request=sending.request,
            pages=len(sending.pages),
            tokens=sending.tokens,
            trace=sending.trace,
        )
        self._link.channel.tell(said)

    def wait(self, sending: Sending, timeout: float) -> None:
        """Block until the request is over.

        Raises:
            HandoverError: The handover failed, or was aborted after ``timeout`` seconds.
        """
        with self._changed:
            over = self._changed.wait_for(lambda: sending.over, timeout)
        if not over:
            self.abort(sending, f"not taken over within {timeout:g} s")
            if sending.state is not SendState.DONE:  # as it may be by now
                raise HandoverError(
                    f"request {sending.request}: not taken over within {timeout:g} s"
                )
        if sending.state is SendState.FAILED:
            kind = PeerLost if self.lost else Refused
            raise kind(f"request {sending.request}: {sending.reason}")

    def abort(self, sending: Sending, reason: str) -> None:
        """Give the request up. A write under way runs to its end, since its bytes may be landing."""
        with self._changed:
            if sending.over or sending.unwanted:
                return
            sending.unwanted = reason
        self._link.channel.tell(Abort(attempt=sending.attempt, reason=reason))

    def close(self, timeout: float = 5.0) -> None:
        """Abort what is not over, wait for writes under way, and close the link, in bounded time."""
        with self._changed:
            for sending in self._open():
                self.abort(sending, "prefill is closing")
            if self._pump is not None:
                self._changed.wait_for(lambda: not self._open(), timeout)
        if self._pump is None or self._pump.close(timeout):
            self._lose("this end was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the pump --------------------------------------------------------------------------------

    def step(self, patience: float = 0.0) -> float:
        """Process one message and poll the writes; returns the patience for the next call.

        ``patience`` is the longest wait for a message, in seconds.

        One message at a time: a message may start a write, by which time the previous write in CPU
        memory is done, and its notification is sent by polling it.
        """
        if self.lost:
            time.sleep(patience)
            return IDLE_S
        try:
            message = self._link.channel.receive(patience)
            if message is not None:
                self._hear(message)
            self._link.channel.keep()
        except PeerLost as error:
            self._lose(str(error))
        for sending in self._writing():
            if not self.lost:  # with one of them, all are given up
                self._look_after(sending)
        return WRITING_S if self._writing() else IDLE_S

    def post(self, sending: Sending) -> None:
        """Prepare and start the transfer of a request: every layer and page of every pool."""
        ours = descriptors_of(self._link.ours.planes, sending.pages, self._link.ours.device)
        theirs = descriptors_of(self._theirs.planes, sending.room, self._theirs.device)
        sending.transfer = self._link.wire.prepare(ours, theirs, encode(_landed(sending)))
        self.begin(sending)

    def begin(self, sending: Sending) -> None:
        """Start the write: from here on the pages are read."""
        sending.began = time.monotonic()
        sending.state = SendState.WRITING
        self._link.wire.begin(sending.transfer)

    def finish(self, sending: Sending, state: SendState, reason: str = "") -> None:
        """Mark a request as over: its pages are no longer read."""
        with self._changed:
            sending.state, sending.reason = state, reason
            self._sendings.pop(sending.attempt, None)
            self._changed.notify_all()

    def _hear(self, message: Message) -> None:
        sending = self._sendings.get(getattr(message, "attempt", 0))
        if isinstance(message, Room):
            self._room(sending, message)
        elif isinstance(message, Abort) and sending is not None:
            sending.unwanted = sending.unwanted or message.reason
            if sending.state is SendState.OFFERED:
                self._never(sending)

    def _room(self, sending: Sending | None, room: Room) -> None:
        if sending is None:
            self._link.channel.tell(Ended(attempt=room.attempt, reason="it is over"))
            return
        if sending.state is not SendState.OFFERED:  # a repeated answer; the write is under way
            return
        outside = [page for page in room.pages if not 0 <= page < self._theirs.pages]
        if outside or len(room.pages) != len(sending.pages):
            sending.unwanted = (
                f"decode gave {len(room.pages)} pages for {len(sending.pages)}, {len(outside)} of them "
                f"outside its 0..{self._theirs.pages - 1}"
            )
        if sending.unwanted:
            self._never(sending)
            return
        sending.room = np.array(room.pages, np.int64)
        try:
            self.post(sending)
        except HandoverError as error:
            if sending.began:
                self._torn(sending, str(error))
            else:  # it could not be prepared: no byte has moved
                sending.unwanted = str(error)
                self._never(sending)

    def _look_after(self, sending: Sending) -> None:
        state = self._link.wire.state(sending.transfer)
        late = time.monotonic() - sending.began > self._timeout
        if state == "DONE":
            self._link.wire.release(sending.transfer)
            self._link.channel.tell(
                _landed(sending)
            )  # decode sleeps on the channel, not on the wire
            if sending.unwanted:
                self.finish(sending, SendState.FAILED, sending.unwanted)
            else:
                self.finish(sending, SendState.DONE)
        elif state == "ERR" or late:
            why = f"took longer than {self._timeout:g} s" if late else "failed"
            self._torn(sending, f"the write {why}")

    def _never(self, sending: Sending) -> None:
        """Give up a request of which nothing was or will be written."""
        self._link.channel.tell(Ended(attempt=sending.attempt, reason=sending.unwanted))
        self.finish(sending, SendState.FAILED, sending.unwanted)

    def _torn(self, sending: Sending, reason: str) -> None:
        """Give up a request that may be partly written, and with it the peer."""
        self._release(sending)
        self._link.channel.tell(Ended(attempt=sending.attempt, reason=reason, torn=True))
        self.finish(sending, SendState.FAILED, reason)
        self._lose(reason)

    def _release(self, sending: Sending) -> None:
        if sending.transfer is not None:
            try:
                self._link.wire.release(sending.transfer)
            except HandoverError as error:
                sending.reason = str(error)  # closing the wire releases it

    def _open(self) -> list[Sending]:
        return list(self._sendings.values())

    def _writing(self) -> list[Sending]:
        return [sending for sending in self._open() if sending.state is SendState.WRITING]

    def _lose(self, reason: str) -> None:
        """Give the peer up, and release what was under way."""
        with self._changed:
            if self.lost:
                return
            self.lost = reason
        for sending in self._open():
            self._release(sending)
        self._link.close()
        for sending in self._open():
            self.finish(sending, SendState.FAILED, reason)


def _landed(sending: Sending) -> Landed:
    """Return what decode is told of a write: as its notification, and to wake it."""
    return Landed(attempt=sending.attempt, pages=len(sending.pages))
