"""The protocol between the command and the listener: one line of JSON per message.

The socket is an abstract one, named after the process: it leaves no file behind and vanishes with
its process. Each side asks the kernel for the identity of the other.
"""

import socket
import struct
from typing import Any

import msgspec

__all__ = ["Ask", "Reply", "address", "peer", "receive", "send"]

#: The longest message that is accepted, in bytes.
LONGEST = 1 << 24
#: How long either side waits for the other's message by default, in seconds.
PATIENCE_S = 5.0

_PEER = struct.Struct("3i")  # pid, uid, gid: struct ucred


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request; ``settings`` are ``HICACHE_DBG_*`` values, and ``for_s`` 0 means until ``off``."""

    do: str  # on, off
    settings: dict[str, str] = {}
    for_s: float = 0.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: whether it was done, in words, and the report of a run that ended."""

    done: bool
    text: str
    notes: tuple[str, ...] = ()
    took_s: float = 0.0
    report: dict[str, Any] | None = None


def address(pid: int) -> str:
    """Return the address of the listener in process ``pid``."""
    return f"\0hicache-dbg/{pid}"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and user id of the other side, as reported by the kernel."""
    pid, uid, _ = _PEER.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return pid, uid


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send one message."""
    connection.sendall(msgspec.json.encode(message) + b"\n")


def receive(connection: socket.socket, within_s: float | None = PATIENCE_S) -> bytes:
    """Return one message; empty if the other side closed the connection.

    Raises:
        TimeoutError: no complete message came within ``within_s`` seconds.
        ValueError: the message is longer than the limit.
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
