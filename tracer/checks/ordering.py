"""Whether accesses to a page that must not overlap are ordered by anything at all.

Happens-before by page and layer. Two accesses, one of them a write, by actors that nothing orders
are a violation whichever came first this time. Pure bookkeeping on ints, after the shape of torch's
CUDA sanitizer (``torch.cuda._sanitizer``), which does this for whole tensors.

It sees what it is told of. Two accesses of the model's own kernels are not judged: they cross no
tier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Stamp
from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "Ordering", "Role", "Space"]

CHECK = "ordering"


class Role(IntEnum):
    """What a page is accessed for."""

    COMPUTE_READ = 0
    COMPUTE_WRITE = 1
    BACKUP_READ = 2
    BACKUP_WRITE = 3
    LOAD_READ = 4
    LOAD_WRITE = 5
    TABLE_READ = 6
    TABLE_WRITE = 7

    @property
    def writes(self) -> bool:
        """Whether bytes change."""
        return self in _WRITES


_WRITES = {Role.COMPUTE_WRITE, Role.BACKUP_WRITE, Role.LOAD_WRITE, Role.TABLE_WRITE}


@dataclass(frozen=True, slots=True)
class _Conflict:
    """What it means that two roles are not ordered."""

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

#: By (this access, the earlier one); pairs that are not here are no concern of the cache.
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


@dataclass(frozen=True, slots=True)
class Space:
    """A set of pages that have layers: one pool in one tier, or a control table.

    ``number`` tells pools of one name apart.
    """

    tier: str
    pool: str
    number: int = 0


@dataclass(slots=True)
class _Last:
    """The last access of one actor to each [layer, page]: its step, role, and what it was."""

    steps: npt.NDArray[np.int64]
    roles: npt.NDArray[np.int8]
    accesses: npt.NDArray[np.object_]

    @classmethod
    def of(cls, layers: int, pages: int) -> "_Last":
        shape = layers, pages
        return cls(
            np.zeros(shape, np.int64), np.full(shape, -1, np.int8), np.full(shape, None, object)
        )


@dataclass(slots=True)
class _Pages:
    """What is remembered of a space: by actor, its last read and its last write of each tile."""

    layers: int
    pages: int
    reads: dict[ActorId, _Last] = field(default_factory=dict)
    writes: dict[ActorId, _Last] = field(default_factory=dict)

    def of(self, actor: ActorId, *, writes: bool) -> _Last:
        table = self.writes if writes else self.reads
        if actor not in table:
            table[actor] = _Last.of(self.layers, self.pages)
        return table[actor]


class Ordering:
    """Remembers the accesses to each space and compares each new one with those before it.

    Memory: 17 B a tile, for each actor that reads and again for each that writes.
    """

    def __init__(self) -> None:
        self._spaces: dict[Space, _Pages] = {}

    def watch(self, space: Space, layers: int, pages: int) -> None:
        """Remember accesses to ``space`` from now on."""
        self._spaces.setdefault(space, _Pages(layers, pages))

    def watches(self, space: Space) -> bool:
        """Whether accesses to ``space`` are remembered."""
        return space in self._spaces

    def forget(self, space: Space) -> None:
        """The memory of ``space`` is gone."""
        self._spaces.pop(space, None)

    def access(
        self,
        space: Space,
        layers: Sequence[int],
        pages: Pages,
        *,
        role: Role,
        stamp: Stamp,
        by: Access,
    ) -> list[Violation]:
        """``by`` reads or writes these layers of these pages, at ``stamp``."""
        known = self._spaces.get(space)
        if known is None or not len(pages) or not layers:
            return []
        this = _This(space, np.asarray(layers, np.int64), pages, role, stamp, by)
        found: list[Violation] = []
        for table in (known.writes, known.reads) if role.writes else (known.writes,):
            for actor, last in table.items():
                if actor != stamp.actor:
                    found += this.against(last, seen=stamp.clock.get(actor, 0))
        mine = known.of(stamp.actor, writes=role.writes)
        mine.steps[this.tiles] = stamp.step
        mine.roles[this.tiles] = role
        mine.accesses[this.tiles] = by
        return found


@dataclass(frozen=True, slots=True)
class _This:
    """The access that is compared with those before it."""

    space: Space
    layers: npt.NDArray[np.int64]
    pages: Pages
    role: Role
    stamp: Stamp
    by: Access

    @property
    def tiles(self) -> tuple[npt.NDArray[np.int64], ...]:
        return np.ix_(self.layers, self.pages)

    def against(self, last: _Last, *, seen: int) -> list[Violation]:
        """What is wrong with another actor's last accesses, of which ``seen`` steps came before."""
        tiles = self.tiles
        wrong = last.steps[tiles] > seen
        if not wrong.any():
            return []
        roles = last.roles[tiles]
        return [
            self._violation(conflict, wrong & (roles == earlier), last)
            for earlier in np.unique(roles[wrong]).tolist()
            if (conflict := _CONFLICTS.get((self.role, Role(earlier)))) is not None
        ]

    def _violation(self, conflict: _Conflict, bad: npt.NDArray[np.bool_], last: _Last) -> Violation:
        layer, page = (int(axis[0]) for axis in np.nonzero(bad))
        return Violation(
            conflict.cls,
            CHECK,
            self.space.tier,
            conflict.words,
            tuple(self.pages[bad.any(axis=0)].tolist()),
            self.by,
            last.accesses.item(int(self.layers[layer]), int(self.pages[page])),
            layers=tuple(self.layers[bad.any(axis=1)].tolist()),
            advice=conflict.advice,
            pool=self.space.pool,
        )
