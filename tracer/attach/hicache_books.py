"""The state machines behind the notes on ``hicache_dbg.pools``; used on the bus's thread only."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from weakref import WeakKeyDictionary, finalize

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.ticket import Load
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.tracer.checks.anchor import strays
from hicache_dbg.tracer.checks.completion import Completion, OpId
from hicache_dbg.tracer.checks.components import Components
from hicache_dbg.tracer.checks.identity import Digests, Identity
from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks, Stamp
from hicache_dbg.tracer.checks.ordering_cuda import CudaOrder
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.pins import Pins
from hicache_dbg.tracer.checks.tiers import Paths, TierUse
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Books", "Flight", "moments"]

_numbers = count(1)
#: Before a lookup and after a page was cached: what is cached before a lookup begins should be found.
moments = count(1)

Pool = DevicePool | HostPool
#: Accesses of the model's own kernels.
_MODELS = {Role.COMPUTE_READ, Role.COMPUTE_WRITE}


@dataclass(slots=True, eq=False)
class Flight:
    """An operation between its submission and its acknowledgement.

    Generations are those at submission. ``by`` is where it was submitted.
    """

    op: CopyOp
    state: CacheState
    host: Pages
    device: Pages
    host_generations: Pages
    device_generations: Pages
    by: Access
    #: Who carries the copy out, once it has begun.
    carrier: Access | None = None
    #: Layers that the mover itself has reported.
    arrived: list[int] = field(default_factory=list)
    key: OpId = field(default_factory=lambda: OpId(next(_numbers)))

    @property
    def what(self) -> str:
        """``load 7``."""
        return f"{self.op.kind} {self.op.op_id}"

    @property
    def loads(self) -> bool:
        """Whether bytes go to the device."""
        return self.op.kind == "load"

    @property
    def destination(self) -> tuple[PageAllocator, Pages]:
        """The tier that is written, and its pages."""
        return (self.state.device, self.device) if self.loads else (self.state.host, self.host)

    @property
    def pool(self) -> str:
        """Every pool of the group, as findings name them."""
        return "+".join(mirror.name for mirror in self.state.group.mirrors)


class Books:
    """Ownership of each allocator's pages, components, completion, pins, and who came after whom."""

    def __init__(self) -> None:
        self.completion = Completion()
        self.pins = Pins()
        self.clocks = Clocks()
        self.ordering = Ordering()
        self.cuda = CudaOrder(self.clocks)
        self.stamps: dict[int, Stamp] = {}
        self.paths = Paths()
        self._use: dict[int, TierUse] = {}
        self._identities: dict[int, Identity] = {}
        self._tiers: dict[int, Ownership] = {}  # by identity: asked for at every note
        self._components: WeakKeyDictionary[CacheState, dict[str, Components]] = WeakKeyDictionary()
        self._spaces: WeakKeyDictionary[Pool, Space] = WeakKeyDictionary()
        self._owners: dict[Space, Ownership] = {}
        self._ends: dict[OpId, tuple[Ownership, Ownership]] = {}  # host and device of what is open
        self._placed: set[int] = set()  # caches, by identity
        self._followed: set[int] = set()  # mirrors, by identity
        self._gates: WeakKeyDictionary[Load, dict[int, int]] = WeakKeyDictionary()

    # -- pages ----------------------------------------------------------------------------------

    def tier(self, allocator: PageAllocator) -> Ownership:
        """The book of an allocator's pages, opened at first sight."""
        book = self._tiers.get(id(allocator))
        if book is None:
            book = self._tiers[id(allocator)] = Ownership(allocator.name, allocator.pages)
            finalize(allocator, self._tiers.pop, id(allocator), None)
        return book

    def components(self, state: CacheState, tier: str) -> Components:
        """Which life each pool's bytes are of, on the pages of one tier."""
        books = self._components.get(state)
        if books is None:
            names = [mirror.name for mirror in state.group.mirrors]
            books = self._components[state] = {
                allocator.name: Components(allocator.name, allocator.pages, names)
                for allocator in (state.host, state.device)
            }
        return books[tier]

    def identity(self, allocator: PageAllocator) -> Identity:
        """Which tokens an allocator's pages were written for."""
        book = self._identities.get(id(allocator))
        if book is None:
            book = Identity(allocator.name, allocator.pages)
            self._identities[id(allocator)] = book
            finalize(allocator, self._identities.pop, id(allocator), None)
        return book

    def asked(
        self,
        allocator: PageAllocator,
        pages: Pages,
        generations: Pages,
        digests: Digests,
        by: Access,
    ) -> list[Violation]:
        """Pages are taken to hold the bytes of these tokens."""
        found = self.identity(allocator).ask(pages, generations, digests, by)
        return _allocated(self.tier(allocator), found)

    def missed(
        self, allocator: PageAllocator, digest: int, before: int, by: Access
    ) -> list[Violation]:
        """A lookup that began at ``before`` found nothing for these tokens."""
        book, tier = self.identity(allocator), self.tier(allocator)
        pages, generations = book.written_for(digest, before)
        return _allocated(tier, book.missed(pages[tier.alive(pages, generations)], by))

    def found_on_host(self, host: PageAllocator, pages: int, by: Access) -> list[Violation]:
        """A lookup found ``pages`` that are on the host only."""
        return self.use(host).asked(by) if pages else []

    def use(self, allocator: PageAllocator) -> TierUse:
        """What went into the tier of these pages, and what came out of it."""
        use = self._use.get(id(allocator))
        if use is None:
            use = self._use[id(allocator)] = TierUse(allocator.name)
            finalize(allocator, self._use.pop, id(allocator), None)
        return use

    # -- operations -----------------------------------------------------------------------------

    def submitted(self, flight: Flight, *, holds: bool) -> list[Violation]:
        """Both ends are open from here on, and the operation owes its pages and layers.

        ``holds`` says that it holds the pages of both allocators as well, of which no other note
        tells.
        """
        allocator, pages = flight.destination
        self.completion.promise(
            flight.key,
            allocator.name,
            pages.tolist(),
            flight.state.group.layer_ids if flight.loads else (),
            flight.by,
            number=flight.op.op_id,
        )
        host, device = self._ends[flight.key] = self._both(flight)
        found = host.open(flight.host, flight.by, writes=not flight.loads, holds=holds)
        return found + device.open(flight.device, flight.by, writes=flight.loads, holds=holds)

    def acknowledged(self, flight: Flight, by: Access, *, holds: bool) -> list[Violation]:
        """Both ends are let go, and so are their holds if no other note tells of that."""
        ends = self._ends.pop(flight.key, None)
        if ends is None:  # submitted before tracing began, or before a gap
            return []
        host, device = ends
        found = host.close(flight.host, by, writes=not flight.loads, holds=holds)
        return found + device.close(flight.device, by, writes=flight.loads, holds=holds)

    def looked_at(self, flight: Flight, by: Access) -> list[Violation]:
        """The copy uses the pages now: they must still be those that were submitted."""
        host, device = self._ends.get(flight.key) or self._both(flight)
        found = host.read(flight.host, flight.host_generations, by)
        return found + device.read(flight.device, flight.device_generations, by)

    def begun(self, flight: Flight, by: Access) -> list[Violation]:
        """Every pool has been given its pages."""
        return self._at_destination(flight, self.completion.begun(flight.key, by))

    def reported(self, flight: Flight, by: Access, *, good: bool) -> list[Violation]:
        """Readers were told how the operation ended."""
        return self._at_destination(flight, self.completion.report(flight.key, by, good=good))

    def ended(self, flight: Flight, layers: Iterable[int], status: str, by: Access) -> None:
        """The mover has reported these layers, and has returned or raised."""
        for layer in layers:
            self.completion.layer_arrived(flight.key, layer)
        self.completion.end(flight.key, status, by)

    def gate(
        self, flight: Flight, layer: int, arrived: Iterable[int], by: Access
    ) -> list[Violation]:
        """Readers are let to a layer, when ``arrived`` were there."""
        for there in arrived:
            self.completion.layer_arrived(flight.key, there)
        return self._at_destination(flight, self.completion.gate(flight.key, layer, by))

    def carried(self, flight: Flight, names: Iterable[str], by: Access) -> list[Violation]:
        """The copy was begun with these pools; what a load brings must be of one life."""
        allocator, pages = flight.destination
        absent = self.components(flight.state, allocator.name).moved(names, pages, by)
        found = self._placed_at(allocator, absent)
        if flight.loads:
            host = flight.state.host
            source = self.components(flight.state, host.name)
            if not source.whole(flight.host, flight.host_generations):
                lives = source.present(flight.host, flight.host_generations, by)
                lives += source.agree(flight.host, flight.host_generations, by)
                found += self._placed_at(host, lives)
        return found

    def anchored(
        self, flight: Flight, name: str, given: tuple[Pages, Pages], by: Access
    ) -> list[Violation]:
        """One pool was given these host and device pages."""
        host, device = given
        if _same(host, flight.host) and _same(device, flight.device):
            return []
        found = strays(name, (flight.host, flight.device), given, by)
        return self._placed_at(flight.state.host, found)

    def arrived(self, flight: Flight, names: Iterable[str], moment: int) -> None:
        """The bytes of these pools are there, since ``moment``."""
        allocator, pages = flight.destination
        generations = flight.device_generations if flight.loads else flight.host_generations
        book = self.components(flight.state, allocator.name)
        for name in names:
            book.arrived(name, pages, generations)
        ends = [
            (self.identity(flight.state.host), flight.host, flight.host_generations),
            (self.identity(flight.state.device), flight.device, flight.device_generations),
        ]
        (source, ids, lives), (there, *onto) = ends if flight.loads else ends[::-1]
        source.carry(ids, lives, there, (onto[0], onto[1]))
        if not flight.loads:  # the cache may have a device page of its own for what was loaded
            there.cached(flight.host, moment)
        use = self.use(flight.state.host)
        (use.gave if flight.loads else use.wrote)(len(flight.host))

    def _both(self, flight: Flight) -> tuple[Ownership, Ownership]:
        return self.tier(flight.state.host), self.tier(flight.state.device)

    def _at_destination(self, flight: Flight, found: list[Violation]) -> list[Violation]:
        return self._placed_at(flight.destination[0], found)

    def _placed_at(self, allocator: PageAllocator, found: list[Violation]) -> list[Violation]:
        return _allocated(self.tier(allocator), found) if found else found

    # -- order ----------------------------------------------------------------------------------

    def space(self, pool: Pool, tier: str) -> Space:
        """The pages of a pool object as the ordering check names them."""
        space = self._spaces.get(pool)
        if space is None:
            space = self._spaces[pool] = Space(tier, pool.geometry.name, next(_numbers))
            finalize(pool, self.ordering.forget, space)
            finalize(pool, self._owners.pop, space, None)
        return space

    def touched(
        self,
        pool: Pool,
        tier: str,
        layers: tuple[int, ...],
        pages: Pages,
        *,
        role: Role,
        stamp: Stamp,
        by: Access,
    ) -> list[Violation]:
        """An access to ``pool``. Copies count from the model's first access to the pool on."""
        space = self.space(pool, tier)
        if role in _MODELS:
            self.ordering.watch(space, pool.geometry.layers, pool.pages)
        found = self.ordering.access(space, layers, pages, role=role, stamp=stamp, by=by)
        owner = self._owners.get(space) if found else None
        return found if owner is None else _allocated(owner, found)

    def place(self, state: CacheState) -> None:
        """The pools of a cache take their pages from its allocators."""
        if id(state) in self._placed:
            return
        self._placed.add(id(state))
        finalize(state, self._placed.discard, id(state))
        for mirror in state.group.mirrors:
            self._owners[self.space(mirror.device, "device")] = self.tier(state.device)
            self._owners[self.space(mirror.host, "host")] = self.tier(state.host)

    def follow(self, mirror: Mirror) -> bool:
        """Whether the order of a mirror's copies is looked at: once the model has touched it."""
        if id(mirror) in self._followed:
            return True
        if not self.ordering.watches(self.space(mirror.device, "device")):
            return False
        host = mirror.host
        self.ordering.watch(self.space(host, "host"), host.geometry.layers, host.pages)
        self._followed.add(id(mirror))
        finalize(mirror, self._followed.discard, id(mirror))
        return True

    def met(self, actor: ActorId | None, *allocators: PageAllocator) -> None:
        """``actor`` held the allocators' locks: pages change hands through them, and so does order.

        None: nobody looks at the order.
        """
        if actor is not None:
            for allocator in allocators:
                self.clocks.meet(actor, ("allocator", id(allocator)))

    def stamp(self, actor: ActorId, work: int | None) -> Stamp:
        """When something happens: a piece of queued work's own moment, or the actor's next step."""
        stamp = None if work is None else self.stamps.get(work)
        return self.clocks.step(actor) if stamp is None else stamp

    def gate_opened(self, load: Load, layer: int, actor: ActorId) -> None:
        """Whoever passes this gate comes after what ``actor`` did so far."""
        gates = self._gates.get(load)
        if gates is None:
            gates = self._gates[load] = {}
            finalize(load, _forget_all, self.clocks, gates)
        carrier = gates[layer] = next(_numbers)
        self.clocks.record(actor, carrier)

    def gate_passed(self, load: Load, layer: int, actor: ActorId) -> None:
        """``actor`` was let to ``layer``: the first gate at or behind it has been opened."""
        gates = self._gates.get(load, {})
        opened = min(
            (number for number in gates if number >= layer), default=max(gates, default=None)
        )
        if opened is not None:
            self.clocks.wait(actor, gates[opened])


def _forget_all(clocks: Clocks, gates: dict[int, int]) -> None:
    for carrier in gates.values():
        clocks.forget(carrier)


def _same(some: Pages, others: Pages) -> bool:
    """``np.array_equal``, at a tenth of its cost for the few pages of a copy."""
    return some is others or some.tobytes() == others.tobytes()


def _allocated(book: Ownership, found: list[Violation]) -> list[Violation]:
    """The same violations, with where the first page was handed out."""
    return [
        replace(item, allocated=book.allocated(item.pages[0])) if item.pages else item
        for item in found
    ]
