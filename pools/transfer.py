"""The one place where bytes cross between device and host: whole operations over all pools.

An operation moves the same pages of every pool and sidecar under an anchor. A backup moves all
layers at once; a load goes layer by layer and reports each arrival.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hicache_dbg.pools.backends import BoundMove, copier_for
from hicache_dbg.pools.operation import CopyOp, PoolCopy, TransferError
from hicache_dbg.pools.validate import move_of

__all__ = ["CopyOp", "PoolCopy", "TransferEngine", "TransferError"]


class TransferEngine:
    """Executes operations on the calling thread.

    Every method raises :class:`TransferError` before the first byte moves if an operation does not
    fit its pools.
    """

    def backup(self, op: CopyOp) -> None:
        """Move every layer of every pool to the host; the bytes have arrived on return."""
        parts = _begin(op)
        try:
            for part in parts:
                part.bound.copy(tuple(part.own_layer.values()))
            self._queued(parts, 0)
        finally:  # wait even on an error: its recipient may reuse the pages at once
            _mark(parts)()
        op.status = "done"

    def load(self, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        """Move all pools to the device, one layer after another.

        ``on_layer_done`` is called with the model's layer number, in ascending order, when the
        bytes of that layer have arrived in every pool that has it.
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
            _mark(parts)()  # wait first: the recipient of the error may reuse the pages at once
            raise
        op.status = "done"

    def on_ahead(self) -> None:
        """Hook: a load is about to wait for its first layer, with the next ones already queued.

        Work done here overlaps with the transfer. Does nothing by default.
        """

    def on_queued(self, stream: int, under_way: int) -> None:
        """Hook: ``stream`` has all copies of an operation, but not yet its final mark.

        Work queued here belongs to the operation. During a load, at most the last ``under_way``
        layers have not arrived yet. Does nothing by default.
        """

    def _queued(self, parts: "list[_Part]", under_way: int) -> None:
        for stream in dict.fromkeys(part.bound.stream for part in parts):
            if stream is not None:
                self.on_queued(stream, under_way)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One pool's validated share of an operation.

    ``own_layer`` maps the model's layers to the pool's.
    """

    bound: BoundMove
    in_flight: int
    own_layer: dict[int, int]


def _begin(op: CopyOp) -> list[_Part]:
    op.status = "failed"  # until the last byte has arrived; an error leaves it so
    moves = [move_of(copy) for copy in op.copies]  # validate all before starting any
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
