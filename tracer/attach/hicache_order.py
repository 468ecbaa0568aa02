"""The order of accesses among the users of ``hicache_dbg.pools``; used on the bus's thread only."""

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
#: Above the ids of threads and of simulated streams.
_MOVERS = 1 << 60


class _Ends(NamedTuple):
    """The two ends of a mirror whose copies are followed.

    ``models`` are the model's numbers of its layers; ``own`` maps them to the pool's.
    """

    host: Space
    device: Space
    own: dict[int, int]
    models: tuple[int, ...]


class Order:
    """Clocks of threads and streams, their carriers, and the last accesses to each pool."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.cuda = CudaOrder(self.clocks)
        #: Stamp of each piece of queued work, by its number.
        self.stamps: dict[int, Stamp] = {}
        self._ordering = Ordering()
        self._touched = False  # whether the model has touched any pool
        self._spaces: WeakKeyDictionary[Pool, Space] = WeakKeyDictionary()
        self._tables: WeakKeyDictionary[object, Space] = WeakKeyDictionary()  # by owner
        self._owners: dict[Space, Ownership] = {}
        self._ends: dict[int, _Ends] = {}  # by identity of the mirrors that are followed
        self._gates: WeakKeyDictionary[Load, dict[int, Stamp]] = WeakKeyDictionary()

    # -- accesses -------------------------------------------------------------------------------

    def place(self, mirror: Mirror, host: Ownership, device: Ownership) -> None:
        """Link the pools of ``mirror`` to the books of their allocators."""
        self._owners[self._space(mirror.host, "host")] = host
        self._owners[self._space(mirror.device, "device")] = device

    def begun(
        self, flight: Flight, by: Access, actor: ActorId, work: int | None
    ) -> list[Violation]:
        """Record the reads of a copy that begins, and the writes of a backup."""
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
        """Reserve a step for each layer of a load: whoever waits for one has its bytes."""
        layers = flight.state.group.layer_ids
        first = flight.first = self.clocks.promise(_mover(stamp.actor), stamp, len(layers))
        flight.promised = {layer: Step(first.step + at) for at, layer in enumerate(layers)}

    def landed(
        self, flight: Flight, layers: Sequence[int], actor: ActorId, work: int | None
    ) -> list[Violation]:
        """Record that the bytes of these layers (the model's numbers) have just been written."""
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
        """Record that the copy has returned or raised: it writes no more, whatever it promised."""
        if flight.first is not None:
            self._came(flight, actor, max(flight.promised.values()))

    def _came(self, flight: Flight, actor: ActorId, step: Step) -> None:
        """Mark the promised steps up to ``step`` as done, or as never to come."""
        first = flight.first
        assert first is not None  # noqa: S101 - the callers check it
        if step <= self.clocks.now(first.actor).step:  # else the promise predates these books
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
        """Record that the model reads or writes a pool; copies of a pool count from then on."""
        self._touched, space = True, self._space(pool, "device")
        self._ordering.watch(space, pool.geometry.layers, pool.pages)
        return self._access(space, layers, pages, role, stamp, by)

    def table(self, owner: object, name: str, rows: int) -> Space:
        """Return the space of a control table, followed from its first touch until ``owner`` dies."""
        space = self._tables.get(owner)
        if space is None:
            space = self._tables[owner] = Space("device", name, next(_numbers))
            self._ordering.watch(space, 1, rows)
            finalize(owner, self._ordering.forget, space)
        return space

    def table_touched(
        self, table: Space, rows: Pages, role: Role, stamp: Stamp | None, by: Access
    ) -> list[Violation]:
        """Record a read or write of rows of a control table."""
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
        if stamp is None:  # its place in the order is unknown
            return []
        access = self._ordering.access
        try:
            found = access(space, layers, pages, role=role, stamp=stamp, by=by, steps=steps)
        except IndexError:  # no such page; another check reports that
            return []
        owner = self._owners.get(space) if found else None
        return found if owner is None else owner.located(found)

    def _followed(self, mirror: Mirror) -> "_Ends | None":
        """Return both ends of a mirror once the model has touched its device end, else None."""
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
        """Return the space of a pool object for the ordering check."""
        space = self._spaces.get(pool)
        if space is None:
            space = self._spaces[pool] = Space(tier, pool.geometry.name, next(_numbers))
            finalize(pool, self._ordering.forget, space)
            finalize(pool, self._owners.pop, space, None)
        return space

    # -- clocks ---------------------------------------------------------------------------------

    def met(self, actor: ActorId | None, *allocators: PageAllocator) -> None:
        """Record that ``actor`` held the allocators' locks, which order it with other holders.

        None means that the order is not being checked.
        """
        if actor is not None:
            for allocator in allocators:
                self.clocks.meet(actor, self.clocks.carrier(allocator))

    def recorded(self, actor: ActorId, event: object) -> None:
        """Let ``event`` stand for all that ``actor`` did so far."""
        self.clocks.record(actor, self.clocks.carrier(event))

    def waited(self, actor: ActorId, event: object) -> None:
        """Order whatever ``actor`` does next after what ``event`` stands for."""
        self.clocks.wait(actor, self.clocks.carrier(event))

    def stamp(self, actor: ActorId, work: int | None) -> Stamp | None:
        """Return when something happens: the moment of queued work, or the actor's next step.

        None for work that was queued before these books were opened, since its waits were not seen
        either.
        """
        return self.clocks.step(actor) if work is None else self.stamps.get(work)

    def gate_opened(self, load: Load, layer: int, actor: ActorId) -> None:
        """Order whoever passes this gate after all ``actor`` did so far."""
        gates = self._gates.get(load)
        if gates is None:
            gates = self._gates[load] = {}
        gates[layer] = self.clocks.now(actor)

    def gate_passed(self, load: Load, layer: int, actor: ActorId) -> None:
        """Order ``actor`` after the first open gate at or behind ``layer``."""
        gates = self._gates.get(load, {})
        if layer not in gates:
            behind = (number for number in gates if number >= layer)
            layer = min(behind, default=max(gates, default=layer))
        if layer in gates:
            self.clocks.learn(actor, gates[layer])


def _mover(actor: ActorId) -> ActorId:
    """Return the id of the actor that writes a load's layers on behalf of ``actor``."""
    return ActorId(actor + _MOVERS if actor >= 0 else actor - _MOVERS)
