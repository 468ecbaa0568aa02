"""Which copier serves which device and io backend. CUDA's is imported when first asked for."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.plan import Move

__all__ = ["BoundMove", "Copier", "copier_for"]


class Copier(Protocol):
    """Moves the bytes of whole moves, one or many layers at a time."""

    #: How many layers a load keeps under way before it waits for the first: 0 where a copy
    #: returns with the bytes in place.
    in_flight: int

    def bind(self, move: Move, *, to_host: bool) -> "BoundMove":
        """Get ready to move: nothing is moved yet."""
        ...


class BoundMove(Protocol):
    """A move that can be carried out layer by layer."""

    @property
    def stream(self) -> int | None:
        """The raw handle of the stream it is queued on; None where ``copy`` returns when done."""
        ...

    def copy(self, layers: Sequence[int]) -> None:
        """Move, or begin to move, all ids of some of the pool's layers."""
        ...

    def mark(self) -> Callable[[], None]:
        """A function that blocks until everything begun so far has arrived."""
        ...


_COPIERS: dict[tuple[str, IoBackend], tuple[str, str]] = {
    ("cpu", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cpu", "kernel"),
    ("cpu", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cpu", "direct"),
    ("cuda", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cuda", "kernel"),
    ("cuda", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cuda", "direct"),
}


@cache
def copier_for(device_type: str, backend: IoBackend) -> Copier:
    """The copier for device pools on ``device_type`` (``cpu``, ``cuda``).

    Raises:
        ValueError: there is none for that device type.
    """
    try:
        module, name = _COPIERS[device_type, backend]
    except KeyError:
        known = sorted({kind for kind, _ in _COPIERS})
        raise ValueError(
            f"no copies for device type {device_type!r} and io backend {backend}, "
            f"expected a device of type {' or '.join(known)}"
        ) from None
    return cast("Copier", getattr(import_module(module), name)())
