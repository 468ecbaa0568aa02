"""Random copies between random pools, and their expected results."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from tests.pools.copying import (
    Combination,
    Snapshot,
    Way,
    assert_equal,
    canaries_live,
    ends_after,
    mirror_of,
    pool_copy,
)

from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.plan import Move
from hicache_dbg.pools.validate import move_of

PageIds = tuple[list[int], list[int]]


@st.composite
def page_ids(draw: st.DrawFn, host_pages: int, device_pages: int) -> PageIds:
    """Return as many distinct host pages as device pages, at least one."""
    count = draw(st.integers(1, host_pages))
    host, device = (draw(st.permutations(range(pages))) for pages in (host_pages, device_pages))
    return host[:count], device[:count]


@dataclass(frozen=True)
class Staged:
    """A mirror of random bytes, a copy between its ends, and the expected result."""

    mirror: Mirror
    memories: list[torch.Tensor]
    move: Move
    ends: tuple[Snapshot, Snapshot]

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        combination: Combination,
        way: Way,
        ids: PageIds,
        layers: int,
        pages: tuple[int, int],
        seed: int,
        *,
        single: bool = False,
    ) -> "Staged":
        """Make a copy of ``ids``, which are pages or single slots; ``pages`` are the sizes of both ends."""
        kind, layout, backend = combination
        host, device = pages
        mirror, memories = mirror_of(
            kind, layout, layers=layers, host_pages=host, device_pages=device, seed=seed
        )
        move = move_of(pool_copy(mirror, *ids, backend, single=single))
        return cls(mirror, memories, move, ends_after(mirror, way, *ids, single=single))

    def assert_moved(self) -> None:
        """Check that every byte of the copy moved and no other byte changed, in the pools or outside."""
        assert_equal(self.mirror, *self.ends)
        assert canaries_live(self.memories)
