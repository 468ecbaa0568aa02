"""Where a tile's bytes are in a real tensor, read off that tensor.

A *tile* is the bytes of one (pool, layer, component, page). A :class:`View` says how to find
every tile of one component at one end of a mirror. It is built from the tensor's own address,
strides and item size, never from a declared formula: two ends that are read through the same
wrong formula would agree with each other.
"""

from dataclasses import dataclass

__all__ = ["Run", "View"]


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one kind inside a page: a key run, a scale run, a value run.

    Slot ``s`` of the page has ``rows`` rows of ``row_bytes`` bytes; row ``r`` begins at
    ``offset + s * slot_stride + r * row_stride`` from the page's base. All values are bytes.
    A tile's bytes are those of its runs in turn, in each run slot by slot, in each slot row by
    row: the order in which the device stores the component, padding left out.
    """

    offset: int
    slot_stride: int
    row_bytes: int
    rows: int = 1
    row_stride: int = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes one slot has in this run."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class View:
    """One component of one pool at one end of a mirror: where each tile's bytes are.

    ``bases[layer] + page * page_stride`` is the base address of a page (bytes). ``pages`` is how
    many pages the tensor really holds; ``page_span`` the bytes one page occupies there, padding
    included. ``owner`` keeps the tensors alive as long as the view is.
    """

    pool: str
    component: str
    tier: str
    layout: str
    dtype: str
    itemsize: int
    bases: tuple[int, ...]
    page_stride: int
    page_span: int
    pages: int
    slots_per_page: int
    runs: tuple[Run, ...]
    device: str = "cpu"
    owner: object = None

    @property
    def layers(self) -> int:
        """How many layers this end has."""
        return len(self.bases)

    @property
    def slot_bytes(self) -> int:
        """Payload bytes a slot has, over all runs."""
        return sum(run.slot_bytes for run in self.runs)

    def tile_bytes(self, slots: int | None = None) -> int:
        """Payload bytes of a tile of ``slots`` slots (default: a whole page), padding left out."""
        return self.slot_bytes * (self.slots_per_page if slots is None else slots)

    def segments(self, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
        """``(offset, length)`` pieces of slots ``first .. last - 1`` from the page's base, in tile order.

        Pieces that touch are joined, so that a contiguous tile is a single piece.
        """
        last = self.slots_per_page if last is None else last
        pieces: list[tuple[int, int]] = []
        for run in self.runs:
            for slot in range(first, last):
                for row in range(run.rows):
                    offset = run.offset + slot * run.slot_stride + row * run.row_stride
                    if pieces and sum(pieces[-1]) == offset:
                        pieces[-1] = (pieces[-1][0], pieces[-1][1] + run.row_bytes)
                    else:
                        pieces.append((offset, run.row_bytes))
        return pieces

    def address(self, layer: int, page: int) -> int:
        """The address of the page's base in ``layer`` (both checked against this end's extent)."""
        if not 0 <= layer < len(self.bases) or not 0 <= page < self.pages:
            raise IndexError(
                f"{self.pool}.{self.component}: layer {layer}, page {page} lie outside the {self.tier} "
                f"tensor of {len(self.bases)} layers and {self.pages} pages"
            )
        return self.bases[layer] + page * self.page_stride
