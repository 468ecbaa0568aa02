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

#: Before a lookup and after a page was cached: what is cached before a lookup begins should be found.
moments = count(1)


class TierBooks:
    """What is known of the pages of one allocator."""

    def __init__(self, name: str, pages: int) -> None:
        self.pages = Ownership(name, pages)
        self.identity = Identity(name, pages)
        self.use = TierUse(name)


class CacheBooks:
    """What is known of the pages of a cache: of both tiers, and which life each pool's bytes are of."""

    def __init__(self, host: TierBooks, device: TierBooks, pools: Sequence[str]) -> None:
        self.host, self.device = host, device
        self.host_bytes = _components(host.pages, pools)
        self.device_bytes = _components(device.pages, pools)


class Books:
    """Ownership of each allocator's pages, components, completion, pins, and who came after whom."""

    def __init__(self) -> None:
        self.completion = Completion()
        self.pins = Pins()
        self.order = Order()
        self.paths = Paths()
        # By identity: asked for at every note.
        self._tiers: dict[int, TierBooks] = {}
        self._caches: dict[int, CacheBooks] = {}
        self._open: dict[OpId, CacheBooks] = {}

    # -- pages ----------------------------------------------------------------------------------

    def tier(self, allocator: PageAllocator) -> TierBooks:
        """The books of an allocator's pages, opened at first sight."""
        books = self._tiers.get(id(allocator))
        if books is None:
            books = self._tiers[id(allocator)] = TierBooks(allocator.name, allocator.pages)
            finalize(allocator, self._tiers.pop, id(allocator), None)
        return books

    def cache(self, state: CacheState) -> CacheBooks:
        """The books of a cache, opened at first sight."""
        books = self._caches.get(id(state))
        if books is None:
            host, device = self.tier(state.host), self.tier(state.device)
            books = CacheBooks(host, device, [mirror.name for mirror in state.group.mirrors])
            self._caches[id(state)] = books
            finalize(state, self._caches.pop, id(state), None)
            for mirror in state.group.mirrors:
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
        """Pages are taken to hold the bytes of these tokens."""
        books = self.tier(allocator)
        return books.pages.located(books.identity.ask(pages, generations, digests, by))

    def missed(
        self, allocator: PageAllocator, digest: int, before: int, by: Access
    ) -> list[Violation]:
        """A lookup that began at ``before`` found nothing for these tokens."""
        books = self.tier(allocator)
        pages, generations = books.identity.written_for(digest, before)
        there = pages[books.pages.alive(pages, generations)]
        return books.pages.located(books.identity.missed(there, by))

    def found_on_host(self, host: PageAllocator, pages: int, by: Access) -> list[Violation]:
        """A lookup found ``pages`` that are on the host only."""
        return self.tier(host).use.asked(by) if pages else []

    # -- operations -----------------------------------------------------------------------------

    def submitted(self, flight: Flight, *, holds: bool) -> list[Violation]:
        """Both ends are open from here on, and the operation owes its pages and layers.

        ``holds`` says that it holds the pages of both allocators as well, of which no other note
        tells.
        """
        books = self._open[flight.key] = self.cache(flight.state)
        pages, loads, by = flight.written[0], flight.loads, flight.by
        self.completion.promise(
            flight.key,
            _written(books, flight).tier,
            pages.tolist(),
            flight.state.group.layer_ids if loads else (),
            by,
            number=flight.op.op_id,
        )
        found = books.host.pages.open(flight.host, by, writes=not loads, holds=holds)
        return found + books.device.pages.open(flight.device, by, writes=loads, holds=holds)

    def acknowledged(self, flight: Flight, by: Access, *, holds: bool) -> list[Violation]:
        """Both ends are let go, and so are their holds if no other note tells of that."""
        books, loads = self._open.pop(flight.key, None), flight.loads
        if books is None:  # submitted before tracing began, or before a gap
            return []
        found = books.host.pages.close(flight.host, by, writes=not loads, holds=holds)
        return found + books.device.pages.close(flight.device, by, writes=loads, holds=holds)

    def looked_at(self, flight: Flight, by: Access) -> list[Violation]:
        """The copy uses the pages now: they must still be those that were submitted."""
        books = self._of(flight)
        found = books.host.pages.read(flight.host, flight.host_generations, by)
        return found + books.device.pages.read(flight.device, flight.device_generations, by)

    def begun(self, flight: Flight, by: Access) -> list[Violation]:
        """Every pool has been given its pages, and its copy begins."""
        found = self.looked_at(flight, by) + self._detoured(flight, by) + self._carried(flight, by)
        for part in flight.parts:
            given = part.device if flight.loads else part.host
            self.completion.deliver(flight.key, part.mirror.name, given.tolist())
            found += self._anchored(flight, part, by)
        return found + self._where_written(flight, self.completion.begun(flight.key, by))

    def reported(self, flight: Flight, by: Access, *, good: bool) -> list[Violation]:
        """Readers were told how the operation ended."""
        return self._where_written(flight, self.completion.report(flight.key, by, good=good))

    def ended(self, flight: Flight, layers: Iterable[int], status: str, by: Access) -> None:
        """The mover has reported these layers, and has returned or raised."""
        self.completion.layers_arrived(flight.key, layers)
        self.completion.end(flight.key, status, by)

    def gate(
        self, flight: Flight, layer: int, arrived: Iterable[int], by: Access
    ) -> list[Violation]:
        """Readers are let to a layer, when ``arrived`` were there."""
        self.completion.layers_arrived(flight.key, arrived)
        return self._where_written(flight, self.completion.gate(flight.key, layer, by))

    def arrived(self, flight: Flight, moment: int) -> None:
        """The bytes of every pool that was carried are there, since ``moment``."""
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
            # Not of a load: the cache may have a device page of its own for what was loaded.
            host.cached(flight.host, moment)
            use.wrote(len(flight.host))

    def filled(self, state: CacheState, pages: Pages, generations: Pages) -> None:
        """Host pages were filled from storage, in every pool of the group."""
        book = self.cache(state).host_bytes
        for name in book.names:
            book.arrived(name, pages, generations)

    def _detoured(self, flight: Flight, by: Access) -> list[Violation]:
        """Every pool should take the path that was chosen."""
        found, chosen = [], flight.state._backend  # noqa: SLF001
        for part in flight.parts:
            if part.backend is not chosen:
                name, path = part.mirror.name, part.backend.value
                found += self.paths.took(name, chosen.value, path, by)
        return found

    def _carried(self, flight: Flight, by: Access) -> list[Violation]:
        """The copy was begun with some pools, of all that there are; what a load brings must be of one life."""
        books, pages = self._of(flight), flight.written[0]
        there = books.device_bytes if flight.loads else books.host_bytes
        absent = there.moved([part.mirror.name for part in flight.parts], pages, by)
        found = _written(books, flight).located(absent)
        source, lives = books.host_bytes, flight.host_generations
        if flight.loads and not source.whole(flight.host, lives):
            wrong = source.present(flight.host, lives, by)
            wrong += source.agree(flight.host, lives, by)
            found += books.host.pages.located(wrong)
        return found

    def _anchored(self, flight: Flight, part: Part, by: Access) -> list[Violation]:
        """One pool was given its pages: they should be the operation's own."""
        if _same(part.host, flight.host) and _same(part.device, flight.device):
            return []
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
    """The book of the tier that is written."""
    return books.device.pages if flight.loads else books.host.pages


def _same(some: Pages, others: Pages) -> bool:
    """``np.array_equal``, at a tenth of its cost for the few pages of a copy."""
    return some is others or some.tobytes() == others.tobytes()
