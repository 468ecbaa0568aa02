"""The one place where bytes cross between device and host: whole operations over all pools.

An operation moves the same pages of every pool and sidecar under an anchor. A backup moves all
layers; a load goes layer by layer and says when each has arrived.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hicache_dbg.pools.backends import BoundMove, copier_for
from hicache_dbg.pools.operation import CopyOp, PoolCopy, TransferError
from hicache_dbg.pools.validate import move_of

__all__ = ["CopyOp", "PoolCopy", "TransferEngine", "TransferError"]


class TransferEngine:
    """Carries operations out on the calling thread.

    Raises :class:`TransferError` before a byte moves where an operation does not fit its pools.
    """

    def backup(self, op: CopyOp) -> None:
        """Move every layer of every pool to the host; the bytes are there on return."""
        parts = _begin(op)
        try:
            for part in parts:
                part.bound.copy(tuple(part.own_layer.values()))
            self._queued(parts, 0)
        finally:  # also where an error leaves: who hears of it may use the pages again
            _mark(parts)()
        op.status = "done"

    def load(self, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        """Move layer after layer of all pools to the device.

        ``on_layer_done`` gets the model's layer number when the bytes of that layer are there in
        every pool that has it, in ascending order.
        """
        parts = _begin(op)
        under_way: deque[tuple[int, Callable[[], None]]] = deque()
        in_flight = min((part.in_flight for part in parts), default=0)
        layers = sorted({layer for part in parts for layer in part.own_layer})
        try:
            for number, layer in enumerate(layers):
                for part in parts:
                    if layer in part.own_layer:
                        part.bound.copy((part.own_layer[layer],))
                if layer == layers[-1]:
                    self._queued(parts, in_flight + 1)
                under_way.append((layer, _mark(parts)))
                if number == in_flight:
                    self.on_ahead()
                _finish(under_way, in_flight, on_layer_done)
            _finish(under_way, 0, on_layer_done)
        except BaseException:
            _mark(parts)()  # who hears of the error may use the pages again
            raise
        op.status = "done"

    def on_ahead(self) -> None:
        """What to do when a load is about to wait for its first layer, with the next ones queued.

        What is done now takes no time of the operation's. Nothing by default.
        """

    def on_queued(self, stream: int, under_way: int) -> None:
        """What to do when ``stream`` was given all copies of an operation, and not yet its last mark.

        Work that is put there now belongs to the operation. Of a load no more than the last
        ``under_way`` layers have not arrived. Nothing by default.
        """

    def _queued(self, parts: "list[_Part]", under_way: int) -> None:
        for stream in dict.fromkeys(part.bound.stream for part in parts):
            if stream is not None:
                self.on_queued(stream, under_way)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One pool's share of an operation, validated; ``own_layer`` maps the model's layers to its."""

    bound: BoundMove
    in_flight: int
    own_layer: dict[int, int]


def _begin(op: CopyOp) -> list[_Part]:
    op.status = "failed"  # until the last byte is there: an error on the way leaves it so
    moves = [move_of(copy) for copy in op.copies]  # all are valid before any is begun
    parts = []
    for copy, move in zip(op.copies, moves, strict=True):
        device = copy.mirror.device
        copier = copier_for(device.device.type, copy.io_backend)
        bound = copier.bind(move, to_host=op.kind == "backup")
        ids = device.geometry.layer_ids
        parts.append(_Part(bound, copier.in_flight, {ids[own]: own for own in copy.layers}))
    if op.after is not None:
        op.after.synchronize()
    return parts


def _mark(parts: list[_Part]) -> Callable[[], None]:
    marks = [part.bound.mark() for part in parts]

    def wait() -> None:
        for mark in marks:
            mark()

    return wait


def _finish(
    under_way: deque[tuple[int, Callable[[], None]]], keep: int, report: Callable[[int], None]
) -> None:
    while len(under_way) > keep:
        layer, wait = under_way.popleft()
        wait()
        report(layer)
