"""The port on which a scraper finds the metrics, retried while another process holds it."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server

from hicache_dbg.exporters.forking import in_children

if TYPE_CHECKING:
    import socket

__all__ = ["Port"]

CLOSE_WAIT_S = 2.0
RETRY_S = 5.0


class Port:
    """Serves a registry on ``address:port`` from the first :meth:`open` that succeeds.

    Args:
        address: an address of this machine; ``0.0.0.0`` for all of them.
        port: TCP port.
        registry: returns what a scrape gets; called once the port is bound.
        clock: returns seconds; a refused port is retried at the next call and then every five
            seconds.
    """

    def __init__(
        self,
        address: str,
        port: int,
        registry: Callable[[], CollectorRegistry],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._port = port
        self._registry = registry
        self._clock = clock
        self._tried = False
        self._next = float("-inf")
        self._stop: Callable[[], None] | None = None
        self._socket: socket.socket | None = None
        self.trouble = ""

    def open(self) -> bool:
        """Serve, unless already serving; return False if an attempt failed in this very call.

        Between two attempts it returns True: there is nothing new to report.
        """
        if self._stop is not None or self._clock() < self._next:
            return True
        if self._tried:
            self._next = self._clock() + RETRY_S
        self._tried = True
        try:
            self._stop = self._serve()
        except OSError as error:
            self.trouble = self._unserved(error.strerror or str(error))
            return False
        except OverflowError:
            self.trouble = self._unserved("no such port, expected one up to 65535")
            return False
        return True

    def _unserved(self, why: str) -> str:
        return f"metrics are not served on {self._address}:{self._port}: {why}"

    def close(self) -> None:
        """Stop serving, in bounded time."""
        if self._stop is not None:
            self._stop()

    def let_go(self) -> None:
        """Close the listening socket in a child: if it outlived the parent, scrapes would hang."""
        if self._socket is not None:
            self._socket.close()

    def _serve(self) -> Callable[[], None]:
        """Start serving; return a function that stops it."""
        server, thread = start_http_server(self._port, self._address, self._registry())
        here = os.getpid()
        self._socket = server.socket
        in_children(self)

        def stop() -> None:
            if os.getpid() != here:  # a forked child does not have the thread
                return
            server.shutdown()
            server.server_close()
            thread.join(CLOSE_WAIT_S)

        return stop
