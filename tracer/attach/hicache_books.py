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
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.pins import Pins
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Books", "Flight"]

_numbers = count(1)

Pool = DevicePool | HostPool


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
    def names(self) -> tuple[str, ...]:
        """Every pool of the group."""
        return tuple(mirror.name for mirror in self.state.group.mirrors)


class Books:
    """Ownership of each allocator's pages, components, completion, pins, and who came after whom."""

    def __init__(self) -> None:
        self.completion = Completion()
        self.pins = Pins()
        self.clocks = Clocks()
        self.ordering = Ordering()
        self.stamps: dict[int, Stamp] = {}
        self._identities: dict[int, Identity] = {}
        self._tiers: dict[int, Ownership] = {}  # by identity: asked for at every note
        self._components: WeakKeyDictionary[CacheState, dict[str, Components]] = WeakKeyDictionary()
        self._spaces: WeakKeyDictionary[Pool, Space] = WeakKeyDictionary()
        self._owners: dict[Space, Ownership] = {}
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

    # -- operations -----------------------------------------------------------------------------

    def submitted(self, flight: Flight) -> list[Violation]:
        """Both ends are open from here on, and the operation owes its pages and layers."""
        allocator, pages = flight.destination
        self.completion.promise(
            flight.key,
            allocator.name,
            pages.tolist(),
            flight.state.group.layer_ids if flight.loads else (),
            flight.by,
            number=flight.op.op_id,
        )
        host, device = self.tier(flight.state.host), self.tier(flight.state.device)
        found = host.open(flight.host, flight.by, writes=not flight.loads)
        return found + device.open(flight.device, flight.by, writes=flight.loads)

    def acknowledged(self, flight: Flight, by: Access) -> list[Violation]:
        """Both ends are let go."""
        host, device = self.tier(flight.state.host), self.tier(flight.state.device)
        found = host.close(flight.host, by, writes=not flight.loads)
        return found + device.close(flight.device, by, writes=flight.loads)

    def looked_at(self, flight: Flight, by: Access) -> list[Violation]:
        """The copy uses the pages now: they must still be those that were submitted."""
        host, device = self.tier(flight.state.host), self.tier(flight.state.device)
        found = host.read(flight.host, flight.host_generations, by)
        return found + device.read(flight.device, flight.device_generations, by)

    def begun(self, flight: Flight, by: Access) -> list[Violation]:
        """Every pool has been given its pages."""
        return self._placed(flight, self.completion.begun(flight.key, by))

    def reported(self, flight: Flight, by: Access, *, good: bool) -> list[Violation]:
        """Readers were told how the operation ended."""
        return self._placed(flight, self.completion.report(flight.key, by, good=good))

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
        return self._placed(flight, self.completion.gate(flight.key, layer, by))

    def carried(self, flight: Flight, names: Iterable[str], by: Access) -> list[Violation]:
        """The copy was begun with these pools; what a load brings must be of one life."""
        allocator, pages = flight.destination
        found = _allocated(
            self.tier(allocator),
            self.components(flight.state, allocator.name).moved(names, pages, by),
        )
        if flight.loads:
            host = flight.state.host
            source = self.components(flight.state, host.name)
            lives = source.present(flight.host, flight.host_generations, by)
            lives += source.agree(flight.host, flight.host_generations, by)
            found += _allocated(self.tier(host), lives)
        return found

    def anchored(
        self, flight: Flight, name: str, given: tuple[Pages, Pages], by: Access
    ) -> list[Violation]:
        """One pool was given these host and device pages."""
        found = strays(name, (flight.host, flight.device), given, by)
        return _allocated(self.tier(flight.state.host), found)

    def arrived(self, flight: Flight, names: Iterable[str]) -> None:
        """The bytes of these pools are there."""
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

    def _placed(self, flight: Flight, found: list[Violation]) -> list[Violation]:
        return _allocated(self.tier(flight.destination[0]), found)

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
        if role in {Role.COMPUTE_READ, Role.COMPUTE_WRITE}:
            self.ordering.watch(space, pool.geometry.layers, pool.pages)
        found = self.ordering.access(space, layers, pages, role=role, stamp=stamp, by=by)
        owner = self._owners.get(space)
        return found if owner is None else _allocated(owner, found)

    def place(self, state: CacheState) -> None:
        """The pools of a cache take their pages from its allocators."""
        for mirror in state.group.mirrors:
            self._owners[self.space(mirror.device, "device")] = self.tier(state.device)
            self._owners[self.space(mirror.host, "host")] = self.tier(state.host)

    def follow(self, mirror: Mirror) -> bool:
        """Whether the order of a mirror's copies is looked at: once the model has touched it."""
        device = self.space(mirror.device, "device")
        if not self.ordering.watches(device):
            return False
        host = mirror.host
        self.ordering.watch(self.space(host, "host"), host.geometry.layers, host.pages)
        return True

    def met(self, actor: ActorId, allocator: PageAllocator) -> None:
        """``actor`` held the allocator's lock: pages change hands through it, and so does order."""
        self.clocks.meet(actor, ("allocator", id(allocator)))

    def stamp(self, actor: ActorId, work: int | None) -> Stamp:
        """When something happens: a piece of queued work's own moment, or the actor's next step."""
        stamp = None if work is None else self.stamps.get(work)
        return self.clocks.step(actor) if stamp is None else stamp

    def gate_opened(self, load: Load, layer: int, actor: ActorId) -> None:
        """Whoever passes this gate comes after what ``actor`` did so far."""
        gates = self._gates.setdefault(load, {})
        carrier = gates[layer] = next(_numbers)
        finalize(load, self.clocks.forget, carrier)
        self.clocks.record(actor, carrier)

    def gate_passed(self, load: Load, layer: int, actor: ActorId) -> None:
        """``actor`` was let to ``layer``: the first gate at or behind it has been opened."""
        gates = self._gates.get(load, {})
        opened = min(
            (number for number in gates if number >= layer), default=max(gates, default=None)
        )
        if opened is not None:
            self.clocks.wait(actor, gates[opened])


def _allocated(book: Ownership, found: list[Violation]) -> list[Violation]:
    """The same violations, with where the first page was handed out."""
    return [
        replace(item, allocated=book.allocated(item.pages[0])) if item.pages else item
        for item in found
    ]
