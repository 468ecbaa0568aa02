"""Who came after whom among the users of ``hicache_dbg.pools``; used on the bus's thread only."""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary, finalize

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.ticket import Load
from hicache_dbg.tracer.attach.hicache_flight import Flight
from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks, Stamp, Step
from hicache_dbg.tracer.checks.ordering_cuda import CudaOrder
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Order"]

Pool = DevicePool | HostPool
_numbers = count(1)
#: Beyond the numbers of threads and of simulated streams.
_MOVERS = 1 << 60


class _Ends(NamedTuple):
    """The two ends of a mirror whose copies are looked at; ``own`` finds its layer by the model's.

    ``models`` are the model's numbers of its layers.
    """

    host: Space
    device: Space
    own: dict[int, int]
    models: tuple[int, ...]


class Order:
    """Clocks of threads and streams, what carries them over, and the last accesses to each pool."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.cuda = CudaOrder(self.clocks)
        #: By the number of a piece of queued work.
        self.stamps: dict[int, Stamp] = {}
        self._ordering = Ordering()
        self._touched = False  # by the model
        self._spaces: WeakKeyDictionary[Pool, Space] = WeakKeyDictionary()
        self._tables: WeakKeyDictionary[object, Space] = WeakKeyDictionary()  # by owner
        self._owners: dict[Space, Ownership] = {}
        self._ends: dict[int, _Ends] = {}  # by identity of the mirrors that are followed
        self._gates: WeakKeyDictionary[Load, dict[int, Stamp]] = WeakKeyDictionary()

    # -- accesses -------------------------------------------------------------------------------

    def place(self, mirror: Mirror, host: Ownership, device: Ownership) -> None:
        """The pools of ``mirror`` take their pages from the allocators of these books."""
        self._owners[self._space(mirror.host, "host")] = host
        self._owners[self._space(mirror.device, "device")] = device

    def begun(
        self, flight: Flight, by: Access, actor: ActorId, work: int | None
    ) -> list[Violation]:
        """The bytes of a copy are read from here on, and those of a backup written."""
        found: list[Violation] = []
        stamp = None
        for part in flight.parts:
            ends = self._followed(part.mirror)
            if ends is None:
                continue
            if stamp is None:
                stamp = self.stamp(actor, work)
                if stamp is not None and flight.loads and work is None:
                    self._promise(flight, stamp)
            layers, host, device = part.layers, part.host, part.device
            if not flight.loads:
                found += self._access(ends.device, layers, device, Role.BACKUP_READ, stamp, by)
                found += self._access(ends.host, layers, host, Role.BACKUP_WRITE, stamp, by)
                continue
            found += self._access(ends.host, layers, host, Role.LOAD_READ, stamp, by)
            if flight.first is not None:
                steps = [flight.promised[ends.models[layer]] for layer in layers]
                found += self._access(
                    ends.device, layers, device, Role.LOAD_WRITE, flight.first, by, steps
                )
        return found

    def _promise(self, flight: Flight, stamp: Stamp) -> None:
        """A step for each layer that a load is to bring: whoever comes after one has its bytes."""
        layers = flight.state.group.layer_ids
        first = flight.first = self.clocks.promise(_mover(stamp.actor), stamp, len(layers))
        flight.promised = {layer: Step(first.step + at) for at, layer in enumerate(layers)}

    def landed(
        self, flight: Flight, layers: Sequence[int], actor: ActorId, work: int | None
    ) -> list[Violation]:
        """The bytes of these layers of the model are on the device: they were written just before."""
        if flight.first is not None:
            self._came(flight, actor, flight.promised[layers[-1]])
            return []
        found: list[Violation] = []
        stamp, by = None, flight.carrier or flight.by
        for part in flight.parts:
            ends = self._followed(part.mirror)
            if ends is None:
                continue
            stamp = stamp or self.stamp(actor, work)
            own = tuple(ends.own[layer] for layer in layers if layer in ends.own)
            if len(part.layers) < len(ends.own):
                own = tuple(layer for layer in own if layer in part.layers)
            found += self._access(ends.device, own, part.device, Role.LOAD_WRITE, stamp, by)
        return found

    def over(self, flight: Flight, actor: ActorId) -> None:
        """The mover has returned or raised: it writes no more, whatever it had promised."""
        if flight.first is not None:
            self._came(flight, actor, max(flight.promised.values()))

    def _came(self, flight: Flight, actor: ActorId, step: Step) -> None:
        """What was promised up to this step is done, or never will be."""
        first = flight.first
        assert first is not None  # noqa: S101 - asked by the callers
        if step <= self.clocks.now(first.actor).step:  # else it was promised in earlier books
            self.clocks.learn(actor, Stamp(first.actor, step, first.clock))

    def touched(  # noqa: PLR0917 - an access is all of these
        self,
        pool: DevicePool,
        layers: tuple[int, ...],
        pages: Pages,
        role: Role,
        stamp: Stamp | None,
        by: Access,
    ) -> list[Violation]:
        """The model reads or writes a pool; copies count from its first access to the pool on."""
        self._touched, space = True, self._space(pool, "device")
        self._ordering.watch(space, pool.geometry.layers, pool.pages)
        return self._access(space, layers, pages, role, stamp, by)

    def table(self, owner: object, name: str, rows: int) -> Space:
        """The rows of a control table, followed from the first touch until ``owner`` is gone."""
        space = self._tables.get(owner)
        if space is None:
            space = self._tables[owner] = Space("device", name, next(_numbers))
            self._ordering.watch(space, 1, rows)
            finalize(owner, self._ordering.forget, space)
        return space

    def table_touched(
        self, table: Space, rows: Pages, role: Role, stamp: Stamp | None, by: Access
    ) -> list[Violation]:
        """Rows of a control table are read or written."""
        if stamp is None:
            return []
        return self._ordering.access(table, (0,), rows, role=role, stamp=stamp, by=by)

    def _access(  # noqa: PLR0917 - as above
        self,
        space: Space,
        layers: tuple[int, ...],
        pages: Pages,
        role: Role,
        stamp: Stamp | None,
        by: Access,
        steps: list[Step] | None = None,
    ) -> list[Violation]:
        if stamp is None:  # nobody knows whom it comes after
            return []
        access = self._ordering.access
        try:
            found = access(space, layers, pages, role=role, stamp=stamp, by=by, steps=steps)
        except IndexError:  # there is no such page, which is another check's business
            return []
        owner = self._owners.get(space) if found else None
        return found if owner is None else owner.located(found)

    def _followed(self, mirror: Mirror) -> "_Ends | None":
        """Both ends of a mirror, once the model has touched its device end; None before."""
        ends = self._ends.get(id(mirror))
        if ends is not None or not self._touched:
            return ends
        host, device = mirror.host, self._space(mirror.device, "device")
        if not self._ordering.watches(device):
            return None
        models = tuple(mirror.device.geometry.layer_ids)
        own = {layer: at for at, layer in enumerate(models)}
        ends = self._ends[id(mirror)] = _Ends(self._space(host, "host"), device, own, models)
        self._ordering.watch(ends.host, host.geometry.layers, host.pages)
        finalize(mirror, self._ends.pop, id(mirror), None)
        return ends

    def _space(self, pool: Pool, tier: str) -> Space:
        """The pages of a pool object as the ordering check names them."""
        space = self._spaces.get(pool)
        if space is None:
            space = self._spaces[pool] = Space(tier, pool.geometry.name, next(_numbers))
            finalize(pool, self._ordering.forget, space)
            finalize(pool, self._owners.pop, space, None)
        return space

    # -- clocks ---------------------------------------------------------------------------------

    def met(self, actor: ActorId | None, *allocators: PageAllocator) -> None:
        """``actor`` held the allocators' locks: pages change hands through them, and so does order.

        None: nobody looks at the order.
        """
        if actor is not None:
            for allocator in allocators:
                self.clocks.meet(actor, ("allocator", id(allocator)))

    def stamp(self, actor: ActorId, work: int | None) -> Stamp | None:
        """When something happens: a piece of queued work's own moment, or the actor's next step.

        None of work that was queued before these books were begun: nor was it seen who waited for it.
        """
        return self.clocks.step(actor) if work is None else self.stamps.get(work)

    def gate_opened(self, load: Load, layer: int, actor: ActorId) -> None:
        """Whoever passes this gate comes after what ``actor`` did so far."""
        gates = self._gates.get(load)
        if gates is None:
            gates = self._gates[load] = {}
        gates[layer] = self.clocks.now(actor)

    def gate_passed(self, load: Load, layer: int, actor: ActorId) -> None:
        """``actor`` was let to ``layer``: the first gate at or behind it has been opened."""
        gates = self._gates.get(load, {})
        if layer not in gates:
            behind = (number for number in gates if number >= layer)
            layer = min(behind, default=max(gates, default=layer))
        if layer in gates:
            self.clocks.learn(actor, gates[layer])


def _mover(actor: ActorId) -> ActorId:
    """Whoever writes a load's layers for ``actor``, one after the other."""
    return ActorId(actor + _MOVERS if actor >= 0 else actor - _MOVERS)
