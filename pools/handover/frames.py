"""Frames on a stream: each message behind its length. No peer can block or exhaust its reader."""

import os
import select
import struct
import time
from collections import deque
from multiprocessing.connection import Connection

__all__ = ["MOST_BYTES", "POLL_S", "FrameError", "Frames"]

#: The longest frame, in bytes. The ids of a million pages take a third of it.
MOST_BYTES = 16 << 20
#: The shortest wait of a poll, which counts whole milliseconds.
POLL_S = 0.001
CHUNK = 1 << 16
_LENGTH = struct.Struct("!I")


class FrameError(ValueError):
    """The peer sends something other than frames."""


class Frames:
    """Reads and writes frames. One thread may read while another one writes.

    Writing never waits. Two ends that wait for room in each other's socket do not read meanwhile, and
    would wait for ever.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.set_blocking(connection.fileno(), False)
        self._inbox = bytearray()
        self._outbox: deque[memoryview] = deque()
        self._ready = select.poll()
        self._writing = False
        #: Bytes that the socket had no room for.
        self.unsent = 0

    def put(self, raw: bytes) -> None:
        """Queue one frame; :meth:`flush` writes it."""
        size = _LENGTH.size + len(raw)
        self._outbox.append(memoryview(_LENGTH.pack(len(raw)) + raw))
        self.unsent += size  # no call within the addition: a signal's handler may send

    def flush(self) -> bool:
        """Write as much as the socket has room for; return whether that was anything.

        A signal's handler may call it in the middle of itself: what that queued is written here.

        Raises:
            OSError: The connection is closed. Nothing is left to be written.
        """
        outbox, wrote = self._outbox, False
        if self._writing:
            return wrote
        self._writing = True
        try:
            while outbox:
                sent = os.write(self._connection.fileno(), outbox[0])
                wrote = True
                if not outbox:  # a signal's handler closed the channel
                    break
                outbox[0] = outbox[0][sent:]
                self.unsent -= sent
                if not outbox[0]:
                    outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            raise
        finally:
            self._writing = False
        return wrote

    def drop(self) -> None:
        """Forget what is not written."""
        self._outbox.clear()
        self.unsent = 0

    def await_room(self, seconds: float) -> None:
        """Wait until the socket has room again, for at most ``seconds``."""
        writable = select.poll()
        writable.register(self._connection, select.POLLOUT)
        writable.poll(seconds * 1e3)

    def read(self, seconds: float) -> bytes | None:
        """Return the next frame, or None if it is not complete within ``seconds``.

        Returns early if there is room for what is not written yet.

        Raises:
            EOFError: The peer closed the connection.
            FrameError: The next frame is longer than ``MOST_BYTES``.
            OSError: The connection is closed, or broken.
        """
        frame = self._next()
        if frame is None and self._fill(seconds):
            return self._next()
        return frame

    def drain(self, seconds: float) -> None:
        """Wait ``seconds`` for bytes and discard them. Raises what :meth:`read` raises at the end."""
        self._fill(seconds)
        self._inbox.clear()

    def _next(self) -> bytes | None:
        inbox = self._inbox
        if len(inbox) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(inbox)
        if size > MOST_BYTES:
            raise FrameError(f"a frame of {size} bytes, expected at most {MOST_BYTES}")
        end = _LENGTH.size + size
        if len(inbox) < end:
            return None
        frame = bytes(inbox[_LENGTH.size : end])
        del inbox[:end]
        return frame

    def _fill(self, seconds: float) -> bool:
        """Receive what arrives within ``seconds``; return whether anything did."""
        number = self._connection.fileno()
        events = select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN
        self._ready.register(number, events)
        if 0.0 < seconds < POLL_S and not self._ready.poll(0):
            time.sleep(seconds)  # what arrives meanwhile is seen at its end
            seconds = 0.0
        ready = self._ready.poll(max(0.0, seconds) * 1e3)
        if not ready or ready[0][1] == select.POLLOUT:
            return False
        try:
            received = os.read(number, CHUNK)
        except BlockingIOError:
            return False
        if not received:
            raise EOFError
        self._inbox += received
        return True
