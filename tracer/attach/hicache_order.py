"""Who came after whom among the users of ``hicache_dbg.pools``; used on the bus's thread only."""

from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary, finalize

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.ticket import Load
from hicache_dbg.tracer.attach.hicache_flight import Flight
from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks, Stamp
from hicache_dbg.tracer.checks.ordering_cuda import CudaOrder
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Order"]

Pool = DevicePool | HostPool
_numbers = count(1)


class _Ends(NamedTuple):
    """The two ends of a mirror whose copies are looked at; ``own`` finds its layer by the model's."""

    host: Space
    device: Space
    own: dict[int, int]


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
        self._owners: dict[Space, Ownership] = {}
        self._ends: dict[int, _Ends] = {}  # by identity of the mirrors that are followed
        self._gates: WeakKeyDictionary[Load, dict[int, int]] = WeakKeyDictionary()

    # -- accesses -------------------------------------------------------------------------------

    def place(self, mirror: Mirror, host: Ownership, device: Ownership) -> None:
        """The pools of ``mirror`` take their pages from the allocators of these books."""
        self._owners[self._space(mirror.host, "host")] = host
        self._owners[self._space(mirror.device, "device")] = device

    def begun(
        self, flight: Flight, by: Access, actor: ActorId, work: int | None
    ) -> list[Violation]:
        """The bytes of a copy are read from here on, and those of a backup written."""
        parts = [(part, ends) for part in flight.parts if (ends := self._followed(part.mirror))]
        if not parts:
            return []
        found, stamp = list[Violation](), self.stamp(actor, work)
        for part, ends in parts:
            layers, host, device = part.layers, part.host, part.device
            if flight.loads:
                found += self._access(ends.host, layers, host, Role.LOAD_READ, stamp, by)
            else:
                found += self._access(ends.device, layers, device, Role.BACKUP_READ, stamp, by)
                found += self._access(ends.host, layers, host, Role.BACKUP_WRITE, stamp, by)
        return found

    def landed(
        self, flight: Flight, layer: int, by: Access, actor: ActorId, work: int | None
    ) -> list[Violation]:
        """The bytes of one of the model's layers are on the device: they were written just before."""
        found, stamp = list[Violation](), self.stamp(actor, work)
        for part in flight.parts:
            ends = self._followed(part.mirror)
            own = ends.own.get(layer) if ends else None
            if ends and own is not None and own in part.layers:
                found += self._access(ends.device, (own,), part.device, Role.LOAD_WRITE, stamp, by)
        return found

    def touched(  # noqa: PLR0917 - an access is all of these
        self,
        pool: DevicePool,
        layers: tuple[int, ...],
        pages: Pages,
        role: Role,
        stamp: Stamp,
        by: Access,
    ) -> list[Violation]:
        """The model reads or writes a pool; copies count from its first access to the pool on."""
        self._touched, space = True, self._space(pool, "device")
        self._ordering.watch(space, pool.geometry.layers, pool.pages)
        return self._access(space, layers, pages, role, stamp, by)

    def table_touched(  # noqa: PLR0917 - as above
        self, name: str, size: int, rows: Pages, role: Role, stamp: Stamp, by: Access
    ) -> list[Violation]:
        """Rows of a control table of ``size`` are read or written."""
        space = Space("device", name)
        self._ordering.watch(space, 1, size)
        return self._ordering.access(space, (0,), rows, role=role, stamp=stamp, by=by)

    def _access(  # noqa: PLR0917 - as above
        self,
        space: Space,
        layers: tuple[int, ...],
        pages: Pages,
        role: Role,
        stamp: Stamp,
        by: Access,
    ) -> list[Violation]:
        found = self._ordering.access(space, layers, pages, role=role, stamp=stamp, by=by)
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
        own = {layer: at for at, layer in enumerate(mirror.device.geometry.layer_ids)}
        ends = self._ends[id(mirror)] = _Ends(self._space(host, "host"), device, own)
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
        if layer not in gates:
            behind = (number for number in gates if number >= layer)
            layer = min(behind, default=max(gates, default=layer))
        if layer in gates:
            self.clocks.wait(actor, gates[layer])


def _forget_all(clocks: Clocks, gates: dict[int, int]) -> None:
    for carrier in gates.values():
        clocks.forget(carrier)
