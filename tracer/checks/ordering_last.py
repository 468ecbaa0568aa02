"""The last access of one actor to each tile of a space.

A tile has the actor's step and the number of an access; the accesses themselves are kept apart, and
those that no tile has any more are dropped now and then.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.checks.ordering_clocks import Step
from hicache_dbg.tracer.checks.violation import Access

__all__ = ["Last", "Made", "Role", "Tiles"]

Tiles = npt.NDArray[np.int64]

#: Accesses beyond twice those still in use before the others are dropped.
_SLACK = 1024
_NEVER = -1


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


#: An access that was made: what for, and by whom.
Made = tuple[Role, Access]


class Last:
    """Step and access by tile, for tiles ``0 .. tiles - 1``; ``latest`` is the last step on any of them.

    Memory: 12 B a tile, and the accesses that some tile has (or had until a while ago).
    """

    def __init__(self, tiles: int) -> None:
        self.latest = Step(0)
        self.steps = np.zeros(tiles, np.int64)
        self._numbers = np.full(tiles, _NEVER, np.int32)
        self._made: list[Made] = []
        self._enough = _SLACK

    @property
    def kept(self) -> int:
        """How many accesses are kept."""
        return len(self._made)

    def take(self, tiles: Tiles, step: Step, role: Role, by: Access) -> None:
        """``by`` is the last access to ``tiles`` from now on."""
        if len(self._made) >= self._enough:
            self._tidy()
        self.latest = step
        self.steps[tiles] = step
        self._numbers[tiles] = len(self._made)
        self._made.append((role, by))

    def made(self, tiles: Tiles) -> list[Made]:
        """The last access to each of ``tiles``, all of which had one."""
        return [self._made[number] for number in self._numbers[tiles].tolist()]

    def _tidy(self) -> None:
        """Drop what no tile has any more, and number the rest from 0."""
        used = np.unique(self._numbers)
        used = used[used != _NEVER]
        had = self._numbers != _NEVER
        self._numbers[had] = np.searchsorted(used, self._numbers[had])
        self._made = [self._made[number] for number in used.tolist()]
        self._enough = 2 * len(self._made) + _SLACK
