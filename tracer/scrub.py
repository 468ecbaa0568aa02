"""Re-reads resting host pages at a bounded rate, on its own thread: a bit that flips at rest is found.

What a page should hold is asked of the ledger on the bus's thread; the bytes are read here, without
a lock, and count only if the page was not given away or written again meanwhile.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.tracer.checks.resting import Resting
from hicache_dbg.tracer.checks.slots import named
from hicache_dbg.tracer.events import FaultClass, Finding, Op
from hicache_dbg.tracer.ledger import Digests, Ledger, Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Digester
from hicache_dbg.tracer.selfcheck import InternalErrors

__all__ = ["Scrubber"]

CHECK = "scrub"
#: Bytes that are read between two pauses, at most; one page at least.
PIECE = 4 << 20
#: How long the bus may take to answer before the turn is given up, in seconds.
PATIENCE_S = 10.0
IDLE_S = 0.5
FEW = 8

Detect = Callable[[], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some resting pages of one component, and what they should hold."""

    mirror: MirrorViews
    component: str
    layers: tuple[int, ...]
    pages: Pages
    generations: Pages
    writes: Pages
    known: np.ndarray  # bool [layers, pages]
    digests: Digests

    @property
    def nbytes(self) -> int:
        return self.mirror.host[self.component].tile_bytes() * len(self.layers) * len(self.pages)


class Scrubber:
    """Visits the resting pages of every pool, in turn.

    Args:
        rate: bytes a second that are read at most.
        check: runs a detector on the bus's thread, in its turn; False where there is no room.
        ledger: what pages should hold; asked on the bus's thread only.
        digester: reads the bytes, on this thread.
        errors: where failures of the tracer itself are counted.
        counters: what the GPUs count beside a flipped bit, in words.
        rank: written into findings.
    """

    def __init__(
        self,
        rate: float,
        check: Callable[[Detect], bool],
        ledger: Ledger,
        digester: Digester,
        errors: InternalErrors,
        *,
        counters: Callable[[], str] = str,
        rank: int = 0,
    ) -> None:
        self.read_bytes = 0
        self._rate = rate
        self._check = check
        self._ledger = ledger
        self._digester = digester
        self._errors = errors
        self._counters = counters
        self._rank = rank
        self._resting: WeakKeyDictionary[MirrorViews, Resting] = WeakKeyDictionary()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hicache-dbg-scrub", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End, in bounded time; harmless where it never began."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def judged(self, record: CopyRecord) -> None:
        """On the bus's thread: a copy was judged, and its pages rest if it was a good backup."""
        copy = record.copy
        if copy.op is not Op.BACKUP or not copy.mirror.host or not copy.fits:
            return
        resting = self._resting.get(copy.mirror)
        if resting is None:
            resting = self._resting[copy.mirror] = Resting(len(copy.mirror.writes))
        chosen = record.digested
        pages = copy.host_pages[chosen]
        if record.status == "ok" and record.skip is None and copy.spans is None:
            resting.note(pages, copy.generations[chosen], record.writes[chosen])
        else:
            resting.forget(pages)

    def forget(self) -> None:
        """On the bus's thread: whatever rests may have been written since, unseen."""
        self._resting.clear()

    def turn(self) -> float:
        """Read one piece of each component of each pool; the seconds to rest after it."""
        answer: list[_Piece] = []
        ready = threading.Event()

        def ask() -> Sequence[Finding]:
            answer.extend(self._pieces())
            ready.set()
            return ()

        if not self._check(ask) or not ready.wait(PATIENCE_S):
            return IDLE_S
        size = sum(self._look(piece) for piece in answer)
        self.read_bytes += size
        return size / self._rate if size else IDLE_S

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            pause = IDLE_S
            with self._errors.at("scrub"):
                pause = max(0.0, self.turn() - (time.monotonic() - began))

    def _pieces(self) -> list[_Piece]:
        """On the bus's thread: what to read next, and what it should be."""
        pieces = []
        for mirror, resting in self._resting.items():
            widest = max(view.tile_bytes() * view.layers for view in mirror.host.values())
            pages, generations, writes = resting.turn(max(1, PIECE // max(1, widest)))
            for component, view in mirror.host.items() if pages.size else ():
                device = mirror.device.get(component)
                if device is None or device.tile_bytes() != view.tile_bytes():
                    continue  # told at registration: its digests are of other bytes
                layers = tuple(range(view.layers))
                book = self._ledger.book(mirror, component, device.layers, view.pages)
                expected = book.expect(pages, generations, layers, (0, device.slots_per_page))
                pieces.append(
                    _Piece(
                        mirror,
                        component,
                        layers,
                        pages,
                        generations,
                        writes,
                        expected.known.copy(),
                        expected.digests.copy(),
                    )
                )
        return pieces

    def _look(self, piece: _Piece) -> int:
        """Read a piece and tell what has changed; the bytes that were read."""
        got = self._digester.digest(piece.mirror.host[piece.component], piece.layers, piece.pages)
        wrong = (got != piece.digests) & piece.known
        for column in np.flatnonzero(wrong.any(axis=0)).tolist():
            at = slice(column, column + 1)
            if piece.mirror.still(piece.pages[at], piece.generations[at], piece.writes[at]):
                self._tell(piece, column, got, np.flatnonzero(wrong[:, column]))
        return piece.nbytes

    def _tell(self, piece: _Piece, column: int, got: Digests, layers: np.ndarray) -> None:
        mirror, page, first = piece.mirror, int(piece.pages[column]), int(layers[0])
        beside = self._counters()
        finding = Finding(
            time_ns=time.time_ns(),
            rank=self._rank,
            cls=FaultClass.BIT_FLIP,
            pool=mirror.pool,
            component=piece.component,
            layer=first if len(layers) == 1 else -1,
            pages=(page,),
            page_count=1,
            expected=f"{int(piece.digests[first, column]):016x}",
            got=f"{int(got[first, column]):016x}",
            message=(
                f"{mirror.pool}.{piece.component}: host page {page} ({named('layer', layers.tolist())}) "
                "changed at rest, with nobody writing it"
                + (f"; GPU counters: {beside}" if beside else "")
            ),
            advice="look at the host's memory errors (EDAC, mcelog) and the GPU's ECC, Xid and replay "
            "counters; a stray write by another owner of the memory looks the same",
            check=CHECK,
        )

        def tell() -> Sequence[Finding]:
            resting = self._resting.get(mirror)
            if resting is not None:
                resting.forget(piece.pages[column : column + 1])  # once is enough
            return (finding,)

        self._check(tell)
