"""From a mirror to addresses: which chunks of equal length lie where, at both ends.

A :class:`Piece` is a set of equally long chunks that one component moves for each id. It is
computed from the HOST pool's byte counts and each end's own strides, as production systems do: a
host page that is narrower than the device's moves its own width and leaves the rest untouched.
"""

from dataclasses import dataclass
from math import prod
from weakref import WeakKeyDictionary

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.geometry import Component, PoolGeometry
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Ids

__all__ = ["Move", "Piece", "PieceEnd", "pieces_of"]


@dataclass(frozen=True, slots=True)
class PieceEnd:
    """Where the chunks of a piece lie at one end, in bytes.

    The chunk of slot ``s`` in page ``p`` of a layer starts at the layer's start ``+ offset + p *
    page + s * slot + i * inner``, where ``i`` counts over ``Piece.counts``. ``slot`` is 0 in
    whole-page pieces.
    """

    buffer: Buffer
    offset: int
    page: int
    slot: int
    inner: tuple[int, ...]

    def address(self, layer: int) -> int:
        """Return the address of the first chunk of ``layer``."""
        tensor, start = self.buffer.layer_place(layer)
        return self.buffer.tensors[tensor].data_ptr() + start + self.offset


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Piece:
    """Chunks of ``chunk`` bytes, ``counts`` of them per id, at both ends."""

    component: str
    chunk: int
    counts: tuple[int, ...]
    host: PieceEnd
    device: PieceEnd

    @property
    def bytes_per_id(self) -> int:
        """Bytes that move for one id of one layer."""
        return self.chunk * prod(self.counts)

    def reach(self, end: PieceEnd) -> int:
        """Return the bytes from the start of an id's first chunk to the end of its last."""
        steps = sum((n - 1) * step for n, step in zip(self.counts, end.inner, strict=True))
        return steps + self.chunk


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """The ids that all pieces move: whole pages, or (``single``) slots of ``slots`` per page."""

    pieces: tuple[Piece, ...]
    single: bool
    slots: int
    host: Ids
    device: Ids


@dataclass(frozen=True, slots=True)
class _Plan:
    """Pieces, and what they were computed from: a pool that gets new memory needs new pieces."""

    geometry: PoolGeometry
    ends: tuple[tuple[Buffer, Buffer], ...]
    pieces: tuple[Piece, ...]


_plans: WeakKeyDictionary[Mirror, dict[bool, _Plan]] = WeakKeyDictionary()


def pieces_of(mirror: Mirror, *, single: bool) -> tuple[Piece, ...]:
    """Return the pieces that a copy of whole pages, or of ``single`` slots, moves.

    Raises:
        LookupError: the device pool lacks a component that the host pool keeps.
    """
    geometry = mirror.host.geometry
    ends = tuple(_ends(mirror, component) for component in geometry.components)
    known = _plans.setdefault(mirror, {})
    plan = known.get(single)
    if plan is None or plan.geometry is not geometry or plan.ends != ends:
        plan = known[single] = _Plan(geometry, ends, _pieces(geometry, ends, single=single))
    return plan.pieces


def _ends(mirror: Mirror, component: Component) -> tuple[Buffer, Buffer]:
    if component.name not in mirror.device.buffers:
        raise LookupError(
            f"{mirror.name}: the host pool keeps component {component.name}, the device pool "
            f"has only {', '.join(mirror.device.buffers)}"
        )
    return mirror.host.buffers[component.name], mirror.device.buffers[component.name]


def _pieces(
    geometry: PoolGeometry, ends: tuple[tuple[Buffer, Buffer], ...], *, single: bool
) -> tuple[Piece, ...]:
    slots = geometry.slots_per_page
    pieces: list[Piece] = []
    for component, (host, device) in zip(geometry.components, ends, strict=True):
        if geometry.page_indexed:
            pieces += _page_pieces(component, slots, host, device, single=single)
        else:
            pieces.append(_row_piece(component, slots, host, device, single=single))
    return tuple(pieces)


def _page_pieces(
    component: Component, slots: int, host: Buffer, device: Buffer, *, single: bool
) -> list[Piece]:
    if not single:
        chunk = component.page_bytes(slots)
        ends = (PieceEnd(end, 0, end.stride_bytes("page"), 0, ()) for end in (host, device))
        return [Piece(component.name, chunk, (), *ends)]
    pieces = []
    for number, run in enumerate(component.runs):
        offset = component.run_offset(number, slots)
        ends = (
            PieceEnd(end, offset, end.stride_bytes("page"), run.slot_bytes, ())
            for end in (host, device)
        )
        pieces.append(Piece(component.name, run.slot_bytes, (), *ends))
    return pieces


def _row_piece(
    component: Component, slots: int, host: Buffer, device: Buffer, *, single: bool
) -> Piece:
    inner = [] if single else [("slot", slots)]
    if component.head_axis:
        inner.append(("head", component.heads))
    chunk = component.head_bytes if component.head_axis else component.slot_bytes
    # Axes that are contiguous at both ends are folded into the chunk: fewer, longer copies.
    while inner and all(end.stride_bytes(inner[-1][0]) == chunk for end in (host, device)):
        chunk *= inner.pop()[1]
    inner = [(axis, count) for axis, count in inner if count > 1]
    ends = (
        PieceEnd(
            end,
            0,
            end.stride_bytes("page"),
            end.stride_bytes("slot") if single else 0,
            tuple(end.stride_bytes(axis) for axis, _ in inner),
        )
        for end in (host, device)
    )
    return Piece(component.name, chunk, tuple(count for _, count in inner), *ends)
