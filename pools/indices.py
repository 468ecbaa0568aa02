"""What a copy addresses at one end: whole pages, or single slots."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.geometry import PoolGeometry

__all__ = ["Ids", "Indices"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Indices:
    """Page ids that stand for ``per_id`` indices each, or single slot ids; ``ids`` is 1-D int64.

    A slot id is ``page * slots_per_page + slot``. ``single`` tells slots from the pages of a pool
    that counts pages: both have one index an id.
    """

    ids: Ids
    per_id: int
    single: bool = False

    @classmethod
    def pages(cls, page_ids: npt.ArrayLike, geometry: PoolGeometry) -> Self:
        """Whole pages of a pool of ``geometry``; ids of any shape are taken flat."""
        return cls(_ids(page_ids), geometry.indices_per_page)

    @classmethod
    def slots(cls, slot_ids: npt.ArrayLike) -> Self:
        """Single slots; ids of any shape are taken flat."""
        return cls(_ids(slot_ids), 1, single=True)

    def __len__(self) -> int:
        """How many indices these are in the pool's own unit."""
        return self.ids.size * self.per_id

    def page_ids(self, slots_per_page: int) -> Ids:
        """The page of each id, in order."""
        return self.ids // slots_per_page if self.single else self.ids


def _ids(values: npt.ArrayLike) -> Ids:
    return np.ascontiguousarray(values, dtype=np.int64).reshape(-1)
