"""Refusals: what makes an operation impossible, said with both values before a byte moves.

What is *not* checked here is as deliberate: two ends that disagree in bytes a page move what the
host pool's size says, as production systems do. Telling that apart from a good copy is the
tracer's work.
"""

from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.operation import PoolCopy, TransferError
from hicache_dbg.pools.plan import Move, Piece, PieceEnd, pieces_of

__all__ = ["LAYOUTS_OF", "move_of"]

#: Which layouts an io backend can serve, as in the production systems.
LAYOUTS_OF: dict[IoBackend, tuple[Layout, ...]] = {
    IoBackend.KERNEL: (Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_HEAD),
    IoBackend.DIRECT: (Layout.LAYER_FIRST, Layout.PAGE_FIRST_DIRECT),
}


def move_of(copy: PoolCopy) -> Move:
    """What ``copy`` moves, once everything that makes it impossible is ruled out."""
    mirror = copy.mirror
    host, device = mirror.host.geometry, mirror.device.geometry
    _check_backend(mirror.name, mirror.host.layout, copy.io_backend)
    _check_unit(copy, host, device)
    for tier, geometry, pages, indices in (
        ("host", host, mirror.host.pages, copy.host),
        ("device", device, mirror.device.pages, copy.device),
    ):
        limit = pages * geometry.slots_per_page if indices.single else pages
        _check_ids(mirror.name, tier, indices, limit)
        _check_layers(mirror.name, tier, geometry, copy.layers)
    try:
        pieces = pieces_of(mirror, single=copy.token_granular)
    except LookupError as error:
        raise TransferError(str(error)) from error
    move = Move(pieces, copy.token_granular, host.slots_per_page, copy.host.ids, copy.device.ids)
    if move.host.size:
        last_host, last_device = _last_page(move, move.host), _last_page(move, move.device)
        for piece in pieces:
            _check_reach(f"host end of {mirror.name}", move, piece, piece.host, last_host)
            _check_reach(f"device end of {mirror.name}", move, piece, piece.device, last_device)
    return move


def _last_page(move: Move, ids: Ids) -> int:
    last = int(ids.max())
    return last // move.slots if move.single else last


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
            f"{name}: layer {wrong[0]} is out of range, the {tier} pool has {geometry.layers} "
            f"layers (0..{geometry.layers - 1})"
        )


def _check_reach(where: str, move: Move, piece: Piece, end: PieceEnd, page: int) -> None:
    """Refuse a host page so much wider than the device's that it leaves the tensor at its end."""
    need = end.offset + page * end.page + (move.slots - 1) * end.slot + piece.reach(end)
    number, layer_start = end.buffer.layer_place(end.buffer.layers - 1)
    have = end.buffer.flat(number).numel() - layer_start
    if need > have:
        raise TransferError(
            f"{where}: page {page} of {piece.component} would be touched up to byte {need} of a "
            f"layer that has {have}; the host pool's item of {piece.bytes_per_id} B is wider "
            "than the tensor's"
        )
