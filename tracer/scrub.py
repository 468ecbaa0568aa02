"""Re-read resting host pages at a bounded rate on a separate thread, to find bit flips at rest.

The bus's thread says what a page should hold. The bytes are read here without a lock, so they count
only if the page was neither reallocated nor written again meanwhile.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.tracer.checks.resting import Resting
from hicache_dbg.tracer.events import FaultClass, Finding, Op
from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.ledger import Digests, Ledger, Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Digester
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.words import named

__all__ = ["Scrubber"]

CHECK = "scrub"
#: Most bytes read between two pauses; always at least one page.
PIECE = 4 << 20
#: How long to wait for the bus's answer before skipping a turn, in seconds.
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
    """Visits the resting pages of all pools in turn.

    A forked child reads what comes to rest there, on a thread of its own.

    Args:
        rate: most bytes to read per second.
        check: runs a detector on the bus's thread, in order; returns False if the ring is full.
        ledger: what pages should hold; queried on the bus's thread only.
        digester: reads the bytes, on the scrubber's thread.
        errors: counts failures of the tracer itself.
        watched: returns whether every write to a page so far has been counted.
        counters: returns the GPUs' error counters as text.
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
        watched: Callable[[], bool] = lambda: True,
        counters: Callable[[], str] = str,
        rank: int = 0,
    ) -> None:
        self.read_bytes = 0
        self._rate = rate
        self._check = check
        self._ledger = ledger
        self._digester = digester
        self._errors = errors
        self._watched = watched
        self._counters = counters
        self._rank = rank
        self._begin()
        after_fork(self._begin_in_child)

    def _begin(self) -> None:
        self._resting: WeakKeyDictionary[MirrorViews, Resting] = WeakKeyDictionary()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hicache-dbg-scrub", daemon=True)

    def _begin_in_child(self) -> None:
        """Start anew in a forked child: the pages that rest so far are the parent's to watch."""
        runs = self._thread.ident is not None and not self._stop.is_set()
        self._begin()
        if runs:
            self.start()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop the thread in bounded time; harmless if it was never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def judged(self, record: CopyRecord) -> None:
        """Note the pages of a good backup as resting.

        On the bus's thread, after each judged copy.
        """
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
        """Forget all resting pages: they may have been written unseen. On the bus's thread."""
        self._resting.clear()

    def turn(self) -> float:
        """Read one piece of each component of each pool; return the seconds to rest afterwards."""
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
        """Return what to read next and what it should hold; on the bus's thread."""
        pieces = []
        for mirror, resting in self._resting.items():
            widest = max(view.tile_bytes() * view.layers for view in mirror.host.values())
            pages, generations, writes = resting.turn(max(1, PIECE // max(1, widest)))
            for component, view in mirror.host.items() if pages.size else ():
                device = mirror.device.get(component)
                if device is None or device.tile_bytes() != view.tile_bytes():
                    continue  # reported at registration; its digests cover other bytes
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
        """Read a piece, report what has changed, and return the number of bytes read."""
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
            resting, pages = self._resting.get(mirror), piece.pages[column : column + 1]
            if resting is None or not self._watched():  # it may have been written unseen
                return ()
            resting.forget(pages)  # report a page only once
            return (finding,)

        self._check(tell)
