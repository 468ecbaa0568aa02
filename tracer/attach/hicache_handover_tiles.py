"""Digests of handed-over tiles."""

import time

from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord, TileStatements
from hicache_dbg.tracer.attach.hicache_handover_views import current
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.session import Session

__all__ = ["HandedTiles"]


class HandedTiles:
    """Digests the tiles of records, and states the digests."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._digester = TileDigester(beside=True)

    def digest(self, record: HandoverRecord, *, rewritten: bool | None = None) -> None:
        """Digest a record's tiles in the order of the write, except that partly filled pages come first.

        ``rewritten``: True for only the tiles that the next token may change, False for only the
        others, None for all.
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
        """State a record's digests."""
        record.time_ns = time.time_ns()
        if record.digests:
            self._session.bus.push(TileStatements(record))
