"""A copy that is set up and looked at: random pages of random pools, and what it should leave behind."""

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
    """As many different pages of the host as of the device, one at least."""
    count = draw(st.integers(1, host_pages))
    host, device = (draw(st.permutations(range(pages))) for pages in (host_pages, device_pages))
    return host[:count], device[:count]


@dataclass(frozen=True)
class Staged:
    """A mirror of random bytes, a copy between its ends that is looked at, and what it should leave."""

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
        """``pages`` are those of the host and of the device; ``ids`` pages, or single slots."""
        kind, layout, backend = combination
        host, device = pages
        mirror, memories = mirror_of(
            kind, layout, layers=layers, host_pages=host, device_pages=device, seed=seed
        )
        move = move_of(pool_copy(mirror, *ids, backend, single=single))
        return cls(mirror, memories, move, ends_after(mirror, way, *ids, single=single))

    def assert_moved(self) -> None:
        """Every byte that should have moved did, and none beside it, inside the pools or outside."""
        assert_equal(self.mirror, *self.ends)
        assert canaries_live(self.memories)
