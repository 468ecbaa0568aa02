"""The control channel: messages over a :mod:`multiprocessing` connection, with bounded waits."""

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from hicache_dbg.pools.handover.errors import PeerLost
from hicache_dbg.pools.handover.messages import Beat, Message, decode, encode

__all__ = ["SILENCE_S", "Channel", "same_host"]

#: A peer that is silent for this long is considered lost, in seconds.
SILENCE_S = 20.0
BEATS_A_SILENCE = 5
#: The shortest wait of a connection, which polls in whole milliseconds.
POLL_S = 0.001


class Channel:
    """One end of a pipe or a socket.

    Sends a heartbeat after a fifth of ``silence_s`` without other traffic. A closed peer is noticed
    at once, a hanging one after ``silence_s``.
    """

    def __init__(self, connection: Connection, silence_s: float = SILENCE_S) -> None:
        self.silence_s = silence_s
        self.is_open = True
        self._connection = connection
        self._sending = threading.Lock()
        _bounded(connection, silence_s)
        self._heard = self._said = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message. Raises :class:`PeerLost` if the peer is gone or does not read."""
        try:
            with self._sending:
                self._connection.send_bytes(encode(message))
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        self._said = time.monotonic()

    def tell(self, message: Message) -> None:
        """Send a message if the peer is still there; if not, the next :meth:`receive` says so."""
        with suppress(PeerLost):
            self.send(message)

    def receive(self, timeout: float = 0.0) -> Message | None:
        """Return the next message, or None if none arrives within ``timeout`` seconds.

        Raises:
            PeerLost: The other end is closed, or speaks another format.
        """
        try:
            if not self._heard_within(timeout):
                return None
            message = decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost(error) from error
        except msgspec.DecodeError as error:
            raise PeerLost(f"the other process talks another format: {error}") from error
        self._heard = time.monotonic()
        return message

    def _heard_within(self, timeout: float) -> bool:
        """Sleep through a wait shorter than ``POLL_S``; a message arriving meanwhile is seen at its end."""
        if 0.0 < timeout < POLL_S and not self._connection.poll():
            time.sleep(timeout)
            timeout = 0.0
        return self._connection.poll(timeout)

    def keep(self) -> None:
        """Send a heartbeat if one is due, and raise :class:`PeerLost` if the peer has gone silent."""
        now = time.monotonic()
        if now - self._said > self.silence_s / BEATS_A_SILENCE:
            self.send(Beat())
        if now - self._heard > self.silence_s:
            raise PeerLost(
                f"the other process said nothing for {now - self._heard:.1f} s, expected a word every "
                f"{self.silence_s / BEATS_A_SILENCE:g} s"
            )

    def _lost(self, error: Exception) -> PeerLost:
        if isinstance(error, EOFError | ConnectionError):
            self.is_open = False
            return PeerLost("the other process is gone: its end of the channel is closed")
        return PeerLost(f"the other process does not listen: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Close this end, which the peer notices."""
        self.is_open = False
        self._connection.close()


def same_host(connection: Connection) -> bool:
    """Return whether the peer is on this host: a pipe, or a socket between equal addresses."""
    with _socket_of(connection) as same:
        if same.family == socket.AF_UNIX:
            return True
        return bool(same.getpeername()[0] == same.getsockname()[0])


def _bounded(connection: Connection, seconds: float) -> None:
    """Limit how long a partial or unread message can block either end."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket_of(connection) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _socket_of(connection: Connection) -> socket.socket:
    """Return the connection's socket on a duplicated descriptor."""
    return socket.socket(fileno=os.dup(connection.fileno()))
