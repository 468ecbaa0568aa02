"""Digests of tiles that are handed over, on a thread beside the engine, in the order in which they are asked for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord, TileStatements
from hicache_dbg.tracer.attach.hicache_handover_views import current
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.ledger import Flags
from hicache_dbg.tracer.session import Session

__all__ = ["HandedTiles"]


class HandedTiles:
    """Digests the tiles of records, at once or later, and says them.

    ``start`` and ``stop`` are idempotent; what was asked for before ``stop`` is done when it returns.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._digester = TileDigester()
        self._beside: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin the thread."""
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "hicache-digest")
            self._beside.submit(_nothing)  # no request waits for the thread to begin

    def stop(self) -> None:
        """End the thread, when it has done what it was asked for."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.shutdown()

    def settle(self) -> None:
        """Wait until everything that was asked for so far is done."""
        if self._beside is not None:
            self._beside.submit(_nothing).result()

    def later(self, work: Callable[[], None]) -> Future[None] | None:
        """Have it done on the thread; None where that was stopped."""

        def guarded() -> None:
            with self._session.errors.at("handover/beside"):
                work()

        beside = self._beside
        return beside.submit(guarded) if beside is not None else None

    def digest(self, record: HandoverRecord, which: Flags) -> None:
        """Those tiles of this end that are in these logical pages, in the order of the write."""
        if record.skip is not None or not which.any():
            return
        for mirror in record.mirrors:
            for component, view in mirror.device.items():
                digests = record.room(mirror.pool, component, view.layers)
                with current(view.device):
                    layers = tuple(range(view.layers))
                    found = self._digester.digest(view, layers, record.pages[which])
                    self._digester.join()
                digests[:, which] = found

    def say(self, record: HandoverRecord) -> None:
        """State what was digested."""
        record.time_ns = time.time_ns()
        if record.digests:
            self._session.bus.push(TileStatements(record))


def _nothing() -> None:
    """Do nothing, in its turn."""
