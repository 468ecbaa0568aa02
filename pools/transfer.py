"""The one place where bytes cross between device and host: whole operations over all pools.

An operation moves the same pages of every pool and sidecar under an anchor. A backup moves all
layers; a load goes layer by layer and says when each has arrived.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.backends import Copier, copier_for
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.plan import Move
from hicache_dbg.pools.validate import TransferError, move_of

__all__ = ["CopyOp", "PoolCopy", "TransferEngine", "TransferError"]


class Event(Protocol):
    """A point in a stream of work that another can wait for."""

    def synchronize(self) -> None:
        """Block until the work before that point is done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PoolCopy:
    """What one pool contributes to an operation.

    ``host`` and ``device`` name the same pages, or slots, in the same order. ``layers`` are the
    pool's own layer numbers.
    """

    mirror: Mirror
    host: Indices
    device: Indices
    token_granular: bool
    io_backend: IoBackend
    layers: tuple[int, ...]


@dataclass(slots=True, eq=False)
class CopyOp:
    """One operation over all pools of an anchor.

    ``host_generations[i]`` is the allocation generation of the i-th host page. ``status`` goes
    from ``pending`` to ``done`` or ``failed``. ``after`` is waited for before the first byte
    moves: the writer of a backup's source, or the last reader of a load's destination.
    """

    op_id: int
    kind: Literal["backup", "load"]
    copies: tuple[PoolCopy, ...]
    host_generations: npt.NDArray[np.uint32]
    trace: tuple[str, str] = ("", "")
    status: str = "pending"
    after: Event | None = None


class TransferEngine:
    """Carries operations out on the calling thread.

    Raises :class:`TransferError` before a byte moves where an operation does not fit its pools.
    """

    def backup(self, op: CopyOp) -> None:
        """Move every layer of every pool to the host; the bytes are there on return."""
        parts = _begin(op)
        for part in parts:
            part.copier.copy(part.move, part.layers, to_host=True)
        _mark(parts)()
        op.status = "done"

    def load(self, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        """Move layer after layer of all pools to the device.

        ``on_layer_done`` gets the model's layer number when the bytes of that layer are there in
        every pool that has it, in ascending order.
        """
        parts = _begin(op)
        under_way: deque[tuple[int, Callable[[], None]]] = deque()
        in_flight = min((part.copier.in_flight for part in parts), default=0)
        for layer in sorted({layer for part in parts for layer in part.own_layer}):
            for part in parts:
                if layer in part.own_layer:
                    part.copier.copy(part.move, (part.own_layer[layer],), to_host=False)
            under_way.append((layer, _mark(parts)))
            _finish(under_way, in_flight, on_layer_done)
        _finish(under_way, 0, on_layer_done)
        op.status = "done"


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One pool's share of an operation, validated; ``own_layer`` maps the model's layers to its."""

    move: Move
    copier: Copier
    layers: tuple[int, ...]
    own_layer: dict[int, int]


def _begin(op: CopyOp) -> list[_Part]:
    op.status = "failed"  # until the last byte is there: an error on the way leaves it so
    parts = []
    for copy in op.copies:
        device = copy.mirror.device
        ids = device.geometry.layer_ids
        move = move_of(copy)
        copier = copier_for(device.device.type, copy.io_backend)
        parts.append(_Part(move, copier, copy.layers, {ids[own]: own for own in copy.layers}))
    if op.after is not None:
        op.after.synchronize()
    return parts


def _mark(parts: list[_Part]) -> Callable[[], None]:
    marks = [copier.mark() for copier in {part.copier for part in parts}]

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
