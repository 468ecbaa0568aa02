"""Send events to journald over its native socket, without a library.

The socket is connected: a blocked send waits for room instead of spinning, and a restarted journald
shows up as a refused send, upon which the sink reconnects. Waiting is bounded; the bus counts what
does not arrive. A batch is one system call, because a thread that waits for the GIL between two
entries would be the bottleneck (see ``datagrams``).
"""

import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from structlog.typing import EventDict, WrappedLogger

from hicache_dbg.exporters.datagrams import Datagrams
from hicache_dbg.exporters.descriptors import Opened, opened, there
from hicache_dbg.exporters.journal_format import encode_entry
from hicache_dbg.exporters.pipeline import add_fields, add_line, add_syslog, pipeline, selection
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.settings import JOURNALD_SOCKET, Lines
from hicache_dbg.tracer.sink import SinkError

__all__ = ["JournaldSink"]

#: Pauses between reconnects: short after a restart, longer if journald stays away.
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.2

#: journald removed the socket or has not created it yet: worth reconnecting.
_GONE = frozenset(
    {errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE, errno.EBADF}
)
_SEALS = (
    fcntl.F_ADD_SEALS,
    (fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE),
)


class JournaldSink:
    """Sends each event as one entry with fields, oldest first.

    If journald is absent at construction, that is no error: it may come later.

    Args:
        path: journald's native socket; that of a namespace is
            ``/run/systemd/journal.NAMESPACE/socket``.
        lines: which events become an entry.
        limit_s: the longest time a batch may wait without progress, reconnects included. Then the
            rest of the batch is given up, so a dead journald costs a batch this time once, and a
            hanging one twice.
    """

    name = "journald"

    def __init__(
        self, path: Path = JOURNALD_SOCKET, *, lines: Lines = Lines.ALL, limit_s: float = 1.0
    ) -> None:
        self._path = path
        self._limit_s = limit_s
        self._socket: socket.socket | None = None
        self._what: Opened = (0, 0)
        self._datagrams = Datagrams()
        self._render: Callable[[Event], bytes | None] = pipeline(
            *selection(lines), add_line, add_syslog, add_fields, _take_entry
        )

    def emit(self, events: Sequence[Event]) -> None:
        """Send ``events``; :class:`SinkError` says how many were not sent when waiting ended."""
        entries = [entry for entry in map(self._render, events) if entry is not None]
        sent = 0
        try:
            while sent < len(entries):
                sent += self._deliver(entries[sent:], time.monotonic() + self._limit_s)
        except OSError as error:
            self._disconnect()
            lost = len(entries) - sent
            raise SinkError(
                f"journald socket {self._path}: {error.strerror or error}; {lost} of "
                f"{len(entries)} entries not sent after waiting {self._limit_s} s",
                reason=_reason(error),
                lost=lost,
            ) from error

    def close(self) -> None:
        """Close the socket; everything sent is already with journald."""
        self._disconnect()

    def _deliver(self, entries: Sequence[bytes], deadline: float) -> int:
        """Send the first of ``entries``, reconnecting until ``deadline``.

        Return how many were sent.
        """
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._send(self._connected(), entries)
            except OSError as error:
                if error.errno not in _GONE or time.monotonic() >= deadline:
                    raise
                self._disconnect()
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send(self, connection: socket.socket, entries: Sequence[bytes]) -> int:
        try:
            return self._datagrams.send(connection.fileno(), entries)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            _send_sealed(connection, entries[0])
            return 1

    def _connected(self) -> socket.socket:
        if self._socket is not None and there(self._socket.fileno(), self._what) is None:
            self._disconnect()
        if self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            # A limit in the kernel: Python's timeout would add a poll and a thread switch per entry.
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._limit_s))
            try:
                fresh.connect(str(self._path))
            except OSError:
                fresh.close()
                raise
            self._socket, self._what = fresh, opened(fresh.fileno())
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            if there(self._socket.fileno(), self._what) is None:
                self._socket.detach()  # the descriptor number belongs to the host now
            self._socket.close()
            self._socket = None


def _send_sealed(connection: socket.socket, entry: bytes) -> None:
    """Send an entry that is too large for a datagram as a sealed memory file."""
    file = os.memfd_create("hicache-dbg-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(entry)
        # journald refuses an unsealed file: its writer could still change it.
        fcntl.fcntl(file, *_SEALS)
        socket.send_fds(connection, [b""], [file])
    finally:
        os.close(file)


def _take_entry(_logger: WrappedLogger, _method: str, event: EventDict) -> bytes:
    """End the pipeline with the entry's bytes."""
    del event["record"]
    return encode_entry(event)


def _timeval(seconds: float) -> bytes:
    """Return ``struct timeval``; all zeros would mean no limit."""
    whole, part = divmod(max(1, round(seconds * 1e6)), 1_000_000)
    return struct.pack("@ll", whole, part)


def _reason(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        return "blocked"
    if error.errno in _GONE:
        return "absent"
    return errno.errorcode.get(error.errno or 0, "os_error").lower()
