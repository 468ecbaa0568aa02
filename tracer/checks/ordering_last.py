"""The last access of one actor to each tile of a space.

A page has the number of the last access to all its layers. If the actor ever accessed only some
layers, each tile also has its own number.
"""

from bisect import bisect_right
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.checks.kept import Kept, Numbers
from hicache_dbg.tracer.checks.ordering_clocks import Step
from hicache_dbg.tracer.checks.violation import Access

__all__ = ["Last", "Late", "Role"]

Pages = npt.NDArray[np.int64]


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


#: An access: when, what for, and by whom.
_Made = tuple[Step, Role, Access]
#: Tiles as layers and pages, and who accessed the first of them.
Late = tuple[Pages, Pages, Access]


class Last:
    """The last access to each tile; ``latest`` is the last step of any of them.

    An actor's accesses come in the order of its steps, so the greater number is the later access.
    Memory: 4 B per page, 4 B per tile once only some layers were accessed, and the accesses still
    referred to (or until recently).
    """

    def __init__(self, layers: int, pages: int) -> None:
        self.latest = Step(0)
        self._layers = layers
        self._made = Kept[_Made]()
        self._whole = self._made.numbers(pages)
        self._tiles: Numbers | None = None

    def take(
        self, layers: tuple[int, ...], pages: Pages, step: Step, role: Role, by: Access
    ) -> None:
        """Record ``by`` as the last access to these tiles."""
        self.latest = step
        if len(layers) == self._layers:
            self._whole[pages] = self._made.number((step, role, by))
            return
        if self._tiles is None:
            self._tiles = self._made.numbers(self._layers, len(self._whole))
        number = self._made.number((step, role, by))
        for layer in layers:
            self._tiles[layer][pages] = number

    def promise(
        self, layers: tuple[int, ...], pages: Pages, steps: list[Step], role: Role, by: Access
    ) -> None:
        """Record ``by`` as the coming last access to each of these layers, one step per layer."""
        if self._tiles is None:
            self._tiles = self._made.numbers(self._layers, len(self._whole))
        self.latest = steps[-1]
        for layer, step in zip(layers, steps, strict=True):
            self._tiles[layer][pages] = self._made.number((step, role, by))

    def late(self, layers: tuple[int, ...], pages: Pages, seen: Step) -> dict[Role, Late]:
        """Return the tiles whose last access is later than ``seen``, by role."""
        numbers = self._whole[pages][None]
        if self._tiles is not None:
            numbers = np.maximum(numbers, self._tiles[list(layers)][:, pages])
        late = numbers >= bisect_right(self._made.things, seen, key=_step)
        if not late.any():
            return {}
        shape = len(layers), len(pages)
        rows, columns = np.nonzero(np.broadcast_to(late, shape))
        numbers = np.broadcast_to(numbers, shape)[rows, columns]
        made = [self._made.things[number] for number in numbers.tolist()]
        roles = np.array([role for _, role, _ in made])
        found = {}
        for role in np.unique(roles).tolist():
            at = np.flatnonzero(roles == role)
            tiles = np.array(layers)[rows[at]], pages[columns[at]]
            found[Role(role)] = *tiles, made[at[0]][2]
        return found


def _step(made: _Made) -> Step:
    return made[0]
