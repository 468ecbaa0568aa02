"""Operations: which pages or slots of which pools move, and in which direction."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.streams import Event

__all__ = ["CopyOp", "PoolCopy", "TransferError"]


class TransferError(ValueError):
    """An operation that does not fit its pools, or that failed during the transfer."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolCopy:
    """The share of one pool in an operation.

    ``host`` and ``device`` name the same pages or slots in the same order. ``layers`` are the
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

    ``host_generations`` holds the allocation generation of each host page, in order. ``status``
    goes from ``pending`` to ``done`` or ``failed``. The engine waits for ``after`` before it moves
    the first byte: it marks the writer of a backup's source or the last reader of a load's
    destination.
    """

    op_id: int
    kind: Literal["backup", "load"]
    copies: tuple[PoolCopy, ...]
    host_generations: npt.NDArray[np.uint32]
    status: str = "pending"
    after: Event | None = None
