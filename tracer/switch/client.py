"""The client of the switch, as the ``on`` and ``off`` verbs use it."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hicache_dbg.tracer.switch.messages import Ask, Reply, address, peer, receive, send

__all__ = ["SwitchError", "ask"]

#: How long an answer may take in seconds, or the report after the agreed end of the run: the process may
#: compile SGLang's helper first.
GRACE_S = 90.0


class SwitchError(Exception):
    """The process can't be reached or refused; the message says why and what to do."""


def ask(pid: int, request: Ask) -> Iterator[Reply]:
    """Send a request to process ``pid`` and yield its replies.

    There is one reply, and a second one if the requested run has an end.

    Raises:
        SwitchError: there is no such process or listener, or it refused.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(address(pid))
        except OSError as error:
            raise SwitchError(_why_not(pid, error)) from error
        there, _ = peer(connection)
        if there != pid:
            raise SwitchError(
                f"process {there} answers in the name of {pid}: nothing was sent to it"
            )
        # A listener that refuses us closes before it reads, but still replies: read that below.
        with contextlib.suppress(BrokenPipeError):
            send(connection, request)
        yield _reply(connection, GRACE_S)
        if request.do == "on" and request.for_s:
            yield _reply(connection, request.for_s + GRACE_S)


def _reply(connection: socket.socket, within_s: float) -> Reply:
    try:
        line = receive(connection, within_s)
    except (OSError, ValueError) as error:
        raise SwitchError(
            f"no answer within {within_s:g} s: {error or type(error).__name__}"
        ) from error
    if not line:
        raise SwitchError("the process ended before it answered")
    try:
        reply = msgspec.json.decode(line, type=Reply)
    except msgspec.MsgspecError as error:
        raise SwitchError(
            f"the answer is of another version of hicache-dbg, or of nobody's: {error}"
        ) from error
    if not reply.done:
        raise SwitchError(reply.text)
    return reply


def _why_not(pid: int, error: OSError) -> str:
    if pid < 1:  # the kernel would take it for a process group
        return f"there is no process {pid}"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return f"there is no process {pid}"
    except PermissionError:
        pass
    if error.errno == errno.ECONNREFUSED:
        name = Path(f"/proc/{pid}/comm")
        what = name.read_text().strip() if name.exists() else "it"
        return (
            f"process {pid} ({what}) does not listen: start it with HICACHE_DBG=armed; "
            "in a container, run this command inside it"
        )
    return f"cannot reach process {pid}: {error.strerror or error}"
