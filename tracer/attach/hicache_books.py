"""The state machines behind the notes on ``hicache_dbg.pools``; used on the bus's thread only."""

from collections.abc import Iterable, Sequence
from itertools import count
from weakref import finalize

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.state import CacheState
from hicache_dbg.tracer.attach.hicache_flight import Flight, Part
from hicache_dbg.tracer.attach.hicache_order import Order
from hicache_dbg.tracer.checks.anchor import strays
from hicache_dbg.tracer.checks.completion import Completion, OpId
from hicache_dbg.tracer.checks.components import Components
from hicache_dbg.tracer.checks.identity import Digests, Identity
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.pins import Pins
from hicache_dbg.tracer.checks.tiers import Paths, TierUse
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Books", "CacheBooks", "TierBooks", "moments"]

#: Logical clock, read before each lookup and after each page is cached: a lookup must find what was
#: cached before it began.
moments = count(1)

_NO_LAYERS = frozenset[int]()


class TierBooks:
    """What is known of the pages of one allocator."""

    def __init__(self, name: str, pages: int) -> None:
        self.pages = Ownership(name, pages)
        self.identity = Identity(name, pages)
        self.use = TierUse(name)


class CacheBooks:
    """What is known of a cache's pages: both tiers, and the generation of each pool's bytes."""

    def __init__(
        self, host: TierBooks, device: TierBooks, pools: Sequence[str], layers: Sequence[int]
    ) -> None:
        self.host, self.device = host, device
        #: Layers that a load must bring.
        self.layers = frozenset(layers)
        self.host_bytes = _components(host.pages, pools)
        self.device_bytes = _components(device.pages, pools)


class Books:
    """Ownership, components, completion, pins, and the order of accesses, over all caches."""

    def __init__(self) -> None:
        self.completion = Completion()
        self.pins = Pins()
        self.order = Order()
        self.paths = Paths()
        # By identity: every note looks one up.
        self._tiers: dict[int, TierBooks] = {}
        self._caches: dict[int, CacheBooks] = {}
        self._open: dict[OpId, CacheBooks] = {}

    # -- pages ----------------------------------------------------------------------------------

    def tier(self, allocator: PageAllocator) -> TierBooks:
        """Return the books of an allocator's pages, opened on first use."""
        books = self._tiers.get(id(allocator))
        if books is None:
            books = self._tiers[id(allocator)] = TierBooks(allocator.name, allocator.pages)
            finalize(allocator, self._tiers.pop, id(allocator), None)
        return books

    def cache(self, state: CacheState) -> CacheBooks:
        """Return the books of a cache, opened on first use."""
        books = self._caches.get(id(state))
        if books is None:
            host, device = self.tier(state.host), self.tier(state.device)
            group = state.group
            pools = [mirror.name for mirror in group.mirrors]
            books = CacheBooks(host, device, pools, group.layer_ids)
            self._caches[id(state)] = books
            finalize(state, self._caches.pop, id(state), None)
            for mirror in group.mirrors:
                self.order.place(mirror, host.pages, device.pages)
        return books

    def asked(
        self,
        allocator: PageAllocator,
        pages: Pages,
        generations: Pages,
        digests: Digests,
        by: Access,
    ) -> list[Violation]:
        """Check that pages hold the bytes of these tokens."""
        books = self.tier(allocator)
        return books.pages.located(books.identity.ask(pages, generations, digests, by))

    def missed(
        self, allocator: PageAllocator, digest: int, before: int, by: Access
    ) -> list[Violation]:
        """Check a lookup begun at ``before`` that found nothing for these tokens."""
        books = self.tier(allocator)
        pages, generations = books.identity.written_for(digest, before)
        there = pages[books.pages.alive(pages, generations)]
        return books.pages.located(books.identity.missed(there, by))

    # -- operations -----------------------------------------------------------------------------

    def submitted(self, flight: Flight, *, holds: bool) -> list[Violation]:
        """Open both ends of an operation and record the pages and layers it must bring.

        ``holds`` means that it also holds the pages of both allocators, which no other note
        records.
        """
        books = self._open[flight.key] = self.cache(flight.state)
        loads, by = flight.loads, flight.by
        host, device = books.host.pages, books.device.pages
        self.completion.promise(
            flight.key,
            (device if loads else host).tier,
            flight.written[0],
            books.layers if loads else _NO_LAYERS,
            by,
            flight.op.op_id,
        )
        found = host.open(flight.host, by, writes=not loads, holds=holds)
        return found + device.open(flight.device, by, writes=loads, holds=holds)

    def acknowledged(self, flight: Flight, by: Access, *, holds: bool) -> list[Violation]:
        """Close both ends, and release the operation's holds if ``holds`` is set."""
        books, loads = self._open.pop(flight.key, None), flight.loads
        if books is None:  # submitted before tracing started, or before a gap
            return []
        found = books.host.pages.close(flight.host, by, writes=not loads, holds=holds)
        return found + books.device.pages.close(flight.device, by, writes=loads, holds=holds)

    def closed(self, state: CacheState, by: Access) -> list[Violation]:
        """Check the operations of a cache that was closed: all must have ended."""
        books = self.cache(state)
        left = [op for op, of in self._open.items() if of is books]
        for op in left:
            del self._open[op]
        return self.completion.outstanding(left, by)

    def looked_at(self, flight: Flight, by: Access) -> list[Violation]:
        """Check that the pages a copy uses now are still those that were submitted."""
        books = self._open.get(flight.key)
        upset = None if books is None else (books.host.pages.upset, books.device.pages.upset)
        if upset is not None and upset == flight.sure:
            return []  # no page in use was allocated or freed since the last check
        books = books or self.cache(flight.state)
        found = books.host.pages.read(flight.host, flight.host_generations, by)
        found += books.device.pages.read(flight.device, flight.device_generations, by)
        flight.sure = None if found else upset
        return found

    def begun(self, flight: Flight, by: Access) -> list[Violation]:
        """Check the pages given to each pool at the start of a copy."""
        found, books = self.looked_at(flight, by), self._of(flight)
        chosen, loads, given = flight.state._backend, flight.loads, {}  # noqa: SLF001
        for part in flight.parts:
            name, exact = part.mirror.name, _exact(part, flight)
            given[name] = flight.written[0] if exact else part.device if loads else part.host
            if not exact:
                found += self._strayed(flight, part, by)
            if part.backend is not chosen:
                found += self.paths.took(name, chosen.value, part.backend.value, by)
        there = books.device_bytes if loads else books.host_bytes
        wrong = there.moved(tuple(given), flight.written[0], by)
        wrong += self.completion.begun(flight.key, given, by)
        found += self._where_written(flight, wrong)
        return found + self._of_one_life(flight, by) if loads else found

    def reported(self, flight: Flight, by: Access, *, good: bool) -> list[Violation]:
        """Check the result that was reported to readers."""
        return self._where_written(flight, self.completion.report(flight.key, by, good=good))

    def ended(self, flight: Flight, layers: Iterable[int], status: str, by: Access) -> None:
        """Record the layers the copy reported, and that it returned or raised."""
        self.completion.layers_arrived(flight.key, layers)
        self.completion.end(flight.key, status, by)

    def gate(
        self, flight: Flight, layer: int, arrived: Iterable[int], by: Access
    ) -> list[Violation]:
        """Check the opening of a layer's gate, at a time when ``arrived`` layers had arrived."""
        self.completion.layers_arrived(flight.key, arrived)
        return self._where_written(flight, self.completion.gate(flight.key, layer, by))

    def arrived(self, flight: Flight, moment: int) -> None:
        """Record that the bytes of every copied pool have arrived, as of ``moment``."""
        books, written = self._of(flight), flight.written
        host, device, use = books.host.identity, books.device.identity, books.host.use
        there = books.device_bytes if flight.loads else books.host_bytes
        for part in flight.parts:
            there.arrived(part.mirror.name, *written)
        if flight.loads:
            host.carry(flight.host, flight.host_generations, device, written)
            use.gave(len(flight.host))
        else:
            device.carry(flight.device, flight.device_generations, host, written)
            # Not for a load: the cache may have another device page for what was loaded.
            host.cached(flight.host, moment)
            use.wrote(len(flight.host))

    def filled(self, state: CacheState, pages: Pages, generations: Pages) -> None:
        """Record that host pages were filled from storage, in every pool of the group."""
        book = self.cache(state).host_bytes
        for name in book.names:
            book.arrived(name, pages, generations)

    def _of_one_life(self, flight: Flight, by: Access) -> list[Violation]:
        """Check that what a load brings has one generation in every pool."""
        books, pages, lives = self._of(flight), flight.host, flight.host_generations
        source = books.host_bytes
        if source.whole(pages, lives):
            return []
        wrong = source.present(pages, lives, by) + source.agree(pages, lives, by)
        return books.host.pages.located(wrong)

    def _strayed(self, flight: Flight, part: Part, by: Access) -> list[Violation]:
        """Report a pool that was given other pages than the operation's own."""
        anchor, given = (flight.host, flight.device), (part.host, part.device)
        found = strays(part.mirror.name, anchor, given, by)
        return self._of(flight).host.pages.located(found)

    def _of(self, flight: Flight) -> CacheBooks:
        return self._open.get(flight.key) or self.cache(flight.state)

    def _where_written(self, flight: Flight, found: list[Violation]) -> list[Violation]:
        return _written(self._of(flight), flight).located(found) if found else found


def _components(pages: Ownership, pools: Sequence[str]) -> Components:
    return Components(pages.tier, len(pages), pools)


def _written(books: CacheBooks, flight: Flight) -> Ownership:
    """Return the book of the tier that is written."""
    return books.device.pages if flight.loads else books.host.pages


def _exact(part: Part, flight: Flight) -> bool:
    """Return whether a pool was given exactly the operation's pages, in the same order."""
    return (
        part.host.tobytes() == flight.host.tobytes()
        and part.device.tobytes() == flight.device.tobytes()
    )
