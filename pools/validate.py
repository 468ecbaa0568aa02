"""Validate operations before the first byte moves, with both values in every error.

What is *not* checked here is deliberate too: two ends that disagree in bytes per page move what the
host pool's size says, as production systems do. Detecting that is the tracer's job.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.operation import PoolCopy, TransferError
from hicache_dbg.pools.plan import Move, Piece, PieceEnd, pieces_of

__all__ = ["LAYOUTS_OF", "move_of"]

_UNSIGNED = np.dtype(np.uint64)

#: Layouts that each io backend supports, as in production systems.
LAYOUTS_OF: dict[IoBackend, tuple[Layout, ...]] = {
    IoBackend.KERNEL: (Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_HEAD),
    IoBackend.DIRECT: (Layout.LAYER_FIRST, Layout.PAGE_FIRST_DIRECT),
}


def move_of(copy: PoolCopy) -> Move:
    """Validate ``copy`` and return what it moves.

    Raises:
        TransferError: io backend and layout, kinds or numbers of ids, layers or components do not
            fit together, or an id is out of range; the message has both values.
    """
    known = _fits.setdefault(copy.mirror, {})
    key = copy.token_granular, copy.io_backend, copy.layers
    fit = known.get(key)
    if fit is None or fit.found_on != _state(copy.mirror) or not _ids_fit(copy, fit):
        fit = known[key] = _checked(copy)
    slots = copy.mirror.host.geometry.slots_per_page
    return Move(fit.pieces, copy.token_granular, slots, copy.host.ids, copy.device.ids)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A cached validation: the mirror state it was made for, and its result.

    Pools may be given other memory, so the state is compared on every use. Ids below ``host_ids``
    and ``device_ids`` are valid.
    """

    found_on: tuple[object, ...]
    pieces: tuple[Piece, ...]
    host_ids: int
    device_ids: int


_fits: WeakKeyDictionary[Mirror, dict[tuple[bool, IoBackend, tuple[int, ...]], _Fit]] = (
    WeakKeyDictionary()
)


def _state(mirror: Mirror) -> tuple[object, ...]:
    """Return everything about a mirror that a cached validation depends on."""
    host, device = mirror.host, mirror.device
    return (
        *(host.geometry, host.layout, host.pages, *host.buffers.values()),
        *(device.geometry, device.pages, *device.buffers.values()),
    )


def _ids_fit(copy: PoolCopy, fit: _Fit) -> bool:
    """Return whether the ids of both ends are equally many, of the right kind, and in range."""
    host, device = copy.host, copy.device
    return (
        host.single is device.single is copy.token_granular
        and host.ids.size == device.ids.size > 0
        and _below(host.ids, fit.host_ids)
        and _below(device.ids, fit.device_ids)
    )


def _below(ids: Ids, limit: int) -> bool:
    """Return whether all ids are in ``0 .. limit - 1``.

    Viewed as unsigned numbers, negative ids are the largest. ``argmax`` finds the position of the
    largest id in half the time that ``max`` takes, with cold caches.
    """
    return 0 <= int(ids[ids.view(_UNSIGNED).argmax()]) < limit


def _checked(copy: PoolCopy) -> _Fit:
    """Validate ``copy`` in full and return what holds for all copies like it."""
    mirror, slots = copy.mirror, copy.mirror.host.geometry.slots_per_page
    _check_backend(mirror.name, mirror.host.layout, copy.io_backend)
    _check_unit(copy, mirror.host.geometry, mirror.device.geometry)
    for tier, pool, indices in (
        ("host", mirror.host, copy.host),
        ("device", mirror.device, copy.device),
    ):
        _check_ids(mirror.name, tier, indices, pool.pages * (slots if indices.single else 1))
        _check_layers(mirror.name, tier, pool.geometry, copy.layers)
    try:
        pieces = pieces_of(mirror, single=copy.token_granular)
    except LookupError as error:
        raise TransferError(str(error)) from error
    host, device = mirror.host.pages, mirror.device.pages
    for piece in pieces:
        host = min(host, _pages_inside(copy, piece, piece.host, copy.host))
        device = min(device, _pages_inside(copy, piece, piece.device, copy.device))
    per_page = slots if copy.token_granular else 1
    return _Fit(_state(mirror), pieces, host * per_page, device * per_page)


def _check_backend(name: str, layout: Layout, backend: IoBackend) -> None:
    allowed = LAYOUTS_OF[backend]
    if layout not in allowed:
        raise TransferError(
            f"{name}: io backend {backend} cannot serve layout {layout}; "
            f"{backend} needs one of {', '.join(allowed)}"
        )


def _check_unit(copy: PoolCopy, host: PoolGeometry, device: PoolGeometry) -> None:
    name = copy.mirror.name
    if host.slots_per_page != device.slots_per_page:
        raise TransferError(
            f"{name}: a page has {host.slots_per_page} slots on the host and "
            f"{device.slots_per_page} on the device; page ids would not mean the same"
        )
    for tier, indices in (("host", copy.host), ("device", copy.device)):
        if indices.single is not copy.token_granular:
            raise TransferError(
                f"{name}: token_granular={copy.token_granular}, but the {tier} indices are "
                f"{'single slots' if indices.single else 'whole pages'}"
            )
    if copy.token_granular and not (host.single_slots and device.single_slots):
        raise TransferError(
            f"{name}: token_granular=True, but a slot of this pool stands for no one token "
            f"({device.tokens_per_slot} tokens share it); copy whole pages"
        )
    if copy.host.ids.size != copy.device.ids.size:
        raise TransferError(
            f"{name}: {copy.host.ids.size} host and {copy.device.ids.size} device ids, "
            "expected as many at both ends"
        )


def _check_ids(name: str, tier: str, indices: Indices, limit: int) -> None:
    ids = indices.ids
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < limit:
        wrong = ids[(ids < 0) | (ids >= limit)]
        raise TransferError(
            f"{name}: {tier} {'slot' if indices.single else 'page'} {int(wrong[0])} is out of "
            f"range, expected 0..{limit - 1} ({wrong.size} of {ids.size} ids are wrong)"
        )


def _check_layers(name: str, tier: str, geometry: PoolGeometry, layers: tuple[int, ...]) -> None:
    wrong = [layer for layer in layers if not 0 <= layer < geometry.layers]
    if wrong:
        raise TransferError(
            f"{name}: layer {wrong[0]} is out of range, the {tier} pool has "
            f"0..{geometry.layers - 1}"
        )


def _pages_inside(copy: PoolCopy, piece: Piece, end: PieceEnd, indices: Indices) -> int:
    """Return how many pages of a piece lie within the tensor.

    A host page may be so much wider than the device's that it reaches past the end of the tensor.

    Raises:
        TransferError: a page of ``indices`` does.
    """
    slots = copy.mirror.host.geometry.slots_per_page
    number, start = end.buffer.layer_place(end.buffer.layers - 1)
    have = end.buffer.flat(number).numel() - start
    first = end.offset + (slots - 1) * end.slot + piece.reach(end)
    inside = 1 + (have - first) // end.page
    last = int(indices.page_ids(slots).max(initial=-1))
    if last >= inside:
        where = "host" if end is piece.host else "device"
        raise TransferError(
            f"{where} end of {copy.mirror.name}: page {last} of {piece.component} would be touched "
            f"up to byte {first + last * end.page} of a layer that has {have}; the host pool's "
            f"item of {piece.bytes_per_id} B is wider than the tensor's"
        )
    return inside
