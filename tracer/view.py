"""Where a tile's bytes lie in a real tensor, read off that tensor.

A *tile* is the bytes of one (pool, layer, component, page). A :class:`View` locates every tile of
one component at one end of a mirror. It is built from the tensor's own address, strides and item
size, never from a declared formula: two ends read through the same wrong formula would agree.
"""

from dataclasses import dataclass

__all__ = ["Run", "View"]


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one kind within a page, such as all keys or all scales.

    Slot ``s`` of the page has ``rows`` rows of ``row_bytes`` bytes; row ``r`` starts at ``offset +
    s * slot_stride + r * row_stride`` from the page's base. All values are bytes. A tile's bytes
    are its runs in order, each slot by slot, each slot row by row: the order in which the device
    stores the component, without padding.
    """

    offset: int
    slot_stride: int
    row_bytes: int
    rows: int = 1
    row_stride: int = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in this run."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class View:
    """Where each tile of one component lies at one end of a mirror.

    A page starts at address ``bases[layer] + page * page_stride`` (bytes). ``pages`` is the number
    of pages the tensor really holds; ``page_span`` is the bytes a page occupies there, padding
    included. ``owner`` keeps the tensors alive as long as the view.
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
        """Number of layers at this end."""
        return len(self.bases)

    @property
    def slot_bytes(self) -> int:
        """Payload bytes of a slot, over all runs."""
        return sum(run.slot_bytes for run in self.runs)

    def tile_bytes(self, slots: int | None = None) -> int:
        """Return the payload bytes of ``slots`` slots (default: a whole page), without padding."""
        return self.slot_bytes * (self.slots_per_page if slots is None else slots)

    def segments(self, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
        """Return ``(offset, length)`` of the bytes of slots ``first .. last - 1``, in tile order.

        Offsets are relative to the page's base. Adjacent pieces are joined, so that a contiguous
        tile is a single piece.
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
        """Return the address of a page's base in ``layer``.

        Raises:
            IndexError: layer or page lies outside this end's tensors.
        """
        if not 0 <= layer < len(self.bases) or not 0 <= page < self.pages:
            raise IndexError(
                f"{self.pool}.{self.component}: layer {layer}, page {page} lie outside the {self.tier} "
                f"tensor of {len(self.bases)} layers and {self.pages} pages"
            )
        return self.bases[layer] + page * self.page_stride
