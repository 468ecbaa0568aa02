"""Digests of tiles that are handed over."""

import time

from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord, TileStatements
from hicache_dbg.tracer.attach.hicache_handover_views import current
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.session import Session

__all__ = ["HandedTiles"]


class HandedTiles:
    """Digests the tiles of records, and says them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._digester = TileDigester(beside=True)

    def digest(self, record: HandoverRecord, *, rewritten: bool | None = None) -> None:
        """The tiles of this end, in the order of the write, but a last page that is not full first.

        ``rewritten``: only those that the next token may change, or only the others.
        """
        if record.skip is not None:
            return
        for mirror in record.mirrors:
            filled, which = record.filled[mirror.pool], record.chosen
            if rewritten is not None:
                which = which & (filled.rewritten == rewritten)
            parts = filled.parts(which)
            for component, view in mirror.device.items() if parts else ():
                digests = record.room(mirror.pool, component, view.layers)
                layers = tuple(range(view.layers))
                with current(view.device):
                    for slots, pages in parts:
                        last = None if slots == view.slots_per_page else slots
                        found = self._digester.digest(view, layers, record.pages[pages], 0, last)
                        self._digester.join()
                        digests[:, pages] = found

    def say(self, record: HandoverRecord) -> None:
        """State what was digested."""
        record.time_ns = time.time_ns()
        if record.digests:
            self._session.bus.push(TileStatements(record))
