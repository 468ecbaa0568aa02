"""Check that accesses to a page that must not overlap are ordered by something.

Happens-before by page and layer: two accesses, at least one of them a write, by actors that nothing
orders are a violation, whichever came first this time. Pure bookkeeping on ints, modelled on
torch's CUDA sanitizer (``torch.cuda._sanitizer``), which does this for whole tensors.

It sees only what it is told of. Two accesses by the model's own kernels are not judged, because
they cross no tier.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Stamp, Step
from hicache_dbg.tracer.checks.ordering_last import Last, Late, Role
from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "Ordering", "Role", "Space"]

CHECK = "ordering"


#: Indexed by role; a tuple, because hashing an enum member runs Python code.
_WRITES = tuple(role.name.endswith("WRITE") for role in Role)


@dataclass(frozen=True, slots=True)
class _Conflict:
    """What it means that accesses of two roles are not ordered."""

    cls: FaultClass
    words: str
    advice: str


_STORE = _Conflict(
    FaultClass.STORE_BEFORE_WRITE,
    "a backup reads it and nothing orders that with its writer",
    "let the backup wait for an event that was recorded after the last write",
)
_LOAD_READ = _Conflict(
    FaultClass.READ_BEFORE_LOAD,
    "it is read and nothing orders that with the load that writes it",
    "wait for the gate of every layer that is read, in every reader",
)
_OLD_WRITE = _Conflict(
    FaultClass.READ_BEFORE_LOAD,
    "it is written by a kernel and by a load, and nothing orders the two: the older may land last",
    "let the load wait for the last kernel that was launched on the page before it was freed",
)
_HOST_EARLY = _Conflict(
    FaultClass.READ_BEFORE_LOAD,
    "a load reads the host page and nothing orders that with the backup that writes it",
    "let a host copy count only when its backup has been acknowledged",
)
_REUSED = _Conflict(
    FaultClass.SLOT_REUSE,
    "a copy writes it while another copy still has it",
    "hold the pages until the copy is acknowledged",
)
_TABLE = _Conflict(
    FaultClass.CONTROL_TABLE,
    "the table is overwritten and nothing orders that with the copy that reads it",
    "wait for the copy of the table before it is written again, or use one table a step",
)

#: By (role of this access, role of the earlier one); other pairs do not concern the cache.
_CONFLICTS: dict[tuple[Role, Role], _Conflict] = {
    (Role.BACKUP_READ, Role.COMPUTE_WRITE): _STORE,
    (Role.COMPUTE_WRITE, Role.BACKUP_READ): _STORE,
    (Role.BACKUP_READ, Role.LOAD_WRITE): _STORE,
    (Role.LOAD_WRITE, Role.BACKUP_READ): _REUSED,
    (Role.COMPUTE_READ, Role.LOAD_WRITE): _LOAD_READ,
    (Role.LOAD_WRITE, Role.COMPUTE_READ): _LOAD_READ,
    (Role.COMPUTE_WRITE, Role.LOAD_WRITE): _OLD_WRITE,
    (Role.LOAD_WRITE, Role.COMPUTE_WRITE): _OLD_WRITE,
    (Role.LOAD_WRITE, Role.LOAD_WRITE): _REUSED,
    (Role.LOAD_READ, Role.BACKUP_WRITE): _HOST_EARLY,
    (Role.BACKUP_WRITE, Role.LOAD_READ): _REUSED,
    (Role.BACKUP_WRITE, Role.BACKUP_WRITE): _REUSED,
    (Role.TABLE_READ, Role.TABLE_WRITE): _TABLE,
    (Role.TABLE_WRITE, Role.TABLE_READ): _TABLE,
    (Role.TABLE_WRITE, Role.TABLE_WRITE): _TABLE,
}


class Space(NamedTuple):
    """A set of pages with layers: one pool in one tier, or a control table.

    ``number`` distinguishes pools of the same name.
    """

    tier: str
    pool: str
    number: int = 0


@dataclass(slots=True)
class _Pages:
    """What is remembered of a space: each actor's last reads and last writes."""

    layers: int
    pages: int
    reads: dict[ActorId, Last] = field(default_factory=dict)
    writes: dict[ActorId, Last] = field(default_factory=dict)

    def of(self, actor: ActorId, *, writes: bool) -> Last:
        table = self.writes if writes else self.reads
        last = table.get(actor)
        if last is None:
            last = table[actor] = Last(self.layers, self.pages)
        return last


class Ordering:
    """Remembers the accesses to each space and compares each new one with the earlier ones.

    Memory: 4 B per page for each reading actor and again for each writing actor, plus 4 B per tile
    for actors that ever access only some layers.
    """

    def __init__(self) -> None:
        self._spaces: dict[Space, _Pages] = {}

    def watch(self, space: Space, layers: int, pages: int) -> None:
        """Remember accesses to ``space`` from now on."""
        if space not in self._spaces:
            self._spaces[space] = _Pages(layers, pages)

    def watches(self, space: Space) -> bool:
        """Return whether accesses to ``space`` are remembered."""
        return space in self._spaces

    def forget(self, space: Space) -> None:
        """Drop a ``space`` whose memory is gone."""
        self._spaces.pop(space, None)

    def access(
        self,
        space: Space,
        layers: tuple[int, ...],
        pages: Pages,
        *,
        role: Role,
        stamp: Stamp,
        by: Access,
        steps: list[Step] | None = None,
    ) -> list[Violation]:
        """Record an access by ``by`` to these layers and pages, and return what it conflicts with.

        Args:
            space: where the pages are.
            layers: the layers accessed.
            pages: the page ids, int64.
            role: what the access is for.
            stamp: when it happens; with ``steps``, the stamp of the first layer's access.
            by: who makes it, for the report.
            steps: one step per layer if the layers are accessed one after another; None: all at
                once.
        """
        known = self._spaces.get(space)
        if known is None or not len(pages) or not layers:
            return []
        writes = _WRITES[role]
        found: list[Violation] = []
        for table in (known.writes, known.reads) if writes else (known.writes,):
            for actor, last in table.items():
                # Skip the tile-by-tile comparison if all of the actor's accesses come before.
                if actor != stamp.actor and last.latest > (seen := stamp.clock.get(actor, 0)):
                    late = last.late(layers, pages, Step(seen))
                    found += _conflicts(space, role, by, late) if late else []
        last = known.of(stamp.actor, writes=writes)
        if steps is None:
            last.take(layers, pages, stamp.step, role, by)
        else:
            last.promise(layers, pages, steps, role, by)
        return found


def _conflicts(space: Space, role: Role, by: Access, late: dict[Role, Late]) -> list[Violation]:
    """Return the violations among accesses of another actor that nothing orders with this one."""
    return [
        Violation(
            conflict.cls,
            CHECK,
            space.tier,
            conflict.words,
            tuple(dict.fromkeys(pages.tolist())),
            by,
            previous,
            layers=tuple(dict.fromkeys(layers.tolist())),
            advice=conflict.advice,
            pool=space.pool,
        )
        for earlier, (layers, pages, previous) in late.items()
        if (conflict := _CONFLICTS.get((role, earlier))) is not None
    ]
