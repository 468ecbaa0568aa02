"""The control channel: messages over a :mod:`multiprocessing` connection, with bounded waits."""

import os
import socket
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from hicache_dbg.pools.forks import FORKED, left_to_parent
from hicache_dbg.pools.handover.errors import PeerLost
from hicache_dbg.pools.handover.frames import MOST_BYTES, FrameError, Frames
from hicache_dbg.pools.handover.messages import Beat, Message, decode, encode

__all__ = ["SILENCE_S", "Channel", "same_host"]

#: A peer that is silent for this long is considered lost, in seconds.
SILENCE_S = 20.0
BEATS_A_SILENCE = 5
#: Most bytes that wait for a peer to read. The ids of all pages of a large pool are a few megabytes.
MOST_UNSENT_BYTES = 4 * MOST_BYTES
#: How long the end of a channel waits for the peer to read the last messages, in seconds.
LINGER_S = 1.0


class Channel:
    """One end of a duplex pipe or a socket.

    Sends a heartbeat after a fifth of ``silence_s`` without other traffic. A closed peer is noticed
    at once; a hanging one, or one that reads nothing, after ``silence_s``. Nothing here waits for the
    peer to read: what its socket has no room for is written by a later :meth:`receive`.

    Attributes:
        is_open: The peer has not closed its end. It may be silent, or speak another format.
    """

    def __init__(self, connection: Connection, silence_s: float = SILENCE_S) -> None:
        self.silence_s = silence_s
        self.is_open = True
        self._connection = connection
        self._frames = Frames(connection)
        self._sending = threading.RLock()
        self._mute = self._deaf = ""  # why nothing more can be sent, or understood
        self._heard = self._said = self._kept = self._read = time.monotonic()
        left_to_parent(self)

    def leave_to_parent(self) -> None:
        """Close a forked child's copy, which would keep the parent's death from the peer."""
        self._sending = threading.RLock()
        self._frames.drop()
        self._mute, self.is_open = f"the channel {FORKED}", False
        self._connection.close()

    def send(self, message: Message) -> None:
        """Send a message, or queue it. Raises :class:`PeerLost` if the peer is gone or does not read."""
        raw = encode(message)
        with self._sending:
            if self._mute:
                raise PeerLost(self._mute)
            if not self._frames.unsent:
                self._read = time.monotonic()
            self._frames.put(raw)
            try:
                self._flush()
                if (unsent := self._frames.unsent) > MOST_UNSENT_BYTES:
                    raise TimeoutError(f"{unsent} bytes wait to be read")
            except OSError as error:
                raise self._muted(error) from error
        self._said = time.monotonic()

    def tell(self, message: Message) -> None:
        """Send a message if the peer is still there; if not, the next :meth:`keep` says so."""
        with suppress(PeerLost):
            self.send(message)

    def receive(self, timeout: float = 0.0) -> Message | None:
        """Return the next message, or None if none is complete within ``timeout`` seconds.

        Raises:
            PeerLost: The other end is closed, or speaks another format. In the latter case later calls
                return None until it is closed.
        """
        self._continue()
        try:
            if self._deaf:
                self._frames.drain(timeout)
                return None
            raw = self._frames.read(timeout)
            message = None if raw is None else decode(raw)
        except (EOFError, OSError) as error:
            raise self._lost(error) from error
        except (FrameError, msgspec.DecodeError) as error:
            self._deaf = f"the other process talks another format: {error}"
            raise PeerLost(self._deaf) from error
        if message is not None:
            self._heard = time.monotonic()
        return message

    def keep(self) -> None:
        """Send a heartbeat if one is due, and what waits for the peer to read.

        Raises:
            PeerLost: The peer has gone silent or does not read. Time in which this end did not run, as
                in a paused container, is not the peer's silence.
        """
        now, beat_s = time.monotonic(), self.silence_s / BEATS_A_SILENCE
        paused_s = max(0.0, now - self._kept - beat_s)
        self._heard, self._kept = min(now, self._heard + paused_s), now
        self._read = min(now, self._read + paused_s)
        self._continue()
        waits = self._frames.unsent
        if waits and now - self._read > self.silence_s:
            with self._sending:
                raise self._muted(TimeoutError(f"no message was read for {now - self._read:.1f} s"))
        if self._mute or (now - self._said > beat_s and not waits):
            self.send(Beat())
        if now - self._heard > self.silence_s:
            raise PeerLost(
                f"the other process said nothing for {now - self._heard:.1f} s, expected a word every "
                f"{beat_s:g} s"
            )

    def _lost(self, error: Exception) -> PeerLost:
        if isinstance(error, EOFError | ConnectionError):
            self.is_open = False
            return PeerLost("the other process is gone: its end of the channel is closed")
        return PeerLost(f"the other process does not listen: {type(error).__name__}: {error}")

    def _muted(self, error: OSError) -> PeerLost:
        """Send nothing more: another message behind part of one would be garbage (lock held)."""
        self._frames.drop()
        lost = PeerLost(self._mute) if self._mute else self._lost(error)
        self._mute = str(lost)
        return lost

    def _flush(self) -> None:
        """Write what the peer has room for (lock held)."""
        if self._frames.flush():
            self._read = time.monotonic()

    def _continue(self) -> None:
        """Write more of what waits; if the peer is gone, the next :meth:`keep` says so."""
        if not self._frames.unsent:
            return
        with self._sending:
            try:
                self._flush()
            except OSError as error:
                self._muted(error)

    def _linger(self, reason: str) -> None:
        """Accept no more messages, and wait a moment until the peer has read the last ones."""
        with self._sending:
            self._mute = self._mute or reason
        until = time.monotonic() + min(LINGER_S, self.silence_s)
        while self._frames.unsent and (left := until - time.monotonic()) > 0:
            with suppress(OSError):
                self._frames.await_room(left)
            self._continue()
        with self._sending:
            self._frames.drop()

    def hang_up(self, reason: str) -> None:
        """Stop sending, which the peer notices at once. Its messages are still received."""
        self._linger(reason)
        with suppress(OSError), _socket_of(self._connection) as same:  # it may be gone
            same.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end, which the peer notices."""
        self.is_open = False
        self._linger("this end is closed")
        with self._sending:  # nobody writes to a descriptor that is somebody else's by now
            self._connection.close()


def same_host(connection: Connection) -> bool:
    """Return whether the peer is on this host: a pipe, or a socket between equal addresses.

    Raises:
        PeerLost: The peer is gone.
    """
    with _socket_of(connection) as same:
        if same.family == socket.AF_UNIX:
            return True
        try:
            return bool(same.getpeername()[0] == same.getsockname()[0])
        except OSError as error:
            raise PeerLost(f"the other process is gone: {error}") from error


def _socket_of(connection: Connection) -> socket.socket:
    """Return the connection's socket on a duplicated descriptor."""
    return socket.socket(fileno=os.dup(connection.fileno()))
