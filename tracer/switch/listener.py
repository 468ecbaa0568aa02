"""The listener of an armed process: one thread that serves requests of its own user and of root."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from hicache_dbg.tracer.saying import say
from hicache_dbg.tracer.switch.messages import Ask, Reply, address, peer, receive, send

__all__ = ["Answer", "listen"]

#: How long to wait after a failed accept before the next, in seconds.
PAUSE_S = 0.1

#: Answers a request: at once, and again at the end of a run that was requested with one.
Answer = Callable[[Ask, Callable[[Reply], None]], None]


def listen(answer: Answer) -> None:
    """Start listening in this process and in every process forked from it.

    The thread is a daemon and blocks in accept(), so an armed process pays nothing for it.
    """
    listening = [_start(answer)]

    def in_child() -> None:
        # The child must not keep the parent's address open: after the parent's exit, a client
        # would connect to it and wait for a reply that never comes.
        if (parents := listening.pop()) is not None:
            parents.close()
        listening.append(_start(answer))

    os.register_at_fork(after_in_child=in_child)


def _start(answer: Answer) -> socket.socket | None:
    server: socket.socket | None = None
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(address(os.getpid()))
        server.listen()
        _thread(_serve, server, answer)
    except (OSError, RuntimeError) as error:
        say(f"cannot listen for the switch: {error}; tracing stays off")
        if server is not None:
            server.close()
        return None
    return server


def _serve(server: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            time.sleep(PAUSE_S)  # such as no free descriptor: do not spin on the host's core
            continue
        try:
            _thread(_talk, connection, answer)
        except RuntimeError:  # no thread can be started
            connection.close()
            time.sleep(PAUSE_S)


def _thread(target: Callable[[socket.socket, Answer], None], *args: Any) -> None:
    threading.Thread(target=target, args=args, name="hicache-dbg-switch", daemon=True).start()


def _talk(connection: socket.socket, answer: Answer) -> None:
    """Serve one connection; nothing that the client does affects the host."""

    def reply(message: Reply) -> None:
        try:
            send(connection, message)
        except OSError:
            return  # the client did not wait for the answer

    with connection:
        _, user = peer(connection)
        if user not in {0, os.getuid()}:
            reply(Reply(done=False, text=f"user {user} may not switch a process of {os.getuid()}"))
            return
        try:
            answer(_ask(receive(connection)), reply)
        except (OSError, ValueError) as error:
            reply(Reply(done=False, text=str(error)))
        except Exception as error:  # noqa: BLE001 - without a reply, the client would think that the host died
            reply(Reply(done=False, text=f"failed: {type(error).__name__}: {error}"))


def _ask(line: bytes) -> Ask:
    try:
        return msgspec.json.decode(line, type=Ask)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a request: {error}") from error
