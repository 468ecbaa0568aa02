"""What the command and the listener say to each other: one line of JSON each way, twice.

The socket is an abstract one, named by the process: it leaves no file behind and is gone with its
process. Each side asks the kernel who the other is.
"""

import socket
import struct
from typing import Any

import msgspec

__all__ = ["Ask", "Reply", "address", "peer", "receive", "send"]

#: No honest message is longer.
LONGEST = 1 << 24
#: How long either side waits for the other's line, in seconds, where no waiting is agreed on.
PATIENCE_S = 5.0

_PEER = struct.Struct("3i")  # pid, uid, gid: struct ucred


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish. ``settings`` are ``HICACHE_DBG_*`` values; ``for_s`` 0 means until ``off``."""

    do: str  # on, off
    settings: dict[str, str] = {}
    for_s: float = 0.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it: whether it was done, in words, and the report of a run that ended."""

    done: bool
    text: str
    notes: tuple[str, ...] = ()
    took_s: float = 0.0
    report: dict[str, Any] | None = None


def address(pid: int) -> str:
    """The listener's address in the process ``pid``."""
    return f"\0hicache-dbg/{pid}"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user id of the other side, as the kernel vouches for them."""
    pid, uid, _ = _PEER.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return pid, uid


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send one message."""
    connection.sendall(msgspec.json.encode(message) + b"\n")


def receive(connection: socket.socket, within_s: float | None = PATIENCE_S) -> bytes:
    """One message; empty if the other side went away.

    Raises:
        TimeoutError: nothing whole came within ``within_s`` seconds.
        ValueError: it is longer than any honest one.
    """
    connection.settimeout(within_s)
    parts: list[bytes] = []
    size = 0
    while not parts or not parts[-1].endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            return b""
        size += len(part)
        if size > LONGEST:
            raise ValueError(f"a message of more than {LONGEST} bytes")
        parts.append(part)
    return b"".join(parts)
