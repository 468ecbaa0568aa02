"""Random tile geometry over real memory, and the bytes that a digest of it must cover."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import xxhash
from hypothesis import strategies as st

from hicache_dbg.tracer.view import Run, View

__all__ = ["Tiles", "tiles"]


@dataclass(frozen=True)
class Tiles:
    """A view over ``memory`` and what to digest of it."""

    memory: npt.NDArray[np.uint8] = field(repr=False)
    starts: tuple[int, ...]
    view: View
    layers: tuple[int, ...]
    pages: npt.NDArray[np.int64]
    first: int
    last: int

    def at(self, address: int, device: str) -> View:
        """The same view where ``memory`` has been copied to ``address``."""
        bases = tuple(address + start for start in self.starts)
        return replace(self.view, bases=bases, device=device)

    def tile(self, layer: int, page: int) -> bytes:
        """The tile's bytes, put together from the view's own segments."""
        base = self.starts[layer] + page * self.view.page_stride
        pieces = self.view.segments(self.first, self.last)
        return b"".join(self.memory[base + at : base + at + n].tobytes() for at, n in pieces)

    def expected(self) -> list[list[int]]:
        """What the xxhash package says of every tile."""
        return [
            [xxhash.xxh3_64_intdigest(self.tile(layer, page)) for page in self.pages.tolist()]
            for layer in self.layers
        ]


@st.composite
def _runs(draw: st.DrawFn, slots: int) -> tuple[Run, ...]:
    """Runs that lie side by side in a page, as values and their scales do, each in its own way."""
    offset = draw(st.sampled_from((0, 0, 0, 1, 4, 8, 16)))
    granule = draw(st.sampled_from((1, 2, 4, 8, 16, 64)))
    runs = []
    for _ in range(draw(st.integers(1, 3))):
        row_bytes = granule * draw(st.integers(1, 12))
        rows = draw(st.integers(1, 3))
        row_stride = row_bytes + granule * draw(st.integers(0, 2))
        slot_stride = rows * row_stride + granule * draw(st.integers(0, 2))
        runs.append(Run(offset, slot_stride, row_bytes, rows, row_stride))
        offset += slots * slot_stride + granule * draw(st.integers(0, 1))
    return tuple(runs)


@st.composite
def tiles(draw: st.DrawFn) -> Tiles:
    """Layers and pages of one to a few thousand bytes, whole or a range of slots."""
    slots = draw(st.integers(1, 9))
    runs = draw(_runs(slots))
    span = max(run.offset + slots * run.slot_stride for run in runs)
    stride = span + draw(st.sampled_from((0, 0, 1, 8, 24)))
    held, layer_count = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    shift = draw(st.sampled_from((0, 0, 1, 2, 4, 8)))
    starts = tuple(shift + layer * held * stride for layer in range(layer_count))
    memory = np.random.default_rng(draw(st.integers(0, 1 << 32))).integers(
        0, 256, starts[-1] + held * stride + 16, np.uint8
    )
    first = draw(st.integers(0, slots - 1))
    last = draw(st.integers(first + 1, slots))
    address = memory.ctypes.data
    return Tiles(
        memory=memory,
        starts=starts,
        view=View(
            pool="pool",
            component="kv",
            tier="host",
            layout="layer_first",
            dtype="uint8",
            itemsize=1,
            bases=tuple(address + start for start in starts),
            page_stride=stride,
            page_span=span,
            pages=held,
            slots_per_page=slots,
            runs=runs,
        ),
        layers=tuple(draw(st.lists(st.integers(0, layer_count - 1), min_size=1, max_size=3))),
        pages=np.array(draw(st.lists(st.integers(0, held - 1), min_size=1, max_size=9)), np.int64),
        first=draw(st.sampled_from((0, first))),
        last=draw(st.sampled_from((slots, last))),
    )
