"""Frames on a stream: each message behind its length. No peer can block or exhaust its reader."""

import os
import select
import struct
import time
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
    """Reads and writes frames. One thread may read while another one writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.set_blocking(connection.fileno(), False)
        self._inbox = bytearray()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def write(self, raw: bytes, seconds: float) -> None:
        """Write one frame.

        Raises:
            TimeoutError: The peer did not read it within ``seconds``; part of it may be written.
            OSError: The connection is closed.
        """
        left = memoryview(_LENGTH.pack(len(raw)) + raw)
        until = time.monotonic() + seconds
        while left:
            try:
                sent = os.write(self._connection.fileno(), left)
            except BlockingIOError:
                self._await_room(until - time.monotonic(), seconds)
            else:
                left = left[sent:]

    def read(self, seconds: float) -> bytes | None:
        """Return the next frame, or None if it is not complete within ``seconds``.

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
        if 0.0 < seconds < POLL_S and not self._readable.poll(0):
            time.sleep(seconds)  # what arrives meanwhile is seen at its end
            seconds = 0.0
        if not self._readable.poll(max(0.0, seconds) * 1e3):
            return False
        try:
            received = os.read(number, CHUNK)
        except BlockingIOError:
            return False
        if not received:
            raise EOFError
        self._inbox += received
        return True

    def _await_room(self, left: float, seconds: float) -> None:
        writable = select.poll()
        writable.register(self._connection, select.POLLOUT)
        if left <= 0 or not writable.poll(left * 1e3):
            raise TimeoutError(f"no message was read for {seconds:g} s")
