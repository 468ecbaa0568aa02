"""The end that has computed pages: offers a request, is told where to, writes it, and says so."""

import threading
import time
from itertools import count
from typing import Self

import numpy as np

from hicache_dbg.pools.handover.errors import HandoverError, PeerLost, Refused
from hicache_dbg.pools.handover.link import IDLE_S, Link, Pump
from hicache_dbg.pools.handover.messages import Abort, Ended, Landed, Message, Offer, Room, encode
from hicache_dbg.pools.handover.planes import descriptors_of
from hicache_dbg.pools.handover.requests import Sending, SendState
from hicache_dbg.pools.indices import Ids

__all__ = ["PrefillEnd"]

#: How long one transfer may take, in seconds.
WRITE_TIMEOUT_S = 60.0
#: How long the pump listens at a time while a write is under way, in seconds.
WRITING_S = 0.0002


class PrefillEnd:
    """Hands requests over; every method is safe from any thread, and none but ``wait`` waits.

    Args:
        link: to decode; its contract must be agreed on.
        write_timeout_s: a transfer that takes longer is released, and the peer given up.
        pump: look after transfers on a thread of its own; else the caller calls :meth:`step`.
    """

    def __init__(
        self, link: Link, *, write_timeout_s: float = WRITE_TIMEOUT_S, pump: bool = True
    ) -> None:
        if link.theirs is None:
            raise ValueError("the contract was not agreed on; call Link.agree first")
        self.lost = ""
        self._link = link
        self._theirs = link.theirs
        self._timeout = write_timeout_s
        self._attempts = count(1)
        self._changed = threading.Condition()
        self._sendings: dict[int, Sending] = {}
        self._pump = Pump(self.step, self._lose, "hicache-prefill", link.device) if pump else None

    @property
    def link(self) -> Link:
        """The pair of channel and wire."""
        return self._link

    # -- what the engine calls -------------------------------------------------------------------

    def send(
        self, request: str, pages: Ids, tokens: int, trace: tuple[str, str] = ("", "")
    ) -> Sending:
        """Offer a request whose pages are computed; they must stay as they are until it is over."""
        with self._changed:
            if self.lost:
                raise PeerLost(self.lost)
            sending = Sending(
                next(self._attempts), request, np.asarray(pages, np.int64), tokens, trace
            )
            self._sendings[sending.attempt] = sending
        self.offer(sending)
        return sending

    def offer(self, sending: Sending) -> None:
        """Tell decode of it."""
        said = Offer(
            attempt=sending.attempt,
            request=sending.request,
            pages=len(sending.pages),
            tokens=sending.tokens,
            trace=sending.trace,
        )
        self._say(said)

    def wait(self, sending: Sending, timeout: float) -> None:
        """Until it is over.

        Raises:
            HandoverError: it did not come about, and why; after ``timeout`` seconds it is aborted.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: sending.over, timeout):
                self.abort(sending, f"not taken over within {timeout:g} s")
                raise HandoverError(
                    f"request {sending.request}: not taken over within {timeout:g} s"
                )
        if sending.state is SendState.FAILED:
            kind = PeerLost if self.lost else Refused
            raise kind(f"request {sending.request}: {sending.reason}")

    def abort(self, sending: Sending, reason: str) -> None:
        """Do not hand it over; a write under way is waited for, for its bytes may be landing."""
        with self._changed:
            if sending.over or sending.unwanted:
                return
            sending.unwanted = reason
        self._say(Abort(attempt=sending.attempt, reason=reason))

    def close(self, timeout: float = 5.0) -> None:
        """Abort what is not over, wait for writes under way, and leave, in bounded time."""
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
        """Hear a word, for ``patience`` seconds at most, and look after writes; how long to listen next.

        One word at a time: it may begin a write, and on a CPU the one before is done by then, whose
        notification goes out when it is looked after.
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
            self._look_after(sending)
        return WRITING_S if self._writing() else IDLE_S

    def post(self, sending: Sending) -> None:
        """The one transfer of a request: every layer and page of every pool."""
        ours = descriptors_of(self._link.ours.planes, sending.pages, self._link.ours.device)
        theirs = descriptors_of(self._theirs.planes, sending.room, self._theirs.device)
        sending.transfer = self._link.wire.prepare(ours, theirs, encode(_landed(sending)))
        self.begin(sending)

    def begin(self, sending: Sending) -> None:
        """From here on its pages are read."""
        sending.began = time.monotonic()
        sending.state = SendState.WRITING
        self._link.wire.begin(sending.transfer)

    def finish(self, sending: Sending, state: SendState, reason: str = "") -> None:
        """A request is over: nothing reads its pages any more."""
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
            self._say(Ended(attempt=room.attempt, reason="it is over"))
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
            self._torn(sending, str(error))

    def _look_after(self, sending: Sending) -> None:
        state = self._link.wire.state(sending.transfer)
        late = time.monotonic() - sending.began > self._timeout
        if state == "DONE":
            self._link.wire.release(sending.transfer)
            self._say(_landed(sending))  # decode sleeps on the channel, not on the wire
            if sending.unwanted:
                self.finish(sending, SendState.FAILED, sending.unwanted)
            else:
                self.finish(sending, SendState.DONE)
        elif state == "ERR" or late:
            why = f"took longer than {self._timeout:g} s" if late else "failed"
            self._torn(sending, f"the write {why}")

    def _never(self, sending: Sending) -> None:
        """Nothing of it was written, and nothing will be."""
        self._say(Ended(attempt=sending.attempt, reason=sending.unwanted))
        self.finish(sending, SendState.FAILED, sending.unwanted)

    def _torn(self, sending: Sending, reason: str) -> None:
        """Part of it may be there: its handle is released, and decode must not read on this wire."""
        self._release(sending)
        self._say(Ended(attempt=sending.attempt, reason=reason, torn=True))
        self.finish(sending, SendState.FAILED, reason)
        self._lose(reason)

    def _release(self, sending: Sending) -> None:
        if sending.transfer is not None:
            try:
                self._link.wire.release(sending.transfer)
            except HandoverError as error:
                sending.reason = str(error)  # it goes with the wire

    def _say(self, message: Message) -> None:
        try:
            self._link.channel.send(message)
        except PeerLost:
            return  # who listens will hear of it as well

    def _open(self) -> list[Sending]:
        return list(self._sendings.values())

    def _writing(self) -> list[Sending]:
        return [sending for sending in self._open() if sending.state is SendState.WRITING]

    def _lose(self, reason: str) -> None:
        """Nothing more goes to this peer; what was under way is let go."""
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
    """What decode is told of a write: behind its last byte, and as a word that wakes it."""
    return Landed(attempt=sending.attempt, pages=len(sending.pages))
