"""Judge pages that crossed to storage or back; runs on the bus's thread."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from hicache_dbg.tracer.checks.storage import CHECK, Fault, of_failure
from hicache_dbg.tracer.events import DIRECTION, Copied, Event, FaultClass, Finding, Op, SkipReason
from hicache_dbg.tracer.ledger import Book, Digests, Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.session import Session

__all__ = ["Crossing", "StorageJudge", "failure_of"]

FEW = 8
_UNDELIVERED = (
    "the host page holds what it held before: the fetch was reported as done and did not deliver"
)
_STATUS = "look at the status of each page; never take a batch's status for a page's"
MOST_PAGES_KEPT = 64
#: Most pages remembered, at about 100 B plus 8 B per tile each.
MOST_STORED = 1 << 15
#: Contents remembered per key: recomputing a prefix may change the last bits.
VERSIONS = 4


@dataclass(slots=True)
class Crossing:
    """One call that moves pages of one pool between host and storage.

    ``before`` and ``after`` are digests of the host pages, by component, uint64 ``[layers, chosen
    pages]``; ``good`` is what storage said of each page, ``asked`` how many pages it was really
    asked for. ``tokens`` are digests of the pages' own tokens, 0 if unknown; ``names`` are the
    requests it serves.
    """

    op: Op
    op_id: int
    mirror: MirrorViews
    keys: tuple[str, ...]
    tokens: list[int]
    pages: Pages
    generations: Pages
    indices: int
    backend: str
    chosen: np.ndarray
    judge: "StorageJudge"
    names: tuple[str, ...] = ()
    before: dict[str, Digests] = field(default_factory=dict)
    after: dict[str, Digests] = field(default_factory=dict)
    good: list[bool] = field(default_factory=list)
    asked: int = -1
    status: str = "ok"
    #: State, message and errno of a system error that stopped it.
    failure: tuple[str, str, int] | None = None
    began: float = 0.0
    duration_us: float = 0.0
    time_ns: int = 0
    #: Whether an earlier store was not followed to its end.
    after_gap: bool = False

    def ready(self) -> bool:
        """Return True: everything was digested synchronously."""
        return True

    def events(self) -> Sequence[Event]:
        """Return the crossing's event and its findings."""
        return self.judge(self)


@dataclass(frozen=True, slots=True)
class _Page:
    """A digested page: its tokens' digest, its tiles by component, and a digest over all tiles."""

    tokens: int
    payload: int
    tiles: dict[str, Digests]


class _Pages:
    """What was stored under each key: the latest contents of the most recent keys."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, list[_Page]] = OrderedDict()

    def of(self, name: str) -> list[_Page]:
        """Return what is remembered under a key, oldest first."""
        return self._keys.get(name, [])

    def keep(self, name: str, page: _Page) -> None:
        """Record a stored page, unless this content is already known."""
        known = self._keys.setdefault(name, [])
        if page.payload not in {one.payload for one in known}:
            known.append(page)
            del known[:-VERSIONS]
        self._keys.move_to_end(name)
        if len(self._keys) > MOST_STORED:
            self._keys.popitem(last=False)


@dataclass(slots=True)
class _Tally:
    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[Fault, int]] = field(default_factory=list)  # with the page's position


class StorageJudge:
    """Remembers what was stored under each key, and compares what comes back.

    After a gap (a store whose record found no room, tracing switched off) it starts over: a key may
    have been stored again since, with other contents.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pages = _Pages()
        self._keys: dict[int, str] = {}  # key by a digest over all tiles of a page
        session.on_gap.append(self.forget)

    def forget(self) -> None:
        """Forget what was stored under every key."""
        self._pages = _Pages()
        self._keys.clear()

    def __call__(self, crossing: Crossing) -> list[Event]:
        """Return the crossing's event and its findings."""
        if crossing.after_gap:
            self.forget()
        tally = _Tally()
        tiles = sum(view.layers for view in crossing.mirror.host.values())
        columns = {at: n for n, at in enumerate(np.flatnonzero(crossing.chosen).tolist())}
        for at in range(len(crossing.keys)):
            if not crossing.good[at]:
                self._failed(crossing, at, tally, tiles)
            elif at not in columns:
                off = SkipReason.SAMPLED_OUT if crossing.chosen.any() else SkipReason.OFF
                tally.skipped[off.value] += tiles
            elif crossing.op is Op.STORE:
                self._stored(crossing, at, columns[at], tally)
            else:
                self._fetched(crossing, at, columns[at], tally)
        if crossing.op is Op.FETCH:
            self._witness(crossing, columns)
        copied = _copied(crossing, tally, self.session.settings.rank)
        return [copied, *self._findings(crossing, tally)]

    # -- one page -------------------------------------------------------------------------------

    def _stored(self, crossing: Crossing, at: int, column: int, tally: _Tally) -> None:
        page = _page(crossing, at, crossing.before, column)
        for component, got in page.tiles.items():
            known, expected = self._expected(crossing, component, at)
            wrong = known & (expected != got)
            tally.mismatched += int(wrong.sum())
            tally.verified += int((known & ~wrong).sum())
            tally.witnessed += int((~known).sum())
            if wrong.any():
                layer = int(wrong.argmax())
                tally.faults.append((_changed(int(expected[layer]), int(got[layer])), at))
        name = self._name(crossing, at)
        for old in self._pages.of(name)[:1]:
            _identity(old, page.tokens, at, tally)
        self._pages.keep(name, page)
        self._keys[page.payload] = crossing.keys[at]
        if len(self._keys) > 2 * MOST_STORED:
            self._keys.clear()

    def _fetched(self, crossing: Crossing, at: int, column: int, tally: _Tally) -> None:
        got = _page(crossing, at, crossing.after, column)
        known = self._pages.of(self._name(crossing, at))
        tiles = sum(map(len, got.tiles.values()))
        if not known:
            tally.skipped[SkipReason.UNWITNESSED.value] += tiles
            return
        miskeyed = _identity(known[0], got.tokens, at, tally)
        if got.payload in {page.payload for page in known}:
            tally.verified += tiles
            return
        last = known[-1]
        wrong = sum(int((got.tiles[part] != last.tiles[part]).sum()) for part in got.tiles)
        tally.mismatched += wrong
        tally.verified += tiles - wrong
        if not miskeyed:
            before = _page(crossing, at, crossing.before, column)
            untouched = got.payload == before.payload
            tally.faults.append((self._why(last, got, untouched=untouched), at))

    def _why(self, stored: _Page, got: _Page, *, untouched: bool) -> Fault:
        expected, seen = f"{stored.payload:016x}", f"{got.payload:016x}"
        if untouched:
            return Fault(FaultClass.FAILED_LOAD, _UNDELIVERED, expected, seen, _STATUS)
        other = self._keys.get(got.payload)
        if other is not None:
            return of_failure("foreign", f"they are those of key {other}", 0, expected, seen)
        return of_failure("damaged", "and the store did not notice", 0, expected, seen)

    def _failed(self, crossing: Crossing, at: int, tally: _Tally, tiles: int) -> None:
        """Judge a page that storage did not move: a fault only if it existed and was requested."""
        tally.skipped[SkipReason.FAILED.value] += tiles
        first = not any(not good for good in crossing.good[:at])
        if not first or (0 <= crossing.asked <= at):
            return
        if crossing.failure is not None:
            tally.faults.append((of_failure(*crossing.failure, "a page", ""), at))
        elif crossing.op is Op.FETCH and self._pages.of(self._name(crossing, at)):
            reason = f"key {crossing.keys[at]} was stored here"
            tally.faults.append((of_failure("missing", reason, 0, "a page", "none"), at))

    # -- what is known --------------------------------------------------------------------------

    def _name(self, crossing: Crossing, at: int) -> str:
        return f"{crossing.mirror.pool}/{crossing.keys[at]}"

    def _expected(self, crossing: Crossing, component: str, at: int) -> tuple[np.ndarray, Digests]:
        """Return what the backup of this host page left: known and digests, each ``[layers]``."""
        book, layers = self._book(crossing, component)
        pages, lives = crossing.pages[at : at + 1], crossing.generations[at : at + 1]
        if book is None:
            return np.zeros(layers, np.bool_), np.zeros(layers, np.uint64)
        found = book.expect(pages, lives, tuple(range(layers)), _span(crossing.mirror))
        return found.known[:, 0], found.digests[:, 0]

    def _witness(self, crossing: Crossing, columns: dict[int, int]) -> None:
        """Witness the fetched host pages, so that a later load can be compared with them."""
        moved = [at for at in columns if crossing.good[at]]
        for component, digests in crossing.after.items():
            book, layers = self._book(crossing, component)
            if book is not None:
                book.witness(
                    crossing.pages[moved],
                    crossing.generations[moved],
                    tuple(range(layers)),
                    digests[:, [columns[at] for at in moved]],
                    _span(crossing.mirror),
                )

    def _book(self, crossing: Crossing, component: str) -> tuple[Book | None, int]:
        """Return the ledger's book, if both ends of the component have tiles of the same size."""
        mirror = crossing.mirror
        host, device = mirror.host[component], mirror.device.get(component)
        if device is None or (device.layers, device.tile_bytes()) != (
            host.layers,
            host.tile_bytes(),
        ):
            return None, host.layers
        ledger = self.session.judge.ledger
        return ledger.book(mirror, component, device.layers, host.pages), host.layers

    # -- findings -------------------------------------------------------------------------------

    def _findings(self, crossing: Crossing, tally: _Tally) -> Iterator[Finding]:
        pool, op = crossing.mirror.pool, crossing.op
        for cls in dict.fromkeys(fault.cls for fault, _ in tally.faults):
            mine = [(fault, at) for fault, at in tally.faults if fault.cls is cls]
            fault, first = mine[0]
            pages = tuple(dict.fromkeys(int(crossing.pages[at]) for _, at in mine))
            yield Finding(
                time_ns=crossing.time_ns,
                rank=self.session.settings.rank,
                cls=cls,
                pool=pool,
                op=op.value,
                pages=pages[:FEW],
                page_count=len(pages),
                expected=fault.expected,
                got=fault.got,
                message=(
                    f"{pool}: {len(pages)} of {len(crossing.keys)} pages of this {op} with {crossing.backend} "
                    f"(first: key {crossing.keys[first]}, host page {int(crossing.pages[first])}): {fault.cause}"
                ),
                advice=fault.advice,
                check=CHECK,
                op_id=crossing.op_id,
                requests=crossing.names,
            )


def failure_of(error: BaseException | None) -> tuple[str, str, int] | None:
    """Extract state, message and errno of a system error without keeping its frames alive."""
    if not isinstance(error, OSError):
        return None
    state = "short" if "short read" in str(error).lower() else "failed"
    return state, str(error), error.errno or 0


def _changed(expected: int, got: int) -> Fault:
    return Fault(
        FaultClass.BIT_FLIP,
        "the host page does not hold what was backed up to it, and is stored so",
        f"{expected:016x}",
        f"{got:016x}",
        "run with HICACHE_DBG_CHECKSUM=ends; look for other writers of host memory, and ECC counters",
    )


def _identity(known: _Page, tokens: int, at: int, tally: _Tally) -> bool:
    """Record a fault and return True if one key stands for two contents; unknown tokens pass."""
    if not known.tokens or not tokens or known.tokens == tokens:
        return False
    words = f"tokens {tokens:016x}", f"{known.tokens:016x}"
    tally.faults.append((of_failure("miskeyed", "other tokens", 0, *words), at))
    return True


def _page(crossing: Crossing, at: int, digests: dict[str, Digests], column: int) -> _Page:
    hasher = xxhash.xxh3_64()
    tiles = {name: tiles[:, column].copy() for name, tiles in digests.items()}
    for part in tiles.values():
        hasher.update(part.tobytes())
    return _Page(crossing.tokens[at], hasher.intdigest(), tiles)


def _span(mirror: MirrorViews) -> tuple[int, int]:
    return 0, next(iter(mirror.device.values())).slots_per_page


def _copied(crossing: Crossing, tally: _Tally, rank: int) -> Copied:
    mirror, moved = crossing.mirror, sum(crossing.good)
    source, destination = DIRECTION[crossing.op]
    first = next(iter(mirror.host.values()))
    a_page = sum(view.page_span * view.layers for view in mirror.host.values())
    return Copied(
        time_ns=crossing.time_ns,
        rank=rank,
        pool=mirror.pool,
        op=crossing.op,
        token_granular=False,
        layout=mirror.layout,
        h=crossing.indices,
        d=len(crossing.keys),
        slot_page=mirror.slot_page,
        unit=mirror.index_unit,
        pages=len(crossing.keys),
        item_bytes=mirror.item_bytes,
        dtype=first.dtype,
        layers=first.layers,
        cls=mirror.host_cls,
        io_backend=crossing.backend,
        src=source,
        dst=destination,
        bytes=a_page * moved,
        duration_us=crossing.duration_us,
        verified=tally.verified,
        witnessed=tally.witnessed,
        mismatched=tally.mismatched,
        skipped=dict(tally.skipped),
        op_id=crossing.op_id,
        host_pages=tuple(crossing.pages[:MOST_PAGES_KEPT].tolist()),
        generations=tuple(crossing.generations[:MOST_PAGES_KEPT].tolist()),
        requests=crossing.names,
        status=crossing.status,
    )
