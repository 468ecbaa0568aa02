"""The indices of a copy at one end: whole pages or single slots."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.geometry import PoolGeometry

__all__ = ["Ids", "Indices"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Indices:
    """Ids of whole pages, each standing for ``per_id`` indices, or ids of single slots; 1-D int64.

    A slot id is ``page * slots_per_page + slot``. ``single`` distinguishes slots from the pages of
    a pool whose index unit is the page: both have one index per id.
    """

    ids: Ids
    per_id: int
    single: bool = False

    @classmethod
    def pages(cls, page_ids: npt.ArrayLike, geometry: PoolGeometry) -> Self:
        """Return whole pages of a pool of ``geometry`` as indices.

        Ids of any shape are flattened.
        """
        return cls(_ids(page_ids), geometry.indices_per_page)

    @classmethod
    def slots(cls, slot_ids: npt.ArrayLike) -> Self:
        """Return indices of single slots; ids of any shape are flattened."""
        return cls(_ids(slot_ids), 1, single=True)

    def __len__(self) -> int:
        """Return the number of indices in the pool's own unit."""
        return self.ids.size * self.per_id

    def page_ids(self, slots_per_page: int) -> Ids:
        """Return the page of each id, in order."""
        return self.ids // slots_per_page if self.single else self.ids


def _ids(values: npt.ArrayLike) -> Ids:
    return np.ascontiguousarray(values, dtype=np.int64).reshape(-1)
