"""Opens and closes the records of handovers."""

import time
from collections.abc import Callable

from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.requests import Receiving, Sending
from hicache_dbg.pools.host import Mirror
from hicache_dbg.tracer.attach.hicache_handover_record import HandoverRecord, open_record
from hicache_dbg.tracer.attach.hicache_handover_tiles import HandedTiles
from hicache_dbg.tracer.checks.contract import NOT_TAKEN, WHOLE
from hicache_dbg.tracer.events import Op, SkipReason
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.session import Session

__all__ = ["COMPLETE", "LOST", "NOT_TAKEN", "Records", "Views"]

Views = Callable[[Mirror], MirrorViews]
#: The outcomes of a handover, in the words of both ends.
COMPLETE, LOST = WHOLE, "peer lost"


class Records:
    """The records of one session.

    Attributes:
        tiles: Digests the tiles of records.
    """

    def __init__(self, session: Session, views: Views) -> None:
        self.tiles = HandedTiles(session)
        self._session = session
        self._views = views

    def open(
        self, op: Op, link: Link, one: Sending | Receiving, skip: SkipReason | None = None
    ) -> HandoverRecord:
        """Open a record of ``one``, without mirrors if its operation is not traced."""
        settings = self._session.settings
        mirrors = [self._views(mirror) for mirror in link.group.mirrors]
        if not self._session.probe.enabled or not settings.traces_op(op):
            mirrors = []
        mirrors = [mirror for mirror in mirrors if settings.traces(mirror.pool)]
        geometries = {mirror.name: mirror.device.geometry for mirror in link.group.mirrors}
        return open_record(
            one,
            op=op,
            role=link.role,
            mirrors=mirrors,
            geometries=geometries,
            settings=settings,
            skip=skip,
        )

    def digest(self, record: HandoverRecord) -> None:
        """Digest the chosen pages of a record, and state the digests."""
        self.tiles.digest(record)
        self.tiles.say(record)

    def close(self, record: HandoverRecord, word: str, status: str) -> None:
        """Queue a record with its outcome."""
        record.word, record.status, record.time_ns = word, status, time.time_ns()
        if not record.duration_us:
            record.duration_us = (time.perf_counter() - record.began) * 1e6
        if record.mirrors:
            self._session.bus.push(record)
